"""A table's files as Iceberg lists them, and the metadata of its next snapshot.

PyIceberg has no public way to write delete files; this module uses its manifest writers. It writes
new files only: the catalog decides which of them are current.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import TableUpdate, update_table_metadata

from headrace.lake.data_files import FILE_PATH_ID
from headrace.lake.errors import LakeError
from headrace.lake.files import LakeIO
from headrace.lake.metadata import with_previous, with_snapshot, without_snapshots

# More manifests than this are merged into one: readers open each of them.
MANIFESTS_MAX = 16
# A manifest with more files is left as it is.
MERGED_FILES_MAX = 2_000


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of the current snapshot, and when it was added."""

    file: DataFile
    snapshot_id: int
    sequence: int
    file_sequence: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of data files, and their locations."""

    manifest: ManifestFile
    paths: frozenset[str]


@dataclass(slots=True)
class TableFiles:
    """The files of a table's current snapshot."""

    data: dict[str, LiveFile] = field(default_factory=dict)
    # By the data file whose positions it contains.
    deletes: dict[str, LiveFile] = field(default_factory=dict)
    # Delete files of other writers, for several data files.
    shared_deletes: dict[str, LiveFile] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows, with deleted ones."""
        return sum(live.file.record_count for live in self.data.values())

    @property
    def deleted_rows(self) -> int:
        """The number of deleted positions."""
        every = [*self.deletes.values(), *self.shared_deletes.values()]
        return sum(live.file.record_count for live in every)


@dataclass(slots=True)
class FileChanges:
    """A snapshot's changes of a table's files."""

    added: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    # By data file; each replaces the delete file that its data file had.
    deletes: dict[str, DataFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table at a cut: its metadata, where that is, and its files."""

    metadata: TableMetadata
    location: str
    files: TableFiles


def load(io: LakeIO, location: str) -> TableSnapshot:
    """A table by the location of its metadata."""
    metadata = load_metadata(io, location)
    return TableSnapshot(metadata, location, load_files(io, metadata.current_snapshot()))


def load_metadata(io: LakeIO, location: str) -> TableMetadata:
    """A table's metadata, with all its snapshots."""
    return FromInputFile.table_metadata(io.new_input(location))


def load_files(io: LakeIO, snapshot: Snapshot | None) -> TableFiles:
    """The files of a snapshot; none before the first."""
    files = TableFiles()
    if snapshot is not None:
        for manifest in snapshot.manifests(io):
            _read(io, manifest, files)
    return files


def _read(io: LakeIO, manifest: ManifestFile, files: TableFiles) -> None:
    paths = set()
    for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
        live = LiveFile(
            entry.data_file,
            # Entries may leave their numbers to the manifest, from which readers inherit them.
            entry.snapshot_id or manifest.added_snapshot_id or 0,
            entry.sequence_number or 0,
            entry.file_sequence_number or entry.sequence_number or 0,
        )
        path = entry.data_file.file_path
        match entry.data_file.content:
            case DataFileContent.DATA:
                files.data[path] = live
                paths.add(path)
            case DataFileContent.POSITION_DELETES:
                target = _deleted_from(entry.data_file)
                # A second delete file of the same data file is another writer's: both count.
                if target is None or target in files.deletes:
                    files.shared_deletes[path] = live
                else:
                    files.deletes[target] = live
            case _:
                raise LakeError(
                    f"{path} contains equality deletes, which another writer made",
                    remedy="Let only Headrace write to the lake's tables; copy the table again "
                    "with `headrace lake backfill`.",
                )
    if manifest.content is ManifestContent.DATA:
        files.manifests.append(Manifest(manifest, frozenset(paths)))


def _deleted_from(file: DataFile) -> str | None:
    """The only data file whose positions a delete file contains; None if there may be several."""
    lower = (file.lower_bounds or {}).get(FILE_PATH_ID)
    upper = (file.upper_bounds or {}).get(FILE_PATH_ID)
    # Bounds are all that a reader knows of the paths inside without opening the file.
    if lower is None or lower != upper:
        return None
    return lower.decode()


def next_snapshot(
    io: LakeIO,
    table: TableSnapshot,
    changes: FileChanges,
    properties: Mapping[str, str],
    updates: Iterable[TableUpdate] = (),
    expired: Iterable[int] = (),
) -> TableSnapshot:
    """Write the metadata of a table with changed files; current once the catalog points to it."""
    metadata = table.metadata
    if changed := tuple(updates):
        # First, so that the snapshot refers to the new schema.
        metadata = update_table_metadata(metadata, changed)
    snapshot_id = metadata.new_snapshot_id()
    sequence = metadata.next_sequence_number()
    writing = _Writing(io, metadata, snapshot_id, sequence)
    files = writing.files(table.files, changes)
    parent = metadata.current_snapshot_id
    # A random part in the name: an attempt that was given up may have written the same snapshot's.
    manifest_list = f"{metadata.location}/metadata/snap-{snapshot_id}-{uuid.uuid4()}.avro"
    with write_manifest_list(
        2, io.new_output(manifest_list), snapshot_id, parent, sequence, "deflate"
    ) as writer:
        writer.add_manifests([each.manifest for each in files.manifests] + writing.delete_manifests)
    # Its fields' aliases are not names.
    snapshot = Snapshot(  # type: ignore[call-arg]
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent,
        sequence_number=sequence,
        # Never before the snapshot it follows, even if the clock goes back.
        timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
        manifest_list=manifest_list,
        summary=Summary(_operation(changes), **_totals(table.files, files, changes), **properties),
        schema_id=metadata.current_schema_id,
    )
    metadata = without_snapshots(with_snapshot(metadata, snapshot), set(expired))
    metadata = with_previous(metadata, table.metadata, table.location)
    return TableSnapshot(metadata, write_metadata(io, metadata), files)


def expire(io: LakeIO, table: TableSnapshot, dropped: Iterable[int]) -> TableSnapshot:
    """Write the metadata of a table without some snapshots."""
    metadata = without_snapshots(table.metadata, set(dropped))
    metadata = with_previous(metadata, table.metadata, table.location)
    return TableSnapshot(metadata, write_metadata(io, metadata), table.files)


def write_metadata(io: LakeIO, metadata: TableMetadata) -> str:
    """Write a table's metadata to a new location, which is returned."""
    # Engines without a catalog expect the number in front; the random part makes it unique.
    number = metadata.next_sequence_number() - 1
    location = f"{metadata.location}/metadata/{number:05d}-{uuid.uuid4()}.metadata.json"
    ToOutputFile.table_metadata(metadata, io.new_output(location))
    return location


def _operation(changes: FileChanges) -> Operation:
    if changes.removed or changes.deletes:
        return Operation.OVERWRITE
    return Operation.APPEND


def _totals(before: TableFiles, after: TableFiles, changes: FileChanges) -> dict[str, str]:
    """The summary's counts, as Iceberg names them."""
    added_rows = sum(file.record_count for file in changes.added)
    return {
        "added-data-files": str(len(changes.added)),
        "added-records": str(added_rows),
        "added-delete-files": str(len(changes.deletes)),
        "deleted-data-files": str(len(changes.removed)),
        "added-position-deletes": str(max(0, after.deleted_rows - before.deleted_rows)),
        "total-data-files": str(len(after.data)),
        "total-delete-files": str(len(after.deletes) + len(after.shared_deletes)),
        "total-records": str(after.rows),
        "total-position-deletes": str(after.deleted_rows),
        "total-equality-deletes": "0",
        "total-files-size": str(sum(live.file.file_size_in_bytes for live in after.data.values())),
    }


class _OneBlock(AvroOutputFile[ManifestEntry]):
    """Writes all entries as one block: PyIceberg would compress each of them for itself."""

    def __enter__(self) -> Self:
        self._entries: list[ManifestEntry] = []
        super().__enter__()
        return self

    def write_block(self, objects: list[ManifestEntry]) -> None:
        self._entries += objects

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().write_block(self._entries)
        super().__exit__(kind, error, trace)


class _DataManifestWriter(ManifestWriterV2):
    """Writes a manifest of data files."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return _OneBlock(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class _DeleteManifestWriter(_DataManifestWriter):
    """Writes a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


@dataclass(slots=True)
class _Writing:
    """The manifests of one snapshot as they are written."""

    io: LakeIO
    metadata: TableMetadata
    snapshot_id: int
    sequence: int
    delete_manifests: list[ManifestFile] = field(default_factory=list)

    def files(self, before: TableFiles, changes: FileChanges) -> TableFiles:
        """The files after the change; manifests are written for those that changed."""
        removed = changes.removed
        data = {path: live for path, live in before.data.items() if path not in removed}
        data |= {file.file_path: self._new(file) for file in changes.added}
        deletes = {path: live for path, live in before.deletes.items() if path not in removed}
        gone = [live for path, live in before.deletes.items() if path in removed]
        gone += [live for path, live in deletes.items() if path in changes.deletes]
        # After `gone` was taken: the replaced delete files have to be listed as deleted.
        deletes |= {path: self._new(file) for path, file in changes.deletes.items()}
        # They may concern any data file, so they stay until the last one is gone.
        shared = dict(before.shared_deletes) if data else {}
        gone += [live for path, live in before.shared_deletes.items() if path not in shared]
        after = TableFiles(data, deletes, shared)
        after.manifests = list(self._data_manifests(before, changes))
        self._write_deletes(after, gone)
        return after

    def _new(self, file: DataFile) -> LiveFile:
        return LiveFile(file, self.snapshot_id, self.sequence, self.sequence)

    def _data_manifests(self, before: TableFiles, changes: FileChanges) -> Iterator[Manifest]:
        kept = []
        rewritten = []
        # A large one is not merged again and again: each merge writes all of its entries.
        small = [each for each in before.manifests if len(each.paths) <= MERGED_FILES_MAX]
        merged = set()
        if len(small) >= MANIFESTS_MAX:
            merged = {each.manifest.manifest_path for each in small}
        for each in before.manifests:
            # It lists only files that an earlier snapshot removed.
            if not each.paths:
                continue
            if each.paths & changes.removed or each.manifest.manifest_path in merged:
                rewritten.append(each)
            else:
                kept.append(each)
        yield from kept
        paths = frozenset().union(*(each.paths for each in rewritten))
        # One manifest for everything that changes in this snapshot.
        new = [self._added(file) for file in changes.added]
        old = [self._existing(before.data[path]) for path in sorted(paths - changes.removed)]
        gone = [self._deleted(before.data[path]) for path in sorted(paths & changes.removed)]
        if entries := old + new + gone:
            manifest = self._write(_DataManifestWriter, entries)
            added = {file.file_path for file in changes.added}
            yield Manifest(manifest, (paths - changes.removed) | added)

    def _write_deletes(self, after: TableFiles, gone: list[LiveFile]) -> None:
        """All delete files in one manifest: one per data file, and each change replaces some."""
        every = [*after.deletes.values(), *after.shared_deletes.values()]
        entries = []
        for live in every:
            if live.snapshot_id == self.snapshot_id:
                entries.append(self._added(live.file))
            else:
                entries.append(self._existing(live))
        entries += [self._deleted(live) for live in gone]
        if entries:
            self.delete_manifests.append(self._write(_DeleteManifestWriter, entries))

    def _write(self, writer: type[ManifestWriterV2], entries: list[ManifestEntry]) -> ManifestFile:
        location = f"{self.metadata.location}/metadata/{uuid.uuid4()}.avro"
        schema = self.metadata.schema()
        output = self.io.new_output(location)
        with writer(
            UNPARTITIONED_PARTITION_SPEC, schema, output, self.snapshot_id, "deflate"
        ) as writing:
            for entry in entries:
                writing.add_entry(entry)
        manifest = writing.to_manifest_file()
        # Inherited by readers; the manifest may be listed again by later snapshots.
        manifest.sequence_number = self.sequence
        if manifest.min_sequence_number == UNASSIGNED_SEQ:
            manifest.min_sequence_number = self.sequence
        return manifest

    def _added(self, file: DataFile) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self.snapshot_id,
            # Readers inherit it from the manifest, as Iceberg's specification asks for added files.
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )

    def _existing(self, live: LiveFile) -> ManifestEntry:
        return _entry(ManifestEntryStatus.EXISTING, live, live.snapshot_id)

    def _deleted(self, live: LiveFile) -> ManifestEntry:
        return _entry(ManifestEntryStatus.DELETED, live, self.snapshot_id)


def _entry(status: ManifestEntryStatus, live: LiveFile, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=live.sequence,
        file_sequence_number=live.file_sequence,
        data_file=live.file,
    )
