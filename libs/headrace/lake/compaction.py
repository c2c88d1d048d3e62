"""Rewrites small data files, and files with many deleted rows, as larger files without these.

A rewrite changes no row and no order within a file. Files are joined with those of about their own
size, so each row is rewritten a few times at most, however many cuts there are. New files
count only once a cut refers to them; a rewrite that is given up leaves files that no cut knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headrace.lake import data_files
from headrace.lake.catalog import TableName
from headrace.lake.columns import Ints
from headrace.lake.data_files import RowsWriter
from headrace.lake.files import LakeFiles
from headrace.lake.snapshots import LiveFile, TableFiles
from headrace.lake.writer import LakeWriter
from headrace.process.failpoint import failpoint
from headrace.settings.lake import LakeSettings

# Rows of one read.
READ_ROWS = 16_384
# Files of one tier differ in size by this factor at most; smaller ones are all in the first.
_TIER_FACTOR = 8
_FIRST_TIER_BYTES = 64 << 10
# Deleted rows in smaller files matter less than the work of rewriting them again and again.
_DELETED_BYTES_MIN = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """Which files deserve a rewrite, and how much is rewritten for one cut."""

    target_bytes: int
    files_min: int
    deleted_share: float
    bytes_max: int
    deleted_bytes_min: int = _DELETED_BYTES_MIN
    tiered: bool = True

    @classmethod
    def of(cls, settings: LakeSettings) -> CompactionLimits:
        """The limits in the settings."""
        return cls(
            settings.compact_target_bytes,
            settings.compact_files_min,
            settings.compact_deleted_share,
            settings.compact_bytes_max,
        )

    def everything(self) -> CompactionLimits:
        """Limits of a compaction by hand: all small files are joined."""
        return replace(self, files_min=2, deleted_share=0.0, deleted_bytes_min=0, tiered=False)


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """A data file, and the files with its deleted positions."""

    location: str
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files that are rewritten together."""

    inputs: tuple[RewriteInput, ...]
    bytes: int

    @property
    def locations(self) -> list[str]:
        """The data files."""
        return [each.location for each in self.inputs]


@dataclass(frozen=True, slots=True)
class _Candidate:
    input: RewriteInput
    size: int
    # The size without deleted rows.
    living: int
    share: float


def plan(files: TableFiles, limits: CompactionLimits) -> list[Rewrite]:
    """The rewrites that a table is worth now, as many as one cut may take."""
    candidates = [_candidate(files, live) for live in _ordered(files)]
    # Two reasons for a rewrite: many small files, or many deleted rows in a large one.
    small = _small(candidates, limits)
    chosen = [
        each
        for each in candidates
        if each.input.location in small
        or (each.share > limits.deleted_share and each.size >= limits.deleted_bytes_min)
    ]
    rewrites = []
    left = limits.bytes_max
    for group in _groups(chosen, limits.target_bytes):
        # A single file is worth it only for its deleted rows.
        if len(group) == 1 and group[0].share <= limits.deleted_share:
            continue
        if left <= 0:
            break
        size = sum(each.size for each in group)
        rewrites.append(Rewrite(tuple(each.input for each in group), size))
        left -= size
    return rewrites


def _ordered(files: TableFiles) -> list[LiveFile]:
    # Neighbours in time are joined, so that the statistics of columns that grow, such as times,
    # stay selective.
    return sorted(files.data.values(), key=lambda live: (live.file_sequence, live.file.file_path))


def _candidate(files: TableFiles, live: LiveFile) -> _Candidate:
    path = live.file.file_path
    own = files.deletes.get(path)
    deletes = []
    share = 0.0
    if own is not None:
        deletes = [own.file.file_path]
        share = min(1.0, own.file.record_count / live.file.record_count)
    size = live.file.file_size_in_bytes
    living = int(size * (1 - share))
    # Shared delete files are read for every input, because any of them may name it.
    return _Candidate(RewriteInput(path, (*deletes, *files.shared_deletes)), size, living, share)


def _small(candidates: Sequence[_Candidate], limits: CompactionLimits) -> set[str]:
    """The files of the largest tier with enough of them, and of all tiers below."""
    # Two of a larger size would not fit into one file of the target size.
    small = [each for each in candidates if each.living < limits.target_bytes // 2]
    tiers: dict[int, int] = {}
    for each in small:
        tier = _tier(each, limits)
        tiers[tier] = tiers.get(tier, 0) + 1
    full = [tier for tier, count in tiers.items() if count >= limits.files_min]
    if not full:
        return set()
    # Smaller tiers go along: their files would soon be joined into this one anyway.
    return {each.input.location for each in small if _tier(each, limits) <= max(full)}


def _tier(candidate: _Candidate, limits: CompactionLimits) -> int:
    if not limits.tiered or candidate.living <= _FIRST_TIER_BYTES:
        return 0
    return 1 + int(math.log(candidate.living / _FIRST_TIER_BYTES, _TIER_FACTOR))


def _groups(candidates: Sequence[_Candidate], target_bytes: int) -> Iterator[list[_Candidate]]:
    group: list[_Candidate] = []
    for each in candidates:
        group.append(each)
        if sum(one.living for one in group) >= target_bytes:
            yield group
            group = []
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class Compaction:
    """The outcome of a step of compaction."""

    tables: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class CompactWork:
    """A rewrite of a table's files, and where the new ones go."""

    table: TableName
    schema: Schema
    folder: str
    rewrite: Rewrite
    target_bytes: int


def worth(writer: LakeWriter, limits: CompactionLimits) -> list[CompactWork]:
    """The rewrites for the writer's next cut, while none of its changes waits."""
    assert not writer.changed, "changes that wait may delete rows of these files"
    found: list[CompactWork] = []
    left = limits.bytes_max
    for name, table in writer.snapshots.items():
        if left <= 0:
            break
        for rewrite in plan(table.files, replace(limits, bytes_max=left)):
            schema = table.metadata.schema()
            folder = table.metadata.location
            found.append(CompactWork(name, schema, folder, rewrite, limits.target_bytes))
            left -= rewrite.bytes
    return found


def rewritten(files: LakeFiles, work: CompactWork) -> list[DataFile]:
    """The files of one rewrite."""
    failpoint("lake.before_compaction")
    inputs = work.rewrite.inputs
    return compact_files(files, work.schema, work.folder, inputs, work.target_bytes)


def replaced(
    writer: LakeWriter, works: Sequence[CompactWork], written: Sequence[Sequence[DataFile]]
) -> Compaction:
    """Replace the files of rewrites for the next cut."""
    failpoint("lake.after_compaction")
    for work, files in zip(works, written, strict=True):
        writer.replace_files(work.table, work.rewrite.locations, files)
    return Compaction(
        len({work.table for work in works}),
        sum(len(work.rewrite.inputs) for work in works),
        sum(len(files) for files in written),
        sum(work.rewrite.bytes for work in works),
    )


def compact(files: LakeFiles, writer: LakeWriter, limits: CompactionLimits) -> Compaction:
    """Rewrite files for the writer's next cut, while none of its changes waits."""
    works = worth(writer, limits)
    return replaced(writer, works, [rewritten(files, work) for work in works])


def compact_files(
    files: LakeFiles,
    schema: Schema,
    folder: str,
    inputs: Sequence[RewriteInput],
    target_bytes: int,
) -> list[DataFile]:
    """Write the rows of files that are not deleted, in their order, as files of a table's folder.

    Columns are found by their field IDs. Memory depends on the largest file, not on their number.
    """
    written: list[DataFile] = []
    writer: RowsWriter | None = None
    for rows in data_files.gathered(_living(files, schema, inputs)):
        # Created with the first row: files whose rows are all deleted produce none.
        writer = writer or RowsWriter(files, folder, schema)
        writer.write(rows)
        if writer.size >= target_bytes:
            written.append(writer.close())
            writer = None
    if writer is not None:
        written.append(writer.close())
    return written


def _living(files: LakeFiles, schema: Schema, inputs: Sequence[RewriteInput]) -> Iterator[pa.Table]:
    for each in inputs:
        deleted = _deleted(files, each)
        start = 0
        for rows in data_files.read_rows(files, each.location, schema, READ_ROWS):
            here = deleted[(deleted >= start) & (deleted < start + rows.num_rows)] - start
            lives = np.ones(rows.num_rows, np.bool_)
            lives[here] = False
            start += rows.num_rows
            if lives.any():
                yield rows.filter(pa.array(lives))


def _deleted(files: LakeFiles, each: RewriteInput) -> Ints:
    none: Ints = np.array([], np.int64)
    found = [data_files.read_positions(files, location) for location in each.deletes]
    return np.unique(np.concatenate([none, *(one.get(each.location, none) for one in found)]))
