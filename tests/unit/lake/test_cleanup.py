"""Cleanup removes exactly what nothing refers to; PyIceberg says what is reachable."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from headrace.lake.catalog import TableName
from headrace.lake.cleanup import (
    FirstSeen,
    remove_folder,
    unused_files,
    unused_folders,
)
from headrace.lake.compaction import compact
from tests.oracle.lake import ForeignLake
from tests.support.local_lake import LIMITS, NUMBERS, SLOT, LocalLake

LATER_S = 10.0


@pytest.fixture
def lake(tmp_path: Path) -> LocalLake:
    made = LocalLake(tmp_path, keep_cuts=3)
    made.create()
    return made


def reachable(lake: LocalLake) -> set[str]:
    """The files that PyIceberg finds from the catalog's pointer."""
    found = set()
    for location in ForeignLake(lake.folder).locations().values():
        table = StaticTable.from_metadata(location)
        found.add(location)
        found.update(entry.metadata_file for entry in table.metadata.metadata_log)
        found.update(each.manifest_list for each in table.metadata.snapshots)
        found.update(map(str, table.inspect.all_manifests()["path"].to_pylist()))
        found.update(map(str, table.inspect.all_files()["file_path"].to_pylist()))
    return found


def clean(lake: LocalLake, before: float | None = None) -> set[str]:
    """Remove what is unused; what went."""
    gone = []
    until = time.time() + LATER_S if before is None else before
    for location in lake.catalog.tables().values():
        gone += [each.location for each in unused_files(lake.files, location, until)]
    lake.files.delete(gone)
    return set(gone)


def busy(lake: LocalLake, cuts: int = 14) -> None:
    for number in range(cuts):
        lake.insert(range(number * 10, number * 10 + 10))
        if number:
            lake.delete([number * 10 - 5])
            lake.update([number * 10 - 3], "changed")
        lake.cut()
        if compact(lake.files, lake.writer, LIMITS).files_after:
            lake.cut()


def test_cleanup_leaves_exactly_what_is_reachable(lake: LocalLake) -> None:
    busy(lake)
    rows = sorted(ForeignLake(lake.folder).rows(str(NUMBERS)))
    before = lake.files_on_disk()
    kept = reachable(lake)
    assert kept < before
    assert clean(lake) == before - kept
    assert lake.files_on_disk() == kept == reachable(lake)
    assert sorted(ForeignLake(lake.folder).rows(str(NUMBERS))) == rows
    assert clean(lake) == set()
    # The next writer finds everything that it needs.
    again = LocalLake(lake.folder, keep_cuts=3)
    again.delete([number for number, *_ in rows])
    again.cut()
    assert ForeignLake(lake.folder).rows(str(NUMBERS)) == []


def test_young_files_stay(lake: LocalLake) -> None:
    busy(lake, 8)
    before = lake.files_on_disk()
    assert clean(lake, time.time() - LATER_S) == set()
    assert lake.files_on_disk() == before


def test_a_file_goes_only_after_it_was_seen_unused_for_the_grace_time(lake: LocalLake) -> None:
    busy(lake, 8)
    seen = FirstSeen()
    (location,) = lake.catalog.tables().values()
    folder = location.rpartition("/metadata/")[0]
    now = time.time() + LATER_S
    found = unused_files(lake.files, location, now)
    assert found
    assert seen.ripe(found, folder, now, 60) == []
    assert seen.ripe(found, folder, now + 59, 60) == []
    assert seen.ripe(found, folder, now + 60, 60) == found
    assert seen.ripe(found[1:], folder, now + 61, 60) == found[1:]
    # It was referred to again, or is gone: the time begins again.
    assert seen.ripe(found, folder, now + 62, 60) == found[1:]


def test_a_tagged_snapshot_keeps_its_files(lake: LocalLake) -> None:
    busy(lake, 5)
    before = sorted(ForeignLake(lake.folder).rows(str(NUMBERS)))
    catalog = SqlCatalog(
        "headrace", uri=f"sqlite:///{lake.folder}/catalog.db", warehouse=lake.files.root
    )
    table = catalog.load_table((NUMBERS.namespace, NUMBERS.name))
    current = table.current_snapshot()
    assert current is not None
    table.manage_snapshots().create_tag(current.snapshot_id, "audit").commit()
    lake.writer.open()
    busy(lake)
    clean(lake)
    location = ForeignLake(lake.folder).locations()[str(NUMBERS)]
    scan = StaticTable.from_metadata(location).scan(snapshot_id=current.snapshot_id)
    rows = [tuple(row.values())[:2] for row in scan.to_arrow().to_pylist()]
    assert sorted(rows) == [row[:2] for row in before]


def test_a_dropped_table_s_folder_is_found_and_removed(lake: LocalLake) -> None:
    busy(lake, 3)
    lake.create(TableName("public", "others"), rows=5)
    lake.writer.drop(NUMBERS)
    lake.cut()
    others = ForeignLake(lake.folder).rows("public.others")
    later = time.time() + LATER_S
    (found,) = unused_folders(lake.files, lake.catalog, SLOT, later, lambda: 1000.0)
    assert "/numbers-" in found.location
    # Known from then on, also to the next process.
    (again,) = unused_folders(lake.files, lake.catalog, SLOT, later, lambda: 2000.0)
    assert again.since == found.since == 1000.0
    remove_folder(lake.files, lake.catalog, SLOT, found)
    assert not any("/numbers-" in location for location in lake.files_on_disk())
    assert unused_folders(lake.files, lake.catalog, SLOT, later) == []
    assert ForeignLake(lake.folder).rows("public.others") == others


def test_folders_of_others_are_never_unused(lake: LocalLake) -> None:
    busy(lake, 3)
    lake.writer.drop(NUMBERS)
    lake.cut()
    later = time.time() + LATER_S
    # Another suite's, one that is being written, and what no lake writer made.
    assert unused_folders(lake.files, lake.catalog, "another_slot", later) == []
    assert unused_folders(lake.files, lake.catalog, SLOT, time.time() - LATER_S) == []
    foreign = (
        "public/foreign/data/file.parquet",
        "public/foreign-0123456789abcdef/data/not-ours.txt",
        "public/file.parquet",
        "elsewhere/deep/foreign-0123456789abcdef/data/x.parquet",
    )
    for name in foreign:
        lake.files.put(lake.files.location(name), b"foreign")
    for folder in unused_folders(lake.files, lake.catalog, SLOT, later):
        remove_folder(lake.files, lake.catalog, SLOT, folder)
    assert lake.files_on_disk() == {lake.files.location(name) for name in foreign}


def test_a_foreign_table_in_the_catalog_is_left_alone(lake: LocalLake) -> None:
    catalog = SqlCatalog(
        "headrace", uri=f"sqlite:///{lake.folder}/catalog.db", warehouse=lake.files.root
    )
    source = catalog.load_table((NUMBERS.namespace, NUMBERS.name))
    table = catalog.create_table(("public", "theirs"), source.schema())
    stray = f"{table.location()}/data/stray.parquet"
    lake.files.put(stray, b"theirs")
    clean(lake)
    assert stray in lake.files_on_disk()
    assert unused_folders(lake.files, lake.catalog, SLOT, time.time() + LATER_S) == []


def test_files_of_a_killed_copy_are_found(lake: LocalLake) -> None:
    folder = lake.files.location("public/killed-0123456789abcdef")
    name = "0e5ee31c-8d80-4c4b-9d9f-5b0d9e8d0f5a"
    lake.files.put(f"{folder}/data/{name}.parquet", b"rows")
    (found,) = unused_folders(lake.files, lake.catalog, SLOT, time.time() + LATER_S)
    assert (found.location, found.files, found.size) == (folder, 1, 4)
