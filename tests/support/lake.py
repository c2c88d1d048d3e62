"""Waits for a lake, and compares it with its source."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from headrace.testing.database import Database
from headrace.testing.suite import Suite
from tests.oracle.lake import ReadableLake
from tests.support.archiving import Archiving

SERVICES = ("wal-reader", "publisher", "archiver", "lake-writer")
_TABLES = """
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1
"""
_COLUMNS = """
SELECT format('"%s"', attname) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0
AND NOT attisdropped ORDER BY attnum
"""


def lake_environment(archiving: Archiving, folder: Path, **more: str) -> dict[str, str]:
    """A suite with a required archive and a lake in a folder."""
    settings = {
        "HEADRACE_ARCHIVE_REQUIRED": "true",
        "HEADRACE_LAKE_URL": f"file://{folder}/lake",
        "HEADRACE_LAKE_FLUSH_INTERVAL_S": "0.3",
        # A JVM starts slowly. test_lake_engines.py proves that all engines make the same tables.
        "HEADRACE_LAKE_ENGINE": "inline",
        **more,
    }
    return archiving.environment(**settings)


async def reached(
    lake: ReadableLake, database: Database, suite: Suite, timeout_s: float = 60.0
) -> None:
    """Wait until a cut shows everything that is committed now."""
    lsn = await database.fetchval("SELECT pg_logical_emit_message(true, 'test', '') - '0/0'")
    deadline = time.monotonic() + timeout_s
    while True:
        cut = await asyncio.to_thread(lake.cut)
        if cut is not None and cut.lsn >= lsn:
            return
        assert suite.running("lake-writer"), suite.log("lake-writer")[-3000:]
        assert time.monotonic() < deadline, (
            f"the lake is at {cut}, not at {lsn}: {suite.log('lake-writer')[-3000:]}"
        )
        await asyncio.sleep(0.1)


async def became_same(lake: ReadableLake, database: Database, suite: Suite) -> list[str]:
    """The differences of lake and source, once a cut shows what is committed now; what only the catalog
    shows is noticed a little later.
    """
    deadline = time.monotonic() + 30.0
    while True:
        await reached(lake, database, suite)
        wrong = await same_rows(lake, database)
        if not wrong or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.3)


async def same_rows(lake: ReadableLake, database: Database) -> list[str]:
    """The differences of the lake's tables from the source's, as texts; empty if they don't."""
    wrong = []
    tables = [row[0] for row in await database.fetch(_TABLES)]
    locations = lake.locations()
    if set(tables) != set(locations):
        wrong.append(f"tables {sorted(set(tables) ^ set(locations))}")
    for table in set(tables) & set(locations):
        columns = [row[0] for row in await database.fetch(_COLUMNS, table)]
        texts = ", ".join(f"{column}::text" for column in columns)
        # A value that a column can't hold is in `_headrace_exact`.
        whole = ", ".join(
            f"coalesce(_headrace_exact['{column.strip(chr(34))}'], {column}::text)"
            for column in columns
        )
        expected = sorted(
            map(str, map(tuple, await database.fetch(f"SELECT {texts} FROM {table}")))
        )
        found = sorted(map(str, lake.rows(table, whole, locations[table])))
        if expected != found:
            lacks = [row[:200] for row in expected if row not in set(found)]
            extra = [row[:200] for row in found if row not in set(expected)]
            wrong.append(f"{table}: lacks {lacks[:5]}, has {extra[:5]}, {len(found)} rows")
    return wrong


async def eventually(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not become so"
        await asyncio.sleep(0.05)
