"""A repair of equal rows: as many go as are too many, and as many come as are missing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.mirror.sqlite import SqliteTarget
from headrace.mirror.table import Column, Table
from headrace.mirror.target import CreateTable, InsertRows
from headrace.verify.comparison import Comparison
from headrace.verify.digest import Row
from headrace.verify.repair import MovedError
from headrace.verify.row_repair import RowRepair, rows_wanted

COLUMNS = (Column("id", "integer"), Column("name", "text"))
KEYLESS = Table("public", "notes", COLUMNS, (), ("id", "name"))
ONE, TWO = (1, "one"), (2, "two")


def repaired(
    path: Path, rows: list[Row], extra: tuple[Row, ...], missing: tuple[Row, ...] = ()
) -> list[Row]:
    """The rows of a mirror with these rows, after a repair of these differences."""

    async def work() -> None:
        target = SqliteTarget(str(path))
        await target.load()
        values = [dict(zip(("id", "name"), row, strict=True)) for row in rows]
        await target.write([CreateTable(KEYLESS), InsertRows(KEYLESS, values)])
        await target.commit({})
        await target.close()
        wanted = [(row, dict(zip(("id", "name"), row, strict=True))) for row in missing]
        found = Comparison(len(rows), 1, (), missing, extra)
        repair = RowRepair(KEYLESS, {}, found, [None, None], wanted)
        assert await repair.write(SqliteTarget(str(path))) == len(extra) + len(missing)

    try:
        asyncio.run(work())
    finally:
        with closing(sqlite3.connect(path)) as connection:
            left = connection.execute("SELECT id, name FROM notes ORDER BY 1").fetchall()
    return left


def test_of_equal_rows_as_many_go_as_are_too_many(tmp_path: Path) -> None:
    assert repaired(tmp_path / "1", [ONE] * 4 + [TWO], (ONE, ONE)) == [ONE, ONE, TWO]
    assert repaired(tmp_path / "2", [ONE] * 3, (ONE,) * 3, (TWO, TWO)) == [TWO, TWO]


def test_a_row_that_is_no_longer_there_ends_the_repair_with_nothing_done(tmp_path: Path) -> None:
    with pytest.raises(MovedError):
        repaired(tmp_path / "1", [ONE, TWO], (ONE, ONE))
    with closing(sqlite3.connect(tmp_path / "1")) as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (2,)


def test_each_missing_row_is_read_from_the_source_as_often_as_it_is_missing() -> None:
    async def read() -> AsyncIterator[list[Row]]:
        yield [("1", "one"), ("2", "two")]
        yield [("1", "one")] * 3

    values: Any = SimpleNamespace(of=lambda row: {"id": int(row[0]), "name": row[1]})
    found = asyncio.run(rows_wanted(read, [cast("Any", int), None], [ONE, ONE], values))
    assert found == [(ONE, {"id": 1, "name": "one"})] * 2
