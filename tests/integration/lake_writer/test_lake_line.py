"""The lake contains what PostgreSQL committed, read by DuckDB."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from headrace.testing.database import Database
from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake
from tests.support.archiving import SCRIPT, Archiving

SERVICES = ("wal-reader", "publisher", "archiver", "lake-writer")


async def reached(lake: ForeignLake, database: Database, timeout_s: float = 60.0) -> None:
    """Wait until a cut shows everything that is committed now."""
    lsn = await database.fetchval("SELECT pg_logical_emit_message(true, 'test', '') - '0/0'")
    deadline = time.monotonic() + timeout_s
    while True:
        cut = await asyncio.to_thread(lake.cut)
        if cut is not None and cut.lsn >= lsn:
            return
        assert time.monotonic() < deadline, f"the lake is at {cut}, not at {lsn}"
        await asyncio.sleep(0.1)


async def test_the_lake_shows_the_rows_of_every_table(archiving: Archiving, tmp_path: Path) -> None:
    database = archiving.database
    await database.execute(
        "INSERT INTO orders SELECT -g, g, 'before' FROM generate_series(1, 500) g"
    )
    environment = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true",
        HEADRACE_LAKE_URL=f"file://{tmp_path}/lake",
        HEADRACE_LAKE_FLUSH_INTERVAL_S="0.3",
        HEADRACE_LAKE_ENGINE="inline",
    )
    lake = ForeignLake(tmp_path / "lake")
    async with Suite(environment, tmp_path, SERVICES) as suite:
        try:
            await reached(lake, database)
            assert len(lake.rows("public.orders")) == 500
            for statement in SCRIPT:
                await database.execute(statement)
                await reached(lake, database)
                for table, columns in (
                    ("orders", "id, n, note"),
                    ("items", "a, b"),
                    ("full_rows", "id, big, n"),
                ):
                    expected = await database.fetch(f"SELECT {columns} FROM {table}")
                    found = lake.rows(f"public.{table}", columns)
                    assert sorted(found) == sorted(tuple(row) for row in expected), statement
        finally:
            print(suite.log("lake-writer")[-6000:])
            print(suite.log("archiver")[-600:])
