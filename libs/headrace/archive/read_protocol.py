"""Reading an archive, as steps: generators that yield requests to the store and get their answers.

One text for the blocking reader and the asynchronous one. No I/O here: what carries the requests
out is `reader`'s and `asynchronous`'.

A file that is not there was not written yet, was collected, or is missing. Ids have no gaps, and
garbage collection removes the oldest files and never the last one: where a later file is there it
was collected or is missing, and where an earlier one is there too, it is missing. A reader that
polls, and has looked at a listing not long ago, need not look again: its polling costs one request.
A reader that won't wait always looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pyarrow.parquet import FileMetaData

from headrace.archive import chain, layout, segment
from headrace.archive.errors import (
    ArchiveError,
    WalFileCollectedError,
    WalFileCorruptError,
    WalFileMissingError,
    naming,
)
from headrace.archive.metadata import SegmentInfo
from headrace.archive.segment import Groups, RowSelection
from headrace.archive.store import (
    ByteRange,
    Fetched,
    Get,
    Head,
    Names,
    ObjectMetadata,
    Request,
    Wait,
)
from headrace.contract.table_names import table_of

T = TypeVar("T")
Steps = Generator[Request, Any, T]
FIND_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class WalReaderOptions:
    """How an archive is read."""

    # "schema.table", as commands name tables (`headrace.contract.table_names`); none given: all of
    # them.
    tables: tuple[str, ...] = ()
    poll_interval_s: float = 0.5
    # Fetched with a file's footer: small files need no second request.
    tail_bytes: int = 256 * 1024
    # While polling for the next file, how often a listing is asked for whether a later one is there
    # already.
    recheck_s: float = 5.0
    verify: bool = True
    # Raise at a gap in the archive, or give it as an entry of kind `gap`.
    raise_at_gap: bool = True
    timeout_s: float = 30.0
    # obstore's: access_key_id, endpoint, region …; what is not here comes from the environment.
    store_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[tuple[str, str], ...]:
        return tuple(table_of(table) for table in self.tables)


@dataclass(slots=True)
class ReaderMetrics:
    """What a reader has done so far."""

    requests: int = 0
    not_found: int = 0
    bytes: int = 0
    files: int = 0
    # Not read at all, and of the others the row groups that were not.
    files_skipped: int = 0
    groups_skipped: int = 0
    rows: int = 0

    def count(self, answer: object) -> None:
        self.requests += 1
        self.not_found += answer is None
        if isinstance(answer, Fetched):
            self.bytes += len(answer.data)


@dataclass(slots=True)
class Seen:
    """What a reader knows of the files that are there."""

    # The highest file that it opened or saw listed.
    highest: int = 0
    # When it last looked, there was none after this one.
    last: int = 0
    looked_at: float = float("-inf")

    def note(self, file_id: int) -> None:
        self.highest = max(self.highest, file_id)


class ListedFile(NamedTuple):
    """A file that a listing shows."""

    id: int
    metadata: ObjectMetadata

    @property
    def next_id(self) -> int:
        return self.id + 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is there: its own account, and the bytes that came with it."""

    info: SegmentInfo
    footer: FileMetaData
    object: ObjectMetadata
    tail: bytes

    @property
    def data(self) -> bytes | None:
        """The whole file, where it is small."""
        if len(self.tail) == self.object.size:
            return self.tail
        return None


def open_file(
    file_id: int, options: WalReaderOptions, seen: Seen, *, polling: bool = False
) -> Steps[Opened | None]:
    """The file with this id; None when it is not there yet; raises when it is there no more."""
    if file_id < layout.FIRST_ID:
        raise WalFileMissingError(
            f"there never was a file {file_id}",
            remedy=f"Ids of files begin with {layout.FIRST_ID}.",
        )
    name = layout.file_name(file_id)
    fetched: Fetched | None = yield Get(name, options.tail_bytes)
    if fetched is None:
        if not (yield from _has_later(file_id, options, seen, polling=polling)):
            return None
        # Files are made in order: one that was made between the two requests is there now.
        fetched = yield Get(name, options.tail_bytes)
    if fetched is None:
        raise (yield from gone(file_id, seen))
    with naming(file_id):
        need = segment.footer_bytes(fetched.data) + segment.SEAL_BYTES
        if len(fetched.data) < need <= fetched.metadata.size:
            # A footer of very many tables.
            fetched = yield Get(name, need)
            if fetched is None:
                raise (yield from gone(file_id, seen))
        footer = segment.footer_of(fetched.data)
        opened = Opened(segment.info_of(footer), footer, fetched.metadata, fetched.data)
        if fault := chain.name_fault(opened.info, file_id):
            raise WalFileCorruptError(fault)
    seen.note(file_id)
    return opened


def _has_later(
    file_id: int, options: WalReaderOptions, seen: Seen, *, polling: bool
) -> Steps[bool]:
    """Whether this file, or one with a higher id, is or was there."""
    if file_id <= seen.highest:
        return True
    if polling and file_id >= seen.last and time.monotonic() - seen.looked_at < options.recheck_s:
        return False
    if (yield from _is_later_there(file_id)):
        return True
    before = file_id - 1
    if layout.FIRST_ID <= before <= seen.highest and (yield Head(layout.file_name(before))) is None:
        # The last file is never collected: the end is lost, or this file was made since, and that
        # one collected.
        return True
    seen.last = file_id
    seen.looked_at = time.monotonic()
    return False


def _is_later_there(file_id: int) -> Steps[bool]:
    later: list[ObjectMetadata] = yield Names(layout.file_name(file_id), 1)
    if any(layout.file_id(item.location) is not None for item in later):
        return True
    # A listing may be older than what it lists: a request for the next file is not.
    return (yield Head(layout.file_name(file_id + 1))) is not None


def begin_at_end(file_id: int, options: WalReaderOptions, seen: Seen) -> Steps[Opened | None]:
    """Where a reading begins with a file that is not there yet: the one before must be, as the
    archive's last one.
    """
    if file_id == layout.FIRST_ID or (yield Head(layout.file_name(file_id - 1))) is not None:
        return None
    # It may be that since then this one was made, and that one collected.
    opened = yield from open_file(file_id, options, seen)
    if opened is None:
        raise WalFileMissingError(
            f"the archive ends before {layout.described(file_id - 1)}: it can't be read from file "
            f"{file_id} on"
        )
    return opened


def gone(file_id: int, seen: Seen) -> Steps[ArchiveError]:
    """Why a file is there no more. The oldest files are collected first, so that this is asked
    after it was missed.
    """
    first = yield from first_left()
    if first > file_id:
        return WalFileCollectedError(
            f"file {file_id} was removed by garbage collection: the first one is now {first}"
        )
    if (yield from _is_later_there(file_id)):
        return WalFileMissingError(
            f"{layout.described(file_id)} is missing, though a later file is there"
        )
    lost = min(file_id, max(seen.highest, layout.FIRST_ID))
    return WalFileMissingError(
        f"{layout.described(lost)} is missing: it was there, at the end of the archive"
    )


def list_files(first: int, stop: int | None, seen: Seen | None = None) -> Steps[list[ListedFile]]:
    """The files that are there, from an id to before another."""
    listed = yield from _list_files(first, stop)
    late = bool(listed) and listed[0].id > first > layout.FIRST_ID
    if late or (listed and listed[-1].id - listed[0].id >= len(listed)):
        # A folder that is read while files are made may show a later one without an earlier one:
        # once more it can't.
        listed = yield from _list_files(first, listed[-1].next_id)
    if listed and seen is not None:
        seen.note(listed[-1].id)
    return listed


def _list_files(first: int, stop: int | None) -> Steps[list[ListedFile]]:
    found: list[ObjectMetadata] = yield Names(layout.file_name(max(first, layout.FIRST_ID) - 1))
    numbered = [(layout.file_id(item.location), item) for item in found]
    return [
        ListedFile(number, item)
        for number, item in numbered
        if number is not None and (stop is None or number < stop)
    ]


@dataclass(frozen=True, slots=True)
class Content:
    """A file's bytes: all of them, or those with the row groups that are wanted, and nothing
    between.
    """

    data: bytes | bytearray
    whole: bool
    # The row groups that were asked for.
    wanted: tuple[int, ...] = ()


def content(
    opened: Opened, chosen: Groups, options: WalReaderOptions, seen: Seen
) -> Steps[Content]:
    """What must be read of a file. Its checksum needs all of it; without it, pages have their own."""
    if opened.data is not None:
        return Content(opened.data, True)
    size = opened.object.size
    name = layout.file_name(opened.info.id)
    part = chosen.stop - chosen.start
    if part <= size // 2 and (opened.info.page_checksums or not options.verify):
        piece: Fetched | None = yield ByteRange(name, chosen.start, chosen.stop)
        if piece is None:
            raise (yield from gone(opened.info.id, seen))
        return Content(
            segment.assembled(size, chosen.start, piece.data, opened.tail), False, chosen.wanted
        )
    fetched: Fetched | None = yield Get(name)
    if fetched is None:
        raise (yield from gone(opened.info.id, seen))
    return Content(fetched.data, True)


def head(file_id: int) -> Steps[ObjectMetadata | None]:
    found: ObjectMetadata | None = yield Head(layout.file_name(file_id))
    return found


def first_left() -> Steps[int]:
    """The id of the first file that is left; of the first of all where there is none yet."""
    found: list[ObjectMetadata] = yield Names(layout.file_name(layout.FIRST_ID - 1), 1)
    if found:
        number = layout.file_id(found[0].location)
    else:
        number = layout.FIRST_ID
    if number is None:
        # Something else lies among the files.
        listed = yield from list_files(layout.FIRST_ID, None)
        number = listed[0].id if listed else layout.FIRST_ID
    return number


def find(
    past: Callable[[SegmentInfo], bool], options: WalReaderOptions, seen: Seen
) -> Steps[tuple[int, Opened | None]]:
    """The id of the first file that `past` is true of, by halving; the one after the last file
    where it is of none.

    `past` must stay true once it is. With the id comes the file, where it is the first one that is
    left.
    """
    for _ in range(FIND_ATTEMPTS):
        files = yield from list_files(layout.FIRST_ID, None, seen)
        try:
            return (yield from _halved(files, past, options, seen))
        except WalFileCollectedError:
            # Collected since it was listed: what is left now is what counts.
            continue
    raise WalFileCollectedError("files are removed faster than a place is found among them")


def _halved(
    files: list[ListedFile],
    past: Callable[[SegmentInfo], bool],
    options: WalReaderOptions,
    seen: Seen,
) -> Steps[tuple[int, Opened | None]]:
    low = 0
    high = len(files)
    first = None
    while low < high:
        middle = (low + high) // 2
        opened = yield from open_file(files[middle].id, options, seen)
        if opened is not None and past(opened.info):
            high = middle
            first = opened if middle == 0 else None
        else:
            low = middle + 1
    if low < len(files):
        return files[low].id, first
    return (files[-1].next_id if files else layout.FIRST_ID), None


def await_file(file_id: int, options: WalReaderOptions, seen: Seen) -> Steps[Opened]:
    """The file with this id, once it is there."""
    while True:
        opened = yield from open_file(file_id, options, seen, polling=True)
        if opened is not None:
            return opened
        yield Wait(options.poll_interval_s)


def interesting(info: SegmentInfo, selection: RowSelection) -> bool:
    """Whether a file may have rows that are wanted: by its own account alone."""
    # What a gap lacks may have been anywhere in it.
    low = info.first.lsn if info.gap is None else info.gap.after
    if selection.before_lsn is not None and low >= selection.before_lsn:
        return False
    if selection.after is not None and info.last <= selection.after:
        return False
    if selection.from_time_us is not None and info.time_us < selection.from_time_us:
        return False
    if info.gap is not None or not selection.tables:
        return True
    return any(selection.wants_table(table.schema, table.table) for table in info.tables)
