"""Mirrors find the row of a change by any replica identity of the source."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.seeded import World, running, world
from headrace.testing.servers import SessionServers

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_S = 60.0
COLUMNS = "SELECT attname AS name FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 ORDER BY attnum"
LARGE = "repeat(md5(random()::text), 3000)"
SETUP = """
CREATE TABLE shifted (id int, v text, PRIMARY KEY (id) DEFERRABLE);
ALTER TABLE shifted REPLICA IDENTITY FULL;
CREATE TABLE pairs (a int, b int, v text, n numeric, PRIMARY KEY (a, b) DEFERRABLE);
ALTER TABLE pairs REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int PRIMARY KEY, u text NOT NULL UNIQUE, v int);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_u_key;
CREATE TABLE swapped (id int, u text NOT NULL UNIQUE, v int, large text, PRIMARY KEY (id) DEFERRABLE);
ALTER TABLE swapped ALTER large SET STORAGE EXTERNAL;
ALTER TABLE swapped REPLICA IDENTITY USING INDEX swapped_u_key;
"""
TABLES = ("shifted", "pairs", "indexed", "swapped")
CHANGES = (
    "INSERT INTO shifted SELECT g, 'row ' || g FROM generate_series(1, 5) g",
    # Each of them is two rows' key for a moment.
    "UPDATE shifted SET id = id + 1",
    "UPDATE shifted SET id = id - 1, v = v || ' again'",
    """BEGIN; INSERT INTO shifted VALUES (9, 'a'); SET CONSTRAINTS ALL DEFERRED; INSERT INTO shifted VALUES (9, 'b');
    DELETE FROM shifted WHERE v = 'a'; COMMIT""",
    """BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO shifted VALUES (9, NULL), (9, 'c');
    UPDATE shifted SET id = 10 WHERE v IS NULL; DELETE FROM shifted WHERE v = 'b'; COMMIT""",
    """INSERT INTO pairs SELECT g / 3, g % 3, CASE WHEN g % 2 = 0 THEN 'v' || g END, g / 7.0
    FROM generate_series(1, 9) g""",
    "UPDATE pairs SET b = b + 1",
    "UPDATE pairs SET a = a - 1, n = n * 2",
    "INSERT INTO indexed SELECT g, 'row ' || g, 0 FROM generate_series(1, 5) g",
    "UPDATE indexed SET id = id + 10 WHERE u = 'row 1'",
    "UPDATE indexed SET id = id + 10, v = v + 1 WHERE id > 3",
    "UPDATE indexed SET u = 'other' WHERE id = 2",
    "DELETE FROM indexed WHERE id = 3",
    f"INSERT INTO swapped SELECT g, 'row ' || g, 0, {LARGE} FROM generate_series(1, 6) g",
    # Rows take each other's number, with a large value that is not sent.
    "UPDATE swapped SET id = 7 - id, v = id",
    "UPDATE swapped SET id = id + 1",
    "DELETE FROM swapped WHERE id = 4",
)


@async_fixture(scope="module", loop_scope="module")
async def identified(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with world(session_servers, tmp_path_factory.mktemp("identities"), SETUP) as made:
        yield made


async def test_rows_keep_their_values_through_moved_keys_and_nothing_is_copied_again(
    identified: World, tmp_path: Path
) -> None:
    mirrors = await identified.mirrors(tmp_path, *TABLES)
    async with running(*mirrors.values()):
        for change in CHANGES:
            await identified.source.execute(change)
        for table in TABLES:
            expected = await texts(identified.source, table)
            assert len(expected) >= 4
            await until_equal(identified.target, table, expected, mirrors["postgresql"])
            await until_equal(tmp_path / "mirror.db", table, expected, mirrors["sqlite"])
    for mirror in mirrors.values():
        assert "row_missing" not in mirror.log
        assert "bootstrap_wanted" not in mirror.log


async def test_each_identity_has_its_index_and_a_table_that_is_swapped_in_has_them_too(
    identified: World, tmp_path: Path
) -> None:
    await identified.mirrors(tmp_path, "indexed")
    found = await identified.target.fetch(
        "SELECT indexdef FROM pg_indexes WHERE tablename = 'indexed' ORDER BY 1"
    )
    assert sorted(row["indexdef"].rpartition(" ")[2] for row in found) == ["(id)", "(u)"]
    with contextlib.closing(sqlite3.connect(tmp_path / "mirror.db", timeout=30)) as file:
        indexes = [row[0] for row in file.execute("SELECT name FROM pragma_index_list('indexed')")]
        columns = {
            row[0]
            for name in indexes
            for row in file.execute("SELECT name FROM pragma_index_info(?)", [name])
        }
    assert columns == {"id", "u"}


async def texts(database: Any, table: str) -> list[str]:
    """Every row as SQL's own text."""
    if isinstance(database, Path):
        with contextlib.closing(sqlite3.connect(database, timeout=30)) as file:
            rows = [tuple(row) for row in file.execute(f"SELECT * FROM {table}")]
    else:
        names = [row["name"] for row in await database.fetch(COLUMNS, table)]
        listed = ", ".join(f"{name}::text" for name in names)
        rows = [tuple(row) for row in await database.fetch(f"SELECT {listed} FROM {table}")]
    return sorted(str([None if value is None else str(value) for value in row]) for row in rows)


async def until_equal(place: Any, table: str, expected: list[str], mirror: MirrorProcess) -> None:
    """Wait for the mirror's rows to be the source's."""
    found: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (found := await texts(place, table)) != expected:
                assert mirror.runs, mirror.log[-3000:]
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(
            f"{table}: {[r[:60] for r in expected]} are "
            f"{[r[:60] for r in found]}\n{mirror.log[-2000:]}"
        ) from None
