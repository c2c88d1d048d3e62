"""A running line, PostgreSQL to JetStream, that many tests share: started once, each test uses
other tables.

Promises that `take` gives every message of the stream since the last `take`, and nothing of what is
written later: a marker row is committed, and read up to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import nats
from nats.errors import TimeoutError as NatsTimeoutError

from headrace.contract import events
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.database import Database
from headrace.testing.oracle import Stored
from headrace.testing.suite import Suite

ALL_TABLES = "FOR ALL TABLES"
MARKER = "line_marker"
TAKE_TIMEOUT_S = 60.0
# Waits that are short, so that a test is.
QUICK = {
    "HEADRACE_DEDUPE_WINDOW_S": "0.1",
    "HEADRACE_NATS_RECONNECT_WAIT_S": "0.1",
    "HEADRACE_PROGRESS_INTERVAL_S": "0.1",
    "HEADRACE_STATUS_INTERVAL_S": "0.2",
    "HEADRACE_LEASE_TTL_S": "1",
}
# Only what the stream itself shows, unless a test asks for the catalog's word.
SETTINGS = {**QUICK, "HEADRACE_CATALOG_INTERVAL_S": "3600"}


@dataclass(frozen=True, slots=True)
class Delivered(Stored):
    """An event, with the bytes of its message."""

    data: bytes

    @property
    def operation(self) -> str:
        return str(self.payload["operation"])

    @property
    def row(self) -> dict[str, Any]:
        """The event's `data`."""
        found: dict[str, Any] = self.payload["data"]
        return found


def only(messages: Iterable[Delivered], *operations: str) -> list[Delivered]:
    """Those that did one of these."""
    return [message for message in messages if message.operation in operations]


def brief(messages: Iterable[Delivered]) -> list[tuple[str, dict[str, Any]]]:
    """The operation and the `data` of each message."""
    return [(message.operation, message.row) for message in messages]


def differences(message: Delivered) -> list[str]:
    """The kinds of what a schema event says."""
    return [change["change"] for change in message.payload["changes"]]


class Line:
    """wal-reader and publisher between their own database and NATS server."""

    def __init__(
        self, database: Database, nats_url: str, suite: Suite, subscription: Any, source: str
    ) -> None:
        self.database = database
        self.nats_url = nats_url
        self.suite = suite
        self.source = source
        self._subscription = subscription
        self._markers = 0

    async def execute(self, *transactions: str) -> None:
        """Run each of them, of one or several statements, as a transaction."""
        for sql in transactions:
            await self.database.execute(sql)

    async def did(self, *transactions: str) -> list[tuple[str, dict[str, Any]]]:
        """`brief` for the rows that these change."""
        return brief(await self.rows(*transactions))

    async def take(self, *transactions: str, timeout_s: float = TAKE_TIMEOUT_S) -> list[Delivered]:
        """Run these, and return every message since the last call, in stream order."""
        await self.execute(*transactions)
        self._markers += 1
        await self.database.execute("UPDATE line_marker SET n = $1", self._markers)
        found: list[Delivered] = []
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_marker(message := await self._next()):
                    found.append(message)
        except TimeoutError:
            raise AssertionError(
                f"the line stands still:\n{self.suite.log('publisher')[-4000:]}"
            ) from None
        return [message for message in found if message.payload.get("table") != MARKER]

    async def rows(self, *transactions: str, timeout_s: float = TAKE_TIMEOUT_S) -> list[Delivered]:
        """As `take`, without the schema events."""
        taken = await self.take(*transactions, timeout_s=timeout_s)
        return [message for message in taken if message.operation != events.SCHEMA]

    async def _next(self) -> Delivered:
        while True:
            with contextlib.suppress(NatsTimeoutError):
                message = await self._subscription.next_msg(timeout=1)
                return Delivered(
                    message.metadata.sequence.stream,
                    message.subject,
                    (message.headers or {}).get("Nats-Msg-Id", ""),
                    events.decode(message.data),
                    message.data,
                )

    def _is_marker(self, message: Delivered) -> bool:
        payload = message.payload
        return payload.get("table") == MARKER and payload.get("data", {}).get("n") == self._markers


class Lines(Protocol):
    """Gives a test module's line of this PostgreSQL, publication and settings; started at its first
    use.
    """

    async def __call__(
        self, version: PostgresVersion = 18, publication: str = ALL_TABLES, **settings: str
    ) -> Line:
        """Return the line, running."""
        ...


@contextlib.asynccontextmanager
async def running_line(
    database: Database,
    nats_server: EmbeddedNats,
    folder: Path,
    settings: Mapping[str, str],
    publication: str = ALL_TABLES,
) -> AsyncIterator[Line]:
    """Start a line that reads `CREATE PUBLICATION headrace {publication}`."""
    await database.execute(
        "CREATE TABLE line_marker (id int PRIMARY KEY, n int); INSERT INTO line_marker VALUES (1, "
        "0)"
    )
    await database.execute(f"CREATE PUBLICATION headrace {publication}")
    # Slots are named across a server, which databases share.
    source = f"slot_{database.name}"
    environment = {
        **SETTINGS,
        **database.environment(nats_server.url),
        "HEADRACE_SLOT": source,
        **settings,
    }
    async with Suite(environment, folder) as suite:
        await suite.logged("publisher", "epoch_joined")
        client = await nats.connect(nats_server.url)
        try:
            subscription = await client.jetstream().subscribe(
                "cdc.>", stream="CDC", ordered_consumer=True
            )
            yield Line(database, nats_server.url, suite, subscription, source)
        finally:
            await client.close()
