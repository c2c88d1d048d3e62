"""Receives ranges of a table by COPY, in a snapshot that another connection holds.

Promises that a range is of the relation that was planned, and that memory holds one block of whole
rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import asyncpg

from headrace.postgres.connection import connect_lastingly
from headrace.postgres.quoting import quote_literal
from headrace.settings import Settings
from headrace.spark.plan import SnapshotPlan
from headrace.spark.ranges import PageRange
from headrace.spark.session import COPY_SESSION
from headrace.spark.source import check_name

# Without a bound: COPY waits for as long as its rows are being processed.
UNLIMITED_COPY_SESSION: Mapping[str, str] = {**COPY_SESSION, "statement_timeout": "0"}


@contextlib.asynccontextmanager
async def importing(
    settings: Settings,
    exported: str,
    application: str,
    session: Mapping[str, str] = UNLIMITED_COPY_SESSION,
) -> AsyncIterator[asyncpg.Connection]:
    """A connection with these session settings, whose transaction sees the snapshot."""
    connection = await connect_lastingly(settings.postgres, application, **session)
    try:
        await connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # All tasks of all machines see the moment that the holder's transaction sees.
        await connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(exported)}")
        yield connection
    finally:
        # Not closed in order: an interrupted COPY would first have to be read to its end.
        connection.terminate()


class RangeReceiver:
    """Gives the rows of ranges, as CSV in blocks of at least `block_bytes`; the last block of a
    range may be smaller.
    """

    def __init__(
        self, plan: SnapshotPlan, block_bytes: int, give: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """`give` may wait: PostgreSQL waits with it."""
        self._plan = plan
        self._block_bytes = block_bytes
        self._give = give
        self._received: list[bytes] = []
        self._received_bytes = 0

    async def copy(self, connection: asyncpg.Connection, page_range: PageRange) -> None:
        """Receive a range to its end; the connection is in a transaction."""
        query = self._plan.copy_query(page_range)
        await connection.copy_from_query(query, output=self._receive, format="csv", encoding="utf8")
        # COPY finds the table by its name, and renaming a schema takes no lock on the table. After
        # the COPY, which locks the table itself until the transaction ends.
        await check_name(connection, page_range)
        if self._received:
            await self._give(self._taken())

    async def _receive(self, data: bytes) -> None:
        """PostgreSQL sends one message per row and asyncpg whole messages, so `data` ends at the
        end of a row.
        """
        self._received.append(data)
        self._received_bytes += len(data)
        if self._received_bytes >= self._block_bytes:
            # Nothing here refers to the block any more: it may be one large row.
            await self._give(self._taken())

    def _taken(self) -> bytes:
        received = self._received
        self._received = []
        self._received_bytes = 0
        return b"".join(received)
