"""Every engine makes the same tables: those of PostgreSQL, read by DuckDB.

One source and one archive serve a lake of each engine at the same time: a JVM starts slowly, and
the script is the same. `HEADRACE_LAKE_ENGINES` names the engines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest

from headrace.jetstream.provisioning import ensure
from headrace.settings import load
from headrace.testing.database import Database
from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake
from tests.support.archiving import Archiving, archived
from tests.support.hastened import hastened
from tests.support.lake import reached
from tests.support.lake_load import running
from tests.support.linked_archive import LinkedArchive

ENGINES = os.environ.get("HEADRACE_LAKE_ENGINES", "inline,spark").split(",")
LINE = ("wal-reader", "publisher", "archiver")
# So small that a few hundred rows are a large batch, divided into several parts.
SMALL = hastened(
    {
        "headrace.lake_writer.spark_engine.SURVEYED_ROWS_MIN": 20,
        "headrace.lake_writer.spark_engine.PART_ROWS": 150,
        "headrace.lake_writer.inline_engine.BLOCK_BYTES": 9000,
    }
)
BEFORE = (
    "CREATE TABLE ticks (n bigserial PRIMARY KEY)",
    "CREATE TABLE plain (a int, b text); ALTER TABLE plain REPLICA IDENTITY FULL",
    "CREATE TABLE toasted (id int PRIMARY KEY, big text, n int)",
    "ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE, n int)",
    "ALTER TABLE deferred REPLICA IDENTITY FULL",
    "INSERT INTO orders SELECT g, g % 7, 'before' FROM generate_series(1, 600) g",
    "INSERT INTO items SELECT g, 'b' || g FROM generate_series(1, 300) g",
    "INSERT INTO full_rows SELECT g, repeat('x', 3000) || g, g FROM generate_series(1, 50) g",
    "INSERT INTO plain SELECT g % 5, 'p' || g % 3 FROM generate_series(1, 90) g",
    "INSERT INTO toasted SELECT g, repeat('t', 5000) || g, g FROM generate_series(1, 80) g",
    "INSERT INTO deferred SELECT g, g FROM generate_series(1, 20) g",
)
BACKLOG = (
    "INSERT INTO orders SELECT g, g % 5, 'new' FROM generate_series(601, 900) g",
    "UPDATE orders SET n = n + 10 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 10 = 7",
    # Keys change, and others take the keys that became free.
    "UPDATE orders SET id = id + 100000 WHERE id % 11 = 0",
    "INSERT INTO orders SELECT g * 11, -1, 'again' FROM generate_series(1, 20) g",
    "UPDATE orders SET id = id - 50000, n = -2 WHERE id > 100200",
    # Rows whose large value is not sent: changed only in this batch, or not since before it.
    "UPDATE toasted SET n = n + 1 WHERE id % 2 = 0",
    "UPDATE toasted SET big = repeat('u', 6000) || id WHERE id % 5 = 0",
    "UPDATE toasted SET id = id + 1000 WHERE id % 4 = 0",
    "UPDATE toasted SET n = -n WHERE id > 1000",
    "UPDATE full_rows SET n = n * 2 WHERE id % 2 = 1; DELETE FROM full_rows WHERE id % 7 = 0",
    "UPDATE full_rows SET id = id + 500 WHERE id % 9 = 1",
    "UPDATE plain SET b = 'q' WHERE a = 2; DELETE FROM plain WHERE a = 3",
    "DELETE FROM plain WHERE ctid IN (SELECT ctid FROM plain WHERE a = 1 LIMIT 4)",
    "UPDATE deferred SET id = id + 1",
    "UPDATE items SET b = 'gone' WHERE a < 100",
    "TRUNCATE items",
    "INSERT INTO items SELECT g, 'after' FROM generate_series(1, 250) g; DELETE FROM items WHERE a = 9",
    "ALTER TABLE orders ADD COLUMN more int",
    "INSERT INTO orders SELECT g, 0, 'wide', g * 2 FROM generate_series(2000, 2200) g",
    "UPDATE orders SET more = 1, note = 'seen' WHERE id % 6 = 0",
)
AFTER = ("DELETE FROM orders WHERE id % 2 = 0", "UPDATE toasted SET n = 0", "TRUNCATE plain")
# A JVM may take half a minute to start.
PATIENCE_S = 240.0
TABLES = {
    "orders": "id, n, note",
    "items": "a, b",
    "full_rows": "id, big, n",
    "plain": "a, b",
    "toasted": "id, big, n",
    "deferred": "id, n",
}


SERVICE = "lake-writer"


@dataclass(frozen=True)
class EngineLake:
    """The lake of one engine."""

    engine: str
    suite: Suite
    lake: ForeignLake

    async def shows(self, database: Database, tables: dict[str, str]) -> None:
        await reached(self.lake, database, self.suite, PATIENCE_S)
        for table, columns in tables.items():
            expected = await database.fetch(f"SELECT {columns} FROM {table}")
            found = self.lake.rows(f"public.{table}", columns)
            assert sorted(found, key=repr) == sorted((tuple(row) for row in expected), key=repr), (
                self.engine,
                table,
            )


async def run(database: Database, statements: Sequence[str]) -> None:
    for statement in statements:
        await database.execute(statement)


async def ticks(database: Database) -> None:
    """Changes until cancelled: a lake-writer with another state bucket learns the time from files
    only.
    """
    session = await database.connect()
    while True:
        await session.execute("INSERT INTO ticks DEFAULT VALUES")
        await asyncio.sleep(0.1)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_engine_makes_the_tables_of_the_source(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    await run(database, BEFORE)
    environment = archiving.environment(HEADRACE_ARCHIVE_REQUIRED="true")
    # The backlog appears as a whole, and no session has to start again for it.
    links = LinkedArchive(tmp_path / "archive", tmp_path / "linked")
    links.link()
    wide = {**TABLES, "orders": "id, n, note, more"}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Suite(environment, tmp_path, LINE))
        lakes = [
            await stack.enter_async_context(engine_lake(environment, links, tmp_path, engine))
            for engine in ENGINES
        ]
        async with running(links.follow(), ticks(database)):
            for each in lakes:
                await each.shows(database, TABLES)
        await run(database, BACKLOG)
        await archived(archiving.url, await archiving.oracle.changes())
        async with running(links.follow(), ticks(database)):
            for each in lakes:
                await each.shows(database, wide)
            await run(database, AFTER)
            for each in lakes:
                await each.shows(database, wide)
        for each in lakes:
            started = "event=driver_starting" in each.suite.log(SERVICE)
            assert started == (each.engine != "inline")


@asynccontextmanager
async def engine_lake(
    environment: dict[str, str], links: LinkedArchive, folder: Path, engine: str
) -> AsyncIterator[EngineLake]:
    place = folder / engine
    place.mkdir()
    own = {
        **environment,
        "HEADRACE_ARCHIVE_URL": links.url,
        # A separate lease.
        "HEADRACE_STATE_BUCKET": f"state-{engine}",
        "HEADRACE_LAKE_URL": f"file://{place}/lake",
        "HEADRACE_LAKE_FLUSH_INTERVAL_S": "0.3",
        "HEADRACE_LAKE_ENGINE": engine,
        "HEADRACE_LAKE_SPARK_ROWS_MIN": "300",
        "HEADRACE_LAKE_SPARK_RANGES_MIN": "1",
        "HEADRACE_SNAPSHOT_RANGE_BYTES": "8192",
    }
    client = await nats.connect(environment["NATS_URL"])
    await ensure(client.jetstream(), load(own).streams)
    await client.close()
    async with Suite(own, place, (SERVICE,), program=SMALL) as suite:
        yield EngineLake(engine, suite, ForeignLake(place / "lake"))
