"""Everything that can be attached to a suite, under chaos too: two mirrors, the audit trail, the
archive, a second suite on the stream.

SQL judges: at the end, the mirrors' tables are equal to the source's text for text, and the trail
and the archive contain what PostgreSQL recorded. During the faults, each reading of a mirror shows
one moment of the source.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.parquet as pq

from headrace.embedded.postgres import EmbeddedPostgres
from tests.chaos.checker import BrokenPromiseError, Checker
from tests.chaos.source import TABLES, TROUBLE, Writer

PUBLISHED = "FOR TABLES IN SCHEMA public"
MIRRORED, TRAIL = "mirrored", "trail"
SECOND = "second"
# Moved to and fro between accounts: every reader of one moment of the source reads this sum.
ACCOUNTS, EACH = 20, 1000
ARRIVE_S, SAID_S = 900.0, 20.0
_TABLES = f"""
CREATE TABLE savings (id int PRIMARY KEY, n bigint);
CREATE TABLE current (id int PRIMARY KEY, n bigint);
INSERT INTO savings SELECT g, {EACH} FROM generate_series(1, {ACCOUNTS}) g;
INSERT INTO current SELECT g, {EACH} FROM generate_series(1, {ACCOUNTS}) g;
CREATE TABLE shapes (id bigint PRIMARY KEY, n int, doc jsonb);
CREATE SCHEMA {SECOND};
CREATE TABLE {SECOND}.others (id bigint PRIMARY KEY, n int);
CREATE PUBLICATION {SECOND} FOR TABLES IN SCHEMA {SECOND};
"""
_SUM = "SELECT (SELECT sum(n) FROM savings) + (SELECT sum(n) FROM current)"
_WHOLE = 2 * ACCOUNTS * EACH


@dataclass(frozen=True, slots=True)
class Attached:
    """A process in addition to the line."""

    name: str
    service: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()


def attached(folder: Path, postgres: EmbeddedPostgres, delivery: str) -> list[Attached]:
    """Everything that goes with this way of delivery."""
    archive = frozenset({"HEADRACE_ARCHIVE_URL", "HEADRACE_ARCHIVE_REQUIRED"})
    second = {"HEADRACE_SLOT": SECOND, "HEADRACE_PUB": SECOND}
    spark = {"HEADRACE_SPARK_START_TIMEOUT_S": "300", "SPARK_REMOTE": ""}
    found = [
        Attached("schema-publisher", "schema-publisher"),
        Attached("snapshot-responder", "snapshot-responder", spark),
        Attached("archiver", "archiver"),
        Attached("wal-reader-second", "wal-reader", second, without=archive),
        Attached("publisher-second", "publisher", second, without=archive),
        Attached("mirror-sqlite", "mirror", arguments=("--to", f"sqlite:///{folder}/mirror.db")),
        Attached("mirror-postgres", "mirror", arguments=("--to", postgres.dsn(MIRRORED))),
    ]
    # The trail reads single events.
    trail = {"DEST_DB_NAME": TRAIL}
    return (
        found if delivery == "batch" else [*found, Attached("audit-writer", "audit-writer", trail)]
    )


async def prepare(postgres: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(postgres.dsn())
    try:
        await connection.execute(_TABLES)
        # Before the writers start: a slot that its wal-reader creates may start later.
        await connection.execute(
            "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", SECOND
        )
        for database in (MIRRORED, TRAIL):
            await connection.execute(f"CREATE DATABASE {database}")
    finally:
        await connection.close()


class AttachedWriter(Writer):
    """Transfers between two tables, rows of the second source, and DDL with rows behind it and
    without.
    """

    async def _transaction(self, connection: Any) -> int:
        chance, rows = self._chance, 0
        async with connection.transaction():
            for _ in range(chance.choice([1, 5, 50])):
                amount = chance.randrange(1, 9)
                await connection.execute(
                    "UPDATE savings SET n = n - $1 WHERE id = $2",
                    amount,
                    chance.randint(1, ACCOUNTS),
                )
                await connection.execute(
                    "UPDATE current SET n = n + $1 WHERE id = $2",
                    amount,
                    chance.randint(1, ACCOUNTS),
                )
                rows += 2
            await connection.execute(
                (
                    f"INSERT INTO {SECOND}.others SELECT coalesce(max(id), 0) + 1, $1 FROM "
                    f"{SECOND}.others"
                ),
                chance.randrange(99),
            )
            await connection.execute(
                (
                    'INSERT INTO shapes (id, n, doc) SELECT coalesce(max(id), 0) + 1, $1, \'{"p": '
                    "1.50}' FROM shapes"
                ),
                chance.randrange(99),
            )
        if chance.random() < 0.03:
            await self._reshape(connection)
        return rows + 2

    async def _reshape(self, connection: Any) -> None:
        names = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'shapes'::regclass AND attnum > 3 "
            "AND NOT attisdropped"
        )
        new = f"c{self._chance.randrange(1 << 30)}"
        choices = [
            f"ADD COLUMN {new} text",
            f"ADD COLUMN {new} int DEFAULT {self._chance.randrange(99)}",
        ]
        choices += ["ALTER COLUMN n TYPE bigint USING n + 1", "ALTER COLUMN n TYPE int USING n - 1"]
        if names:
            old = self._chance.choice([name["attname"] for name in names])
            choices += [f"DROP COLUMN {old}", f"RENAME COLUMN {old} TO {new}"]
        await connection.execute(f"ALTER TABLE shapes {self._chance.choice(choices)}")


class Watch:
    """Reads both mirrors while everything fails, and compares all that is attached when nothing
    does any more.
    """

    def __init__(
        self, postgres: EmbeddedPostgres, nats_url: str, folder: Path, *, damages: bool = False
    ) -> None:
        # Whether the stream lost changes: then readers of it may lack what they report.
        self._damages = damages
        self._postgres = postgres
        self._nats_url = nats_url
        self._sqlite = folder / "mirror.db"
        self.readings = 0

    async def look(self) -> None:
        """One reading of each mirror must be a moment of the source."""
        for found in (await self._postgres_sum(), await asyncio.to_thread(self._sqlite_sum)):
            if found is None:
                continue
            self.readings += 1
            if found != _WHOLE:
                raise BrokenPromiseError(
                    f"a mirror's two tables add up to {found}, at the source always to {_WHOLE}"
                )

    async def _postgres_sum(self) -> int | None:
        with contextlib.suppress(*TROUBLE):
            connection = await asyncpg.connect(self._postgres.dsn(MIRRORED), timeout=5)
            try:
                found = await connection.fetchval(_SUM, timeout=5)
                return None if found is None else int(found)
            finally:
                connection.terminate()
        return None

    def _sqlite_sum(self) -> int | None:
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(_opened(self._sqlite)) as connection,
        ):
            (found,) = connection.execute(_SUM).fetchone()
            return None if found is None else int(found)
        return None

    async def equal(
        self, checker: Checker, archive: Path, delivery: str, log: Callable[[str], None]
    ) -> None:
        """Wait until nothing differs; say what does if it stays."""
        deadline, said = time.monotonic() + ARRIVE_S, 0.0
        while found := await self._differences(checker, archive, delivery):
            if time.monotonic() > deadline:
                raise BrokenPromiseError("; ".join(found))
            if time.monotonic() > said + SAID_S:
                said = time.monotonic()
                log(f"waiting: {'; '.join(found)[:300]}")
            await asyncio.sleep(2)

    async def _differences(self, checker: Checker, archive: Path, delivery: str) -> list[str]:
        if not self._damages:
            await checker.follow(self._nats_url)
        found = [*await self._mirrors(), *await self._second(checker), *_archived(archive, checker)]
        return found if delivery == "batch" else [*found, *await self._trail(checker)]

    async def _mirrors(self) -> list[str]:
        found = []
        for table in (*TABLES, "savings", "current", "shapes"):
            source = await self._digest("postgres", table)
            if await self._digest(MIRRORED, table) != source:
                found.append(f"{table} of the PostgreSQL mirror differs")
            if await asyncio.to_thread(self._sqlite_digest, table, source[1]) != source:
                found.append(f"{table} of the SQLite mirror differs")
        return found

    async def _digest(self, database: str, table: str) -> tuple[str, list[str]]:
        """Of all values as text, and the columns."""
        connection = await asyncpg.connect(self._postgres.dsn(database), timeout=5)
        try:
            names = await connection.fetch(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 "
                "AND NOT attisdropped "
                "ORDER BY attname",
                table,
            )
            columns = [name["attname"] for name in names]
            if not columns:
                return "no table", []
            wanted = ", ".join(f'"{column}"::text' for column in columns)
            rows = await connection.fetch(f"SELECT {wanted} FROM {table} ORDER BY {table}.id")
            return _hashed(rows), columns
        finally:
            connection.terminate()

    def _sqlite_digest(self, table: str, columns: list[str]) -> tuple[str, list[str]]:
        try:
            with contextlib.closing(_opened(self._sqlite)) as connection:
                wanted = ", ".join(f'CAST("{column}" AS TEXT)' for column in columns)
                return _hashed(
                    connection.execute(
                        f"SELECT {wanted} FROM {table} ORDER BY {table}.id"
                    ).fetchall()
                ), columns
        except sqlite3.Error as error:
            return str(error), []

    async def _second(self, checker: Checker) -> list[str]:
        """The other suite's rows are on the stream, each once, in order."""
        connection = await asyncpg.connect(self._postgres.dsn(), timeout=5)
        try:
            rows = await connection.fetch(f"SELECT id FROM {SECOND}.others ORDER BY id")
        finally:
            connection.terminate()
        wanted = [row["id"] for row in rows]
        given = [event["data"]["id"] for event in checker.of_others]
        if self._damages:
            wanted = [row for row in wanted if row in set(given)]
        return (
            []
            if wanted == given
            else [f"the second source has {len(given)} rows on the stream, not {len(wanted)}"]
        )

    async def _trail(self, checker: Checker) -> list[str]:
        connection = await asyncpg.connect(self._postgres.dsn(TRAIL), timeout=5)
        try:
            rows = await connection.fetch(
                'SELECT "table", operation, count(*) AS n FROM changes GROUP BY 1, 2'
            )
            gaps = await connection.fetchval("SELECT count(*) FROM headrace_audit_gaps")
        except asyncpg.UndefinedTableError as error:
            return [str(error)]
        finally:
            connection.terminate()
        words = {"CREATE": "INSERT"}
        kept = Counter(
            {
                (row["table"], words.get(row["operation"], row["operation"])): row["n"]
                for row in rows
            }
        )
        if self._damages and gaps:
            return _counts_differ("the audit trail", checker.counted & kept, kept)
        return _counts_differ("the audit trail", checker.counted, kept) + (
            [f"{gaps} gaps in the trail"] if gaps else []
        )


def _archived(archive: Path, checker: Checker) -> list[str]:
    kept: Counter[tuple[str, str]] = Counter()
    before, found = (0, -1), []
    for file in sorted(archive.glob("*.parquet")):
        for row in pq.read_table(
            file, columns=["commit_lsn", "ordinal", "table", "operation"]
        ).to_pylist():
            position = (row["commit_lsn"], row["ordinal"])
            if position <= before:
                found.append(f"{file.name}: {position} comes after {before}")
            before = position
            kept[row["table"], row["operation"].upper()] += 1
    return found + _counts_differ("the archive", checker.counted, kept)


def _counts_differ(
    what: str, wanted: Counter[tuple[str, str]], given: Counter[tuple[str, str]]
) -> list[str]:
    missing, extra = wanted - given, given - wanted
    return (
        [f"{what} lacks {dict(missing)} and has {dict(extra)} too many"] if missing or extra else []
    )


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)


def _hashed(rows: Any) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(tuple(row)).encode())
    return digest.hexdigest()
