"""Verifies an archive: everything its files say about themselves and about each other.

Reads all of it, because a checksum proves nothing until it is compared with the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.archive import chain, layout, read_protocol
from headrace.archive.bases import Bases
from headrace.archive.errors import ArchiveError, WalFileCollectedError
from headrace.archive.file_format import ALL
from headrace.archive.metadata import WalFileInfo
from headrace.archive.reader import WalFile, WalReader
from headrace.archive.registry import registered
from headrace.archive.store import Store
from headrace.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class Finding:
    """A file, and what is wrong with it. A gap that the file records is reported, and is not a
    fault.
    """

    file_id: int
    fault: str
    is_fault: bool = True


@dataclass(slots=True)
class ArchiveTotals:
    """What was looked at."""

    files: int = 0
    bases: int = 0
    rows: int = 0
    bytes: int = 0
    faults: int = 0


def verify(
    reader: WalReader, totals: ArchiveTotals, first: int = 1, stop: int | None = None
) -> Iterator[Finding]:
    """Every fault of the files from one id to before another."""
    for finding in _findings(reader, totals, first, stop):
        # A gap is the truth about what was lost, and no damage.
        totals.faults += finding.is_fault
        yield finding


def verify_bases(store: Store, totals: ArchiveTotals) -> Iterator[str]:
    """Every fault of the base snapshots."""
    bases = Bases(store)
    for listed in bases.all():
        record = listed.record
        totals.bases += 1
        for part in record.parts:
            try:
                totals.rows += sum(1 for _ in bases.entries(record, part))
            except ArchiveError as error:
                totals.faults += 1
                yield str(error.args[0])
            totals.bytes += part.size


def _findings(
    reader: WalReader, totals: ArchiveTotals, first: int, stop: int | None
) -> Iterator[Finding]:
    before: WalFileInfo | None = None
    due: int | None = None
    for file_id, item in reader.list(first, stop):
        if due is not None and file_id > due:
            yield _missing(due, file_id)
        due = file_id + 1
        totals.files += 1
        totals.bytes += item.size
        try:
            opened = reader.run(
                read_protocol.open_file(file_id, reader.reading.options, reader.reading.seen)
            )
            if opened is None:
                continue
            yield from _gap(opened.info)
            if before is not None and before.next_id == file_id:
                yield from (Finding(file_id, fault) for fault in chain.faults(opened.info, before))
            # Compared with the next one even if its rows are damaged.
            before = opened.info
            for batch in WalFile(reader, opened).batches(ALL):
                totals.rows += batch.num_rows
        except WalFileCollectedError:
            # Collected since it was listed.
            continue
        except ArchiveError as error:
            yield Finding(
                file_id, str(error.args[0]).removeprefix(f"{layout.described(file_id)}: ")
            )
    # A caller that asks for a part expects more files after it.
    if stop is None:
        yield from _behind_the_end(reader, due)


def _gap(info: WalFileInfo) -> Iterator[Finding]:
    if info.gap is not None:
        told = f"{format_lsn(info.gap.after)} to before {format_lsn(info.gap.up_to)}"
        yield Finding(info.id, f"records a gap: {told} ({info.gap.reason})", is_fault=False)


def _behind_the_end(reader: WalReader, due: int | None) -> Iterator[Finding]:
    """Files that a listing lacks, but that a registered reader has read."""
    for known in registered(reader.store):
        if known.next_id > (due or layout.FIRST_ID):
            yield _missing(
                due or layout.FIRST_ID, known.next_id, f" (the reader {known.name} has read it)"
            )


def _missing(first: int, stop: int, why: str = "") -> Finding:
    """Files that are not there, though ids have no gaps."""
    if stop == first + 1:
        fault = "is missing"
    else:
        fault = f"is missing, and so are all up to file {stop - 1}"
    return Finding(first, f"{fault}{why}")
