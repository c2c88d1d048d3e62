"""Compaction changes files and no row; DuckDB is the reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFile

from headrace.lake.catalog import PointerMovedError
from headrace.lake.compaction import (
    READ_ROWS,
    Compaction,
    Rewrite,
    RewriteInput,
    compact,
    compact_files,
    plan,
)
from headrace.lake.errors import CutRefusedError
from headrace.lake.snapshots import LiveFile, TableFiles
from tests.oracle.lake import ForeignLake
from tests.support.lake_memory import data_file
from tests.support.local_lake import LIMITS, NUMBERS, LocalLake

MIB = 1 << 20


@pytest.fixture
def lake(tmp_path: Path) -> LocalLake:
    made = LocalLake(tmp_path)
    made.create()
    return made


def rows(lake: LocalLake, columns: str = "id, note") -> list[Any]:
    return sorted(ForeignLake(lake.folder).rows(str(NUMBERS), columns))


def compacted(lake: LocalLake, **limits: Any) -> Compaction:
    done = compact(lake.files, lake.writer, replace(LIMITS, **limits))
    lake.cut()
    return done


def table_of(files: list[DataFile]) -> TableFiles:
    live = [LiveFile(file, 1, number, number) for number, file in enumerate(files, 1)]
    return TableFiles({each.file.file_path: each for each in live})


def names(rewrite: Rewrite) -> list[str]:
    return [location.rpartition("/")[2].removesuffix(".parquet") for location in rewrite.locations]


def test_small_files_become_one_with_the_same_rows(lake: LocalLake) -> None:
    lake.insert_in_cuts(6)
    before = rows(lake)
    assert len(before) == 60
    done = compacted(lake)
    assert (done.files_before, done.files_after) == (6, 1)
    assert len(lake.writer.snapshots[NUMBERS].files.data) == 1
    assert rows(lake) == before


def test_deleted_rows_are_gone_with_their_delete_files(lake: LocalLake) -> None:
    lake.insert(range(1000))
    lake.cut()
    lake.delete(range(0, 1000, 3))
    lake.cut()
    assert lake.writer.snapshots[NUMBERS].files.deleted_rows == 334
    expected = [(number, f"note {number}") for number in range(1000) if number % 3]
    assert rows(lake) == expected
    assert compacted(lake).files_before == 1
    files = lake.writer.snapshots[NUMBERS].files
    assert (files.deleted_rows, files.rows, len(files.deletes)) == (0, 666, 0)
    assert rows(lake) == expected


def test_rows_keep_their_order(lake: LocalLake) -> None:
    for first in (300, 100, 200, 0):
        lake.insert(range(first, first + 50))
        lake.cut()
    compacted(lake)
    found = ForeignLake(lake.folder).rows(str(NUMBERS), "id")
    assert [number for (number,) in found] == [
        number for first in (300, 100, 200, 0) for number in range(first, first + 50)
    ]


def test_files_from_before_a_new_column_are_joined_by_field_id(lake: LocalLake) -> None:
    lake.insert_in_cuts(3)
    lake.add_column()
    lake.insert([1, 2])
    lake.cut()
    before = rows(lake, "id, note, extra")
    assert (1, "note 1", 2) in before
    assert compacted(lake).files_after == 1
    assert rows(lake, "id, note, extra") == before


def test_a_file_without_living_rows_leaves_no_file(lake: LocalLake) -> None:
    lake.insert_in_cuts(4)
    everything = [number for number, _ in rows(lake)]
    lake.delete(everything[:-1])
    lake.cut()
    lake.delete(everything[-1:])
    lake.cut()
    compacted(lake)
    assert rows(lake) == []
    assert not lake.writer.snapshots[NUMBERS].files.data


def test_changes_after_a_compaction_find_its_rows(lake: LocalLake) -> None:
    lake.insert_in_cuts(5)
    keys = [number for number, _ in rows(lake)]
    compact(lake.files, lake.writer, LIMITS)
    # Into the same cut as the compaction, and into the next one.
    lake.update(keys[:7], "same cut")
    lake.cut()
    lake.update(keys[3:11], "next cut")
    lake.delete(keys[-2:])
    lake.cut()
    found = dict(rows(lake))
    assert len(found) == len(keys) - 2
    assert [found[key] for key in keys[:11]] == ["same cut"] * 3 + ["next cut"] * 8


def test_an_earlier_cut_still_shows_its_rows(lake: LocalLake) -> None:
    lake.insert_in_cuts(5)
    location = ForeignLake(lake.folder).locations()[str(NUMBERS)]
    before = rows(lake)
    compacted(lake)
    lake.delete([number for number, _ in before])
    lake.cut()
    foreign = ForeignLake(lake.folder)
    assert sorted(foreign.rows(str(NUMBERS), "id, note", location)) == before
    assert foreign.rows(str(NUMBERS)) == []


def test_of_a_compaction_and_another_writer_s_cut_one_is_refused(lake: LocalLake) -> None:
    lake.insert_in_cuts(5)
    before = rows(lake)
    other = LocalLake(lake.folder)
    other.insert([1])
    compact(lake.files, lake.writer, LIMITS)
    lake.cut()
    with pytest.raises((CutRefusedError, PointerMovedError)):
        other.cut()
    assert rows(lake) == before
    again = LocalLake(lake.folder)
    again.insert([1])
    again.cut()
    assert rows(lake) == [(1, "note 1"), *before]


def test_files_are_joined_with_those_of_their_own_size() -> None:
    large = data_file("large", 10, 30 * MIB)
    few = [data_file(f"few-{number}", 10, 1000) for number in range(3)]
    assert plan(table_of([large, *few]), LIMITS) == []
    many = [data_file(f"many-{number}", 10, 1000) for number in range(4)]
    (rewrite,) = plan(table_of([large, *many]), LIMITS)
    assert sorted(names(rewrite)) == [f"many-{number}" for number in range(4)]
    (rewrite,) = plan(table_of([large, *few]), LIMITS.everything())
    assert len(rewrite.inputs) == 4


def test_each_row_is_rewritten_a_few_times_at_most() -> None:
    files: list[DataFile] = []
    written = 0
    most = 0
    for number in range(2048):
        files.append(data_file(f"cut-{number}", 10, 10_000))
        for rewrite in plan(table_of(files), LIMITS):
            joined = [file for file in files if file.file_path in rewrite.locations]
            size = sum(file.file_size_in_bytes for file in joined)
            written += size
            files = [file for file in files if file not in joined]
            files.append(data_file(f"joined-{number}", 10, size))
        most = max(most, len(files))
    assert written < 8 * 2048 * 10_000
    assert most < 24


def test_one_step_rewrites_no_more_than_its_limit() -> None:
    files = [data_file(f"file-{number}", 10, 20 * MIB) for number in range(40)]
    rewrites = plan(table_of(files), replace(LIMITS, target_bytes=64 * MIB, bytes_max=100 * MIB))
    assert len(rewrites) == 2
    assert all(len(rewrite.inputs) == 4 for rewrite in rewrites)


def test_an_output_is_divided_at_the_target_size(lake: LocalLake) -> None:
    for first in range(0, 200_000, 50_000):
        lake.insert(range(first, first + 50_000), "x")
        lake.cut()
    table = lake.writer.snapshots[NUMBERS]
    inputs = [RewriteInput(path) for path in table.files.data]
    schema, folder = table.metadata.schema(), table.metadata.location
    written = compact_files(lake.files, schema, folder, inputs, target_bytes=100_000)
    assert len(written) == 2
    assert sum(file.record_count for file in written) == 200_000
    lake.writer.replace_files(NUMBERS, list(table.files.data), written)
    lake.cut()
    ((count, total),) = ForeignLake(lake.folder).rows(str(NUMBERS), "count(*), sum(id)")
    assert (count, total) == (200_000, sum(range(200_000)))


def test_deleted_rows_of_a_large_file_are_those_of_each_part_that_is_read(lake: LocalLake) -> None:
    count = 2 * READ_ROWS + 10
    lake.insert(range(count))
    lake.cut()
    edges = {0, READ_ROWS - 1, READ_ROWS, 2 * READ_ROWS - 1, 2 * READ_ROWS, count - 1}
    lake.delete(sorted(edges))
    lake.cut()
    assert compacted(lake, deleted_share=0.0).files_before == 1
    assert lake.writer.snapshots[NUMBERS].files.deleted_rows == 0
    assert [number for (number,) in rows(lake, "id")] == [
        number for number in range(count) if number not in edges
    ]


@pytest.mark.parametrize(("size", "joined"), [(64 * MIB, 0), (40 * MIB, 4)])
def test_a_file_of_half_the_target_is_large(size: int, joined: int) -> None:
    files = [data_file(f"file-{number}", 10, size) for number in range(4)]
    limits = replace(LIMITS, target_bytes=128 * MIB, bytes_max=1 << 30, tiered=False)
    found = plan(table_of(files), limits)
    assert sum(len(rewrite.inputs) for rewrite in found) == joined
