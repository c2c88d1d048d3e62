"""A table's metadata stays bounded, and keeps what readers may go back to."""

from __future__ import annotations

import time
from typing import Any

from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)

from headrace.lake import snapshots
from headrace.lake.expiry import CutRetention, expired
from headrace.lake.files import LakeIO
from headrace.lake.metadata import PREVIOUS_MAX, with_previous, with_snapshot, without_snapshots
from headrace.lake.snapshots import FileChanges, TableSnapshot
from tests.support.lake_memory import MemoryFiles, data_file, new_table

CUTS = 400
KEPT = 10


def tagged(table: TableSnapshot, name: str) -> TableSnapshot:
    """The table with a tag at its current snapshot, as PyIceberg makes it."""
    update = SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": name,
            "type": "tag",
            "snapshot-id": table.metadata.current_snapshot_id,
        }
    )
    metadata = update_table_metadata(table.metadata, (update,))
    return TableSnapshot(metadata, table.location, table.files)


def grown(io: LakeIO, table: TableSnapshot, number: int, keep: CutRetention) -> TableSnapshot:
    changes = FileChanges([data_file(f"file-{number}")])
    # As compaction does: the number of files that a table has is bounded.
    if len(table.files.data) >= 8:
        changes.removed = set(table.files.data)
    gone = expired(table.metadata, keep, time.time_ns() // 1000)
    return snapshots.next_snapshot(io, table, changes, {}, (), gone)


def snapshot(number: int, parent: int | None) -> Snapshot:
    return Snapshot(  # type: ignore[call-arg]
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=2_000_000_000_000 + number,
        manifest_list=f"file:///lake/snap-{number}.avro",
        summary=Summary(Operation.APPEND),
        schema_id=0,
    )


def test_metadata_is_what_pyiceberg_makes_of_the_same_changes() -> None:
    ours = theirs = new_table().metadata
    for number in range(1, 6):
        location = f"file:///lake/{number}.json"
        gone = {number - 3} if number > 3 else set()
        made = snapshot(number, ours.current_snapshot_id)
        branch = {"ref-name": "main", "type": "branch", "snapshot-id": number}
        updates: tuple[Any, ...] = (
            AddSnapshotUpdate(snapshot=made),
            SetSnapshotRefUpdate.model_validate(branch),
            *([RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(gone)})] * bool(gone)),
        )
        theirs = update_table_metadata(theirs, updates, metadata_location=location)
        changed = without_snapshots(with_snapshot(ours, made), gone)
        ours = with_previous(changed, ours, location)
        assert ours.model_dump() == theirs.model_dump()
    assert [each.snapshot_id for each in ours.snapshots] == [3, 4, 5]


def test_many_cuts_leave_metadata_and_manifests_bounded() -> None:
    files = MemoryFiles()
    io = LakeIO(files)
    table = new_table()
    sizes = []
    manifests = []
    for number in range(CUTS):
        table = grown(io, table, number, CutRetention(KEPT))
        sizes.append(files.size(table.location))
        manifests.append(len(table.files.manifests))
    assert max(sizes[CUTS // 2 :]) <= max(sizes[: CUTS // 2]) + 200
    assert max(manifests) <= snapshots.MANIFESTS_MAX + 1
    assert len(table.metadata.snapshots) == len(table.metadata.snapshot_log) == KEPT
    assert len(table.metadata.metadata_log) == PREVIOUS_MAX
    # The last snapshot, read again, is the table.
    read = snapshots.load(io, table.location)
    assert read.metadata.model_dump() == table.metadata.model_dump()
    assert set(read.files.data) == set(table.files.data)


def test_a_tag_keeps_its_snapshot() -> None:
    io = LakeIO(MemoryFiles())
    table = grown(io, new_table(), 0, CutRetention(2))
    table = tagged(table, "audit")
    first = table.metadata.current_snapshot_id
    for number in range(1, 20):
        table = grown(io, table, number, CutRetention(2))
    kept = [each.snapshot_id for each in table.metadata.snapshots]
    assert first in kept
    assert len(kept) == 3


def test_age_drops_only_snapshots_that_no_young_cut_shows() -> None:
    metadata = new_table().metadata
    for number in range(1, 5):
        metadata = with_snapshot(metadata, snapshot(number, metadata.current_snapshot_id))
    # Snapshot 2 was current until snapshot 3 was created: a cut of that age shows it.
    now_us = (2_000_000_000_000 + 3) * 1000 + 1_000_000
    assert expired(metadata, CutRetention(100, 1.0), now_us) == [1]
    assert expired(metadata, CutRetention(100), now_us) == []
    # However old the last one is.
    assert expired(metadata, CutRetention(100, 1.0), now_us + 10**12) == [1, 2, 3]
