"""Texts in `_headrace_exact` become values of the copy, or keep their column from being read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.archive.metadata import ColumnInfo
from headrace.lake.catalog import TableName
from headrace.lake.column_types import ITEM_EXACT
from headrace.lake.compaction import compact
from headrace.lake.files import LakeFiles
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.lake.tables import copied, new_table
from headrace.lake.writer import LakeWriter, Source
from tests.support.copied_lake import ReadableCopy
from tests.support.local_lake import LIMITS, written

NAME = TableName("public", "facts")
ID = ColumnInfo("id", 23, -1, "integer", True, number=1)
DAY = ColumnInfo("day", 1082, -1, "date", False, number=2)
AMOUNT = ColumnInfo("amount", 1700, ((6 << 16) | 2) + 4, "numeric", False, number=3)
EXACT = pa.map_(pa.string(), pa.string())


class FactsLake:
    """A table with a date and an amount, whose files are written as they are given."""

    def __init__(self, folder: Path) -> None:
        self.files = LakeFiles(f"file://{folder}")
        catalog = SqliteCatalog(folder / "catalog.db")
        source = Source("headrace", "1", 1, "archive")
        self.writer = LakeWriter(self.files, catalog, source, 1 << 20, 100)
        self.writer.open()
        self.columns: tuple[ColumnInfo, ...] = (ID, DAY, AMOUNT)
        self._lsn = 100
        self.table = new_table(NAME, 1, self.columns, ("id",), 100)
        self.folder, self.schema = self.writer.prepare_copy(self.table)
        self.writer.adopt(self.table, self.folder, [])

    def write(self, ids: list[int], exact: list[Any]) -> None:
        """A file of rows whose values are all in their texts."""
        names = [column.name for column in self.columns]
        count = len(ids)
        arrays: list[Any] = [pa.array(ids, pa.int32()), pa.nulls(count, pa.date32())]
        arrays += [pa.nulls(count, pa.decimal128(6, 2)), pa.array(exact, EXACT)]
        rows = pa.Table.from_arrays(arrays, names=[*names, ITEM_EXACT])
        files = written(self.files, self.folder, self.schema, rows)
        self.writer._followed[NAME].draft.add_files(files)
        self.cut()

    def rename(self, place: int, name: str) -> None:
        """A column has another name from now on."""
        before = self.columns[place]
        column = ColumnInfo(
            name, before.type_oid, before.type_modifier, "?", False, number=place + 1
        )
        self.columns = (*self.columns[:place], column, *self.columns[place + 1 :])
        self.table = copied(self.table, 1, self.columns, ("id",), 100)
        followed = self.writer._followed[NAME]
        self.writer._reshape(followed, self.table)
        self.schema = followed.draft.schema

    def cut(self) -> None:
        self._lsn += 100
        self.writer.cut(self._lsn, 0, 0, None)


@pytest.fixture
def lake(tmp_path: Path) -> FactsLake:
    return FactsLake(tmp_path)


def held(copy: ReadableCopy) -> dict[str, bool]:
    with copy.copy.pin() as pin:
        return {column.name: column.held for column in copy.relation(pin, NAME).columns}


def days(copy: ReadableCopy) -> list[Any]:
    with copy.copy.pin() as pin, pin.using() as cursor:
        relation = copy.relation(pin, NAME)
        key, day, _ = (column.copy for column in relation.columns)
        return cursor.execute(
            f"SELECT {key}, CAST({day} AS VARCHAR) FROM {relation.copy} ORDER BY {key}"
        ).fetchall()


def test_a_date_that_only_duckdb_holds_is_a_value(lake: FactsLake, tmp_path: Path) -> None:
    lake.write([1, 2, 3], [[("day", "infinity")], None, [("day", "0044-03-15 BC")]])
    copy = ReadableCopy(tmp_path)
    copy.copy.advance()
    assert days(copy) == [(1, "infinity"), (2, None), (3, "0044-03-15 (BC)")]
    assert all(held(copy).values())


def test_a_column_is_not_held_while_a_row_has_a_value_that_the_copy_lacks(
    lake: FactsLake, tmp_path: Path
) -> None:
    lake.write([1], [None])
    copy = ReadableCopy(tmp_path)
    copy.copy.advance()
    assert held(copy) == {"id": True, "day": True, "amount": True}
    with copy.copy.pin() as pin:
        lake.write([2], [[("amount", "NaN"), ("day", "infinity")]])
        copy.copy.advance()
        assert held(copy) == {"id": True, "day": True, "amount": False}
        assert copy.relation(pin, NAME).columns[2].held
    draft = lake.writer._followed[NAME].draft
    draft.remove_files([path for path, _ in draft.files][1:])
    lake.cut()
    copy.copy.advance()
    assert all(held(copy).values())


def test_texts_of_a_renamed_column_are_its_values(lake: FactsLake, tmp_path: Path) -> None:
    lake.write([1], [[("day", "infinity")]])
    lake.rename(1, "shipped")
    lake.rename(2, "day")
    lake.write([2], [[("shipped", "-infinity"), ("day", "NaN")]])
    copy = ReadableCopy(tmp_path)
    copy.copy.advance()
    assert days(copy) == [(1, "infinity"), (2, "-infinity")]
    assert held(copy) == {"id": True, "shipped": True, "day": False}


def test_texts_of_a_renamed_column_survive_compaction(lake: FactsLake, tmp_path: Path) -> None:
    lake.write([1], [[("day", "infinity")]])
    lake.rename(1, "shipped")
    for number in range(2, 7):
        lake.write([number], [[("shipped", "-infinity")]])
    assert compact(lake.files, lake.writer, LIMITS).files_before > 1
    lake.cut()
    copy = ReadableCopy(tmp_path)
    copy.copy.advance()
    assert days(copy)[:2] == [(1, "infinity"), (2, "-infinity")]


def test_a_text_of_an_unknown_column_keeps_all_from_being_read(
    lake: FactsLake, tmp_path: Path
) -> None:
    lake.write([1], [[("nobody", "NaN")]])
    copy = ReadableCopy(tmp_path)
    copy.copy.advance()
    assert held(copy) == {"id": False, "day": False, "amount": False}


def test_characters_have_as_many_blanks_as_postgresql_gives_them(
    lake: FactsLake, tmp_path: Path
) -> None:
    codes = ["a   ", "ä", None, "", "     abc"]
    length = 4 + len(codes[4] or "")
    info = ColumnInfo("code", 1042, length, "character", False, number=2)
    table = new_table(TableName("public", "codes"), 2, (ID, info), ("id",), 100)
    folder, schema = lake.writer.prepare_copy(table)
    rows = pa.table(
        {"id": pa.array(range(5), pa.int32()), "code": codes, ITEM_EXACT: pa.nulls(5, EXACT)}
    )
    lake.writer.adopt(table, folder, written(lake.files, folder, schema, rows))
    lake.cut()
    copy = ReadableCopy(tmp_path)
    copy.copy.advance()
    with copy.copy.pin() as pin:
        found = [code for _, code in copy.rows(pin, table.name)]
    assert found == [None if code is None else code.ljust(length - 4) for code in codes]
