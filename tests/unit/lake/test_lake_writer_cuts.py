"""The content of a cut, and how its writer continues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.archive.metadata import TableInfo
from headrace.lake.catalog import TableName
from headrace.lsn import Position
from tests.oracle.lake import ForeignLake
from tests.support.local_lake import NUMBERS, SLOT, LocalLake, segment


@pytest.fixture
def lake(tmp_path: Path) -> LocalLake:
    made = LocalLake(tmp_path)
    made.create()
    return made


def test_a_cut_that_is_advanced_shows_a_later_lsn_and_the_same_tables(lake: LocalLake) -> None:
    lake.insert([1])
    cut = lake.cut()
    lake.writer.advance(cut.lsn + 500, 9)
    stored = lake.catalog.last_cut(SLOT)
    assert stored is not None
    assert stored == lake.writer.last_cut
    assert (stored.number, stored.lsn, stored.archive_file) == (cut.number, cut.lsn + 500, 9)
    assert stored.tables == cut.tables


def test_a_table_is_described_once_for_each_of_its_shapes(lake: LocalLake) -> None:
    def descriptions() -> list[str]:
        properties = lake.writer.snapshots[NUMBERS].metadata.properties
        return [text for text in properties.values() if "note" in text]

    lake.insert([1])
    lake.cut()
    (before,) = descriptions()
    lake.add_column()
    lake.insert([2])
    lake.cut()
    (after,) = descriptions()
    assert "extra" in after
    assert "extra" not in before


def test_a_file_changes_only_followed_tables_and_none_whose_copy_has_all_of_it(
    lake: LocalLake,
) -> None:
    copied_later = TableName("public", "later")
    lake.create()
    lake.insert([1])
    lake.create(copied_later)

    def described(name: TableName, relation_id: int) -> TableInfo:
        return TableInfo(name.namespace, name.name, relation_id, 1, ("id",), lake.columns)

    # Behind the copy of the first one, and before that of the second.
    first, second = (lake.writer.tables[name].from_lsn for name in (NUMBERS, copied_later))
    assert first < second
    at = Position(second - 50, 0)
    tables = (
        described(TableName("public", "unknown"), 3000),
        described(copied_later, 1000),
        described(NUMBERS, 1000),
    )
    info = replace(segment(7, at.lsn, tables[0]), tables=tables, first=at, last=at)
    batch = lake.writer.plan([info])
    assert batch.files == 1
    assert {one.table.name: one.files for one in batch.tables} == {NUMBERS: (7,)}


def test_a_row_that_waits_is_changed_and_deleted_before_it_is_written(lake: LocalLake) -> None:
    lake.insert(range(10))
    lake.update([3], "other")
    lake.delete([4, 5])
    lake.cut()
    expected = [(n, "other" if n == 3 else f"note {n}") for n in range(10) if n not in (4, 5)]
    assert sorted(ForeignLake(lake.folder).rows(str(NUMBERS), "id, note")) == expected


def test_an_unchanged_value_of_a_column_that_the_rows_file_lacks_is_null(lake: LocalLake) -> None:
    lake.insert(range(4))
    lake.cut()
    lake.add_column()
    table = TableInfo(NUMBERS.namespace, NUMBERS.name, 1000, 2, ("id",), lake.columns)
    sent = [f'{{"id":{number},"note":"new"}}' for number in (0, 3)]
    lake.take(table, "update", [0, 3], sent, unchanged=["extra"])
    lake.cut()
    assert sorted(ForeignLake(lake.folder).rows(str(NUMBERS), "id, note, extra")) == [
        (0, "new", None),
        (1, "note 1", None),
        (2, "note 2", None),
        (3, "new", None),
    ]
