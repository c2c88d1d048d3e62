"""Verifying an archive: everything its files promise of themselves and of each other.

Reads all of it, since a checksum that is not compared with the bytes says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.archive import steps
from headrace.archive.errors import ArchiveError
from headrace.archive.metadata import SegmentInfo
from headrace.archive.reader import WalFile, WalReader
from headrace.archive.segment import ALL
from headrace.lsn import ORIGIN, Position, format_lsn


@dataclass(frozen=True, slots=True)
class Finding:
    """A file, and what is wrong with it; a gap that it tells of is told, and is no fault."""

    file_id: int
    fault: str
    is_fault: bool = True


@dataclass(slots=True)
class Totals:
    """What was looked at."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    faults: int = 0


def verify(reader: WalReader, totals: Totals, first: int = 1, stop: int | None = None) -> Iterator[Finding]:
    """Every fault of the files from an id to before another."""
    before: SegmentInfo | None = None
    for file_id, item in reader.run(steps.list_files(first, stop)):
        totals.files += 1
        totals.bytes += item.size
        try:
            file = reader.get(file_id)
            if file is None:
                continue
            for finding in (*_chain(file.info, before, file_id), *_rows(file, totals)):
                totals.faults += finding.is_fault
                yield finding
            before = file.info
        except ArchiveError as error:
            totals.faults += 1
            before = None
            yield Finding(file_id, str(error))


def _chain(info: SegmentInfo, before: SegmentInfo | None, file_id: int) -> Iterator[Finding]:
    """Whether a file follows from the one before."""
    if info.id != file_id:
        yield Finding(file_id, f"says that it is file {info.id}")
    if info.gap is not None:
        told = f"{format_lsn(info.gap.after)} to {format_lsn(info.gap.up_to)}"
        yield Finding(file_id, f"tells of a gap: {told} ({info.gap.reason})", is_fault=False)
    if before is None:
        return
    if info.id != before.next_id:
        yield Finding(file_id, f"follows file {before.id}: {info.id - before.next_id} files are missing before it")
        return
    if info.previous != before.checksum:
        yield Finding(file_id, "was written behind another file than the one before it")
    if info.epoch < before.epoch:
        yield Finding(file_id, f"is of epoch {info.epoch}, the file before of {before.epoch}")
    if info.after is not None and info.after != before.last:
        yield Finding(file_id, f"follows the row {info.after}, the file before ends at {before.last}")
    if info.rows and info.first <= before.last:
        yield Finding(file_id, f"begins at {info.first}, the file before ends at {before.last}")


def _rows(file: WalFile, totals: Totals) -> Iterator[Finding]:
    """Whether the rows are those that the file tells of, in order."""
    rows, last = 0, ORIGIN
    for batch in file.batches(ALL):
        rows += batch.num_rows
        lsns, ordinals = batch.column("commit_lsn").to_numpy(), batch.column("ordinal").to_numpy()
        begins = Position(int(lsns[0]), int(ordinals[0]))
        rising = (lsns[1:] > lsns[:-1]) | ((lsns[1:] == lsns[:-1]) & (ordinals[1:] > ordinals[:-1]))
        if not rising.all() or (last != ORIGIN and begins <= last):
            yield Finding(file.id, "has rows out of order")
        last = Position(int(lsns[-1]), int(ordinals[-1]))
    totals.rows += rows
    if rows != file.info.rows:
        yield Finding(file.id, f"has {rows} rows, and says {file.info.rows}")
    if rows and last != file.info.last:
        yield Finding(file.id, f"ends at {last}, and says {file.info.last}")
