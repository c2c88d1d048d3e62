"""The source under chaos: writers that live through any crash, and PostgreSQL's own account of what
was committed.

The account is read by peeking and then advancing a second slot, so that neither a crash of the
server nor a lost answer costs it a change.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import asyncpg

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.lsn import ORIGIN, Position, format_lsn
from headrace.pgoutput import messages
from headrace.pgoutput.decoder import decode
from headrace.testing.oracle import Change

PUBLICATION = "chaos"
SOURCE = "headrace"
TABLES = ("orders", "items", "notes")
IDS = 5000
_PAGE = 5000
_SLOT = "oracle"
TROUBLE = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


async def prepare(postgres: EmbeddedPostgres, published: str = "FOR ALL TABLES") -> None:
    connection = await asyncpg.connect(postgres.dsn())
    try:
        for table in TABLES:
            await connection.execute(
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, n bigint, note text)"
            )
        await connection.execute(f"CREATE PUBLICATION {PUBLICATION} {published}")
        for slot in (SOURCE, _SLOT):
            await connection.execute(
                f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"
            )
    finally:
        await connection.close()


class Writer:
    """Transactions of 1 to 2,000 rows, upserts, deletes and now and then a TRUNCATE, until it is
    stopped.
    """

    def __init__(self, postgres: EmbeddedPostgres, seed: int, rows_per_s: float) -> None:
        self._postgres = postgres
        self._chance = random.Random(seed)
        self._rows_per_s = rows_per_s
        self.transactions = self.failures = 0
        self.enough = asyncio.Event()

    async def run(self) -> None:
        connection: Any = None
        while not self.enough.is_set():
            try:
                connection = connection or await asyncpg.connect(self._postgres.dsn(), timeout=5)
                rows = await self._transaction(connection)
                self.transactions += 1
                await self._rest(rows / self._rows_per_s)
            except TROUBLE:
                self.failures += 1
                connection = None
                await self._rest(0.2)
        if connection is not None:
            with contextlib.suppress(*TROUBLE):
                await connection.close(timeout=2)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.enough.wait()

    async def _transaction(self, connection: Any) -> int:
        chance, table = self._chance, self._chance.choice(TABLES)
        count = chance.choice([1, 1, 1, 2, 5, 20, 100, 400, 2000])
        first = chance.randrange(IDS)
        async with connection.transaction():
            await connection.execute(
                f"INSERT INTO {table} SELECT g, $3, repeat('x', (g % 100)::int) || g "
                "FROM generate_series($1::bigint, $2::bigint) g "
                f"ON CONFLICT (id) DO UPDATE SET n = {table}.n + 1",
                first,
                first + count - 1,
                chance.randrange(1 << 40),
            )
            if chance.random() < 0.2:
                await connection.execute(
                    f"DELETE FROM {chance.choice(TABLES)} WHERE id % 37 = $1", chance.randrange(37)
                )
            if chance.random() < 0.02:
                await connection.execute(f"TRUNCATE {chance.choice(TABLES)}")
        return count


class Account:
    """Every committed change, in commit order, each once."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._tables: dict[int, str] = {}
        self._last = ORIGIN

    async def more(self) -> list[Change]:
        """The changes since the last call, as far as PostgreSQL answers now."""
        found: list[Change] = []
        with contextlib.suppress(*TROUBLE):
            connection = await asyncpg.connect(self._postgres.dsn(), timeout=5)
            try:
                while await self._page(connection, found):
                    pass
            finally:
                connection.terminate()
        return found

    async def _page(self, connection: Any, found: list[Change]) -> bool:
        """Add what is next, and only then let go of it: the server may be gone in between."""
        rows = await connection.fetch(
            "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, $2, 'proto_version', "
            "'1', "
            "'publication_names', $3)",
            _SLOT,
            _PAGE,
            PUBLICATION,
            timeout=60,
        )
        page, end = self._read([row["data"] for row in rows])
        found += page
        if end:
            await connection.execute(
                f"SELECT pg_replication_slot_advance('{_SLOT}', '{format_lsn(end)}')", timeout=60
            )
        return bool(rows)

    def _read(self, page: list[bytes]) -> tuple[list[Change], int]:
        found: list[Change] = []
        position, end = ORIGIN, 0
        for data in page:
            match message := decode(data):
                case messages.Begin():
                    position = Position(message.final_lsn, 0)
                case messages.Commit():
                    end = message.end_lsn
                case messages.Relation():
                    self._tables[message.relation_id] = message.name
                case messages.Insert() | messages.Update() | messages.Delete():
                    position = self._add(
                        found, position, type(message).__name__.upper(), message.relation_id
                    )
                case messages.Truncate():
                    for relation_id in message.relation_ids:
                        position = self._add(found, position, "TRUNCATE", relation_id)
        return found, end

    def _add(
        self, found: list[Change], position: Position, operation: str, relation_id: int
    ) -> Position:
        # A page that was peeked at and not advanced beyond comes again.
        if position > self._last:
            found.append(Change(position, operation, self._tables[relation_id]))
            self._last = position
        return Position(position.lsn, position.seq + 1)


async def rows_of(postgres: EmbeddedPostgres) -> dict[str, dict[int, tuple[int, str]]]:
    """What the tables hold."""
    connection = await asyncpg.connect(postgres.dsn())
    try:
        return {
            table: {
                row["id"]: (row["n"], row["note"])
                for row in await connection.fetch(f"SELECT * FROM {table}")
            }
            for table in TABLES
        }
    finally:
        await connection.close()
