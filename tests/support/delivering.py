"""A line whose deliveries a test compares with what was committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from headrace.contract import events
from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Change, Oracle, Stored, raw_messages, stored
from headrace.testing.suite import Suite

DELIVERED_S = 40.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the stream, whole."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def payloads(self) -> list[dict[str, Any]]:
        decoded = events.decode(self.data)
        return decoded if isinstance(decoded, list) else [decoded]


async def messages(url: str, stream: str = "CDC") -> list[Message]:
    """The whole stream, but for what the catalog told on its own: it comes whenever it was read."""
    found = [
        Message(m.metadata.sequence.stream, m.subject, m.headers or {}, m.data)
        for m in await raw_messages(url, stream)
    ]
    return [message for message in found if not _told_by_the_catalog(message)]


def _told_by_the_catalog(message: Message) -> bool:
    payload = message.payloads[0]
    return bool(payload["operation"] == "SCHEMA" and payload["tx"]["xid"] == 0)


class Line:
    """A line of its own, whose publisher a test may kill; an oracle says what was committed."""

    def __init__(
        self, database: Database, server: EmbeddedNats, folder: Path, settings: Mapping[str, str]
    ) -> None:
        self.database = database
        self.nats = server
        self.source = f"slot_{database.name}"
        self.oracle = Oracle(database, f"oracle_{database.name}")
        environment = {
            **SETTINGS,
            **database.environment(server.url),
            "HEADRACE_SLOT": self.source,
            **settings,
        }
        self.suite = Suite(environment, folder)
        self.committed: list[Change] = []

    async def prepare(self) -> None:
        await self.database.execute(
            "CREATE TABLE a (id bigint PRIMARY KEY, note text); CREATE TABLE b (id bigint PRIMARY "
            "KEY, note text);"
            "CREATE PUBLICATION headrace FOR ALL TABLES"
        )
        await self.oracle.begin()

    async def insert(self, table: str, first: int, count: int, note: str = "note") -> None:
        await self.database.execute(
            (
                f"INSERT INTO {table} SELECT g, $3::text FROM generate_series($1::bigint, "
                "$2::bigint) g"
            ),
            first,
            first + count - 1,
            note,
        )

    async def mixed(self, first: int, count: int) -> None:
        """One transaction whose rows take turns between the two tables."""
        await self.database.execute(
            f"DO $$ BEGIN FOR i IN {first}..{first + count - 1} LOOP "
            "INSERT INTO a VALUES (i, 'a'); INSERT INTO b VALUES (i, 'b'); END LOOP; END $$"
        )

    async def mixed_slowly(self, first: int) -> None:
        """Transactions far enough apart that each is published on its own."""
        for step in range(6):
            await self.mixed(first + 1000 * step, 100)
            await asyncio.sleep(0.3)

    async def rows(self, *, by_table: bool = False) -> list[Stored]:
        """The stream's rows, once all that was committed is there: exactly that, in its order (of
        each table).
        """
        self.committed += await self.oracle.changes()
        found: list[Stored] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DELIVERED_S):
                while len(found) < len(self.committed):
                    await asyncio.sleep(0.1)
                    found = await self._rows()
        await asyncio.sleep(0.3)
        found = await self._rows()
        changes, committed = [event.change for event in found], list(self.committed)
        if by_table:
            changes.sort(key=lambda change: change.table)
            committed.sort(key=lambda change: change.table)
        assert changes == committed, self.suite.log("publisher")[-3000:]
        return found

    async def _rows(self) -> list[Stored]:
        return [
            event for event in await stored(self.nats.url) if event.payload["operation"] != "SCHEMA"
        ]

    async def killed_at(self, failpoint: str, work: Any) -> None:
        """A publisher that is killed at a failpoint while this is written, and one that goes on."""
        await self.suite.kill("publisher")
        seen = self.suite.log("publisher").count("epoch_joined")
        await self.suite.start("publisher", HEADRACE_FAILPOINT=failpoint)
        await self.joined(seen + 1)
        await work
        assert await self.suite.exit_code("publisher", DELIVERED_S) == -9
        await self.suite.start("publisher")

    async def joined(self, times: int) -> None:
        async with asyncio.timeout(20):
            while self.suite.log("publisher").count("epoch_joined") < times:  # noqa: ASYNC110  # a file gives no event
                await asyncio.sleep(0.05)

    async def last_subject(self) -> str:
        return (await messages(self.nats.url))[-1].subject

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        client = await nats.connect(self.nats.url)
        try:
            yield client
        finally:
            await client.close()
