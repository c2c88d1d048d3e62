"""A table's metadata with a snapshot more, or with fewer. Pure.

The same as PyIceberg's updates make, which copy the whole metadata several times: a cut would take
as long as there are snapshots.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry

# Each new metadata file repeats this log, and a cut writes one for each table that it changes.
# Iceberg's own default is 100.
PREVIOUS_MAX = 20
_MAIN = "main"


def with_snapshot(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """The metadata whose current snapshot is a new one."""
    entry = SnapshotLogEntry.model_validate(
        {"snapshot-id": snapshot.snapshot_id, "timestamp-ms": snapshot.timestamp_ms}
    )
    branch = SnapshotRef.model_validate({"snapshot-id": snapshot.snapshot_id, "type": "branch"})
    return _copy(
        metadata,
        last_updated_ms=snapshot.timestamp_ms,
        last_sequence_number=snapshot.sequence_number,
        current_snapshot_id=snapshot.snapshot_id,
        snapshots=[*metadata.snapshots, snapshot],
        snapshot_log=[*metadata.snapshot_log, entry],
        refs={**metadata.refs, _MAIN: branch},
    )


def without_snapshots(metadata: TableMetadata, dropped: Collection[int]) -> TableMetadata:
    """The metadata without snapshots that no branch or tag names."""
    gone = frozenset(dropped)
    if not gone:
        return metadata
    kept = []
    for each in metadata.snapshots:
        if each.snapshot_id in gone:
            continue
        # Readers that follow a table's history must not look for a snapshot that is gone.
        if each.parent_snapshot_id in gone:
            kept.append(each.model_copy(update={"parent_snapshot_id": None}))
        else:
            kept.append(each)
    return _copy(
        metadata,
        snapshots=kept,
        snapshot_log=[each for each in metadata.snapshot_log if each.snapshot_id not in gone],
        # Each belongs to one snapshot; left behind, it would keep its file referred to forever.
        statistics=[each for each in metadata.statistics if each.snapshot_id not in gone],
        partition_statistics=[
            each for each in metadata.partition_statistics if each.snapshot_id not in gone
        ],
    )


def with_previous(metadata: TableMetadata, before: TableMetadata, location: str) -> TableMetadata:
    """The metadata with its former location in its log; the oldest entries go."""
    # A table that is being created has no former metadata.
    if not location:
        return metadata
    entry = MetadataLogEntry.model_validate(
        {"metadata-file": location, "timestamp-ms": before.last_updated_ms}
    )
    return _copy(metadata, metadata_log=[*metadata.metadata_log, entry][-PREVIOUS_MAX:])


def _copy(metadata: TableMetadata, **changes: Any) -> TableMetadata:
    """With other values; what doesn't change is shared, since nothing changes in place."""
    return metadata.model_copy(update=changes)
