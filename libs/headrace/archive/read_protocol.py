"""Reading an archive, as steps: generators that yield requests to the store and receive the
answers.

The blocking and the asynchronous reader share this code. It does no I/O: `reader` and
`asynchronous` execute the requests.

A file that doesn't exist was not written yet, was collected, or is missing. Ids have no gaps, and
garbage collection removes the oldest files but never the last one. So if a later file exists, it
was collected or is missing; if an earlier one exists too, it is missing. A polling reader that has
listed the files recently doesn't list them again: a poll costs one request. A reader that doesn't
wait always lists them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pyarrow.parquet import FileMetaData

from headrace.archive import chain, file_format, layout
from headrace.archive.errors import (
    ArchiveError,
    WalFileCollectedError,
    WalFileCorruptError,
    WalFileMissingError,
    naming,
)
from headrace.archive.file_format import Groups, RowSelection
from headrace.archive.metadata import WalFileInfo
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
from headrace.contract.table_patterns import table_of

T = TypeVar("T")
Steps = Generator[Request, Any, T]
# Garbage collection may remove the file that the search is looking at; it rarely does so twice.
FIND_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class WalReaderOptions:
    """Options of a `WalReader` or `AsyncWalReader`."""

    # "schema.table", as commands name tables (`headrace.contract.table_patterns`); empty for all
    # tables.
    tables: tuple[str, ...] = ()
    # How long to wait before asking for the next file again.
    poll_interval_s: float = 0.5
    # Fetched along with a file's footer: small files need no second request.
    tail_bytes: int = 256 * 1024
    # How often to check by a listing, while polling for the next file, whether a later one exists.
    recheck_s: float = 5.0
    # Compare checksums; without, damage that Parquet does not notice is returned as data.
    verify: bool = True
    # Raise `WalGapError` at a gap in the archive, or return it as an entry of kind `gap`.
    raise_at_gap: bool = True
    # How long a request to the store may take.
    timeout_s: float = 30.0
    # Options of obstore: access_key_id, endpoint, region …; the environment provides the others.
    store_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[tuple[str, str], ...]:
        """The tables as pairs of schema and name."""
        return tuple(table_of(table) for table in self.tables)


@dataclass(slots=True)
class ReaderMetrics:
    """Counters of a reader."""

    # Requests to the store.
    requests: int = 0
    # Requests for files that don't exist.
    not_found: int = 0
    # Bytes that were fetched.
    bytes: int = 0
    # Files whose rows were read.
    files: int = 0
    # Files whose rows were not read, because none was wanted.
    files_skipped: int = 0
    # Row groups that were skipped in the files that were read.
    groups_skipped: int = 0
    # Rows that were returned.
    rows: int = 0

    def count(self, answer: object) -> None:
        """Internal: count a request."""
        self.requests += 1
        self.not_found += answer is None
        if isinstance(answer, Fetched):
            self.bytes += len(answer.data)


@dataclass(slots=True)
class Seen:
    """The files that a reader knows to exist."""

    # The highest file that it opened or saw in a listing.
    highest: int = 0
    # At the last listing, there was none after this one.
    last: int = 0
    looked_at: float = float("-inf")

    def note(self, file_id: int) -> None:
        self.highest = max(self.highest, file_id)


class ListedFile(NamedTuple):
    """A file that a listing shows."""

    # Its number.
    id: int
    # As its store describes it.
    metadata: ObjectMetadata

    @property
    def next_id(self) -> int:
        """The number of the next file."""
        return self.id + 1


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file: its metadata, and the bytes that were fetched with it."""

    info: WalFileInfo
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
    """The file with this id; None if it doesn't exist yet; raises if it no longer exists."""
    if file_id < layout.FIRST_ID:
        raise WalFileMissingError(
            f"there is no file {file_id}",
            remedy=f"File ids start with {layout.FIRST_ID}.",
        )
    name = layout.file_name(file_id)
    fetched: Fetched | None = yield Get(name, options.tail_bytes)
    if fetched is None:
        if not (yield from _has_later(file_id, options, seen, polling=polling)):
            return None
        # Files are created in order: one that was created between the two requests exists now.
        fetched = yield Get(name, options.tail_bytes)
    if fetched is None:
        raise (yield from gone(file_id, seen))
    with naming(file_id):
        # The tail that was fetched may not contain the whole footer.
        need = file_format.footer_bytes(fetched.data) + file_format.SEAL_BYTES
        if len(fetched.data) < need <= fetched.metadata.size:
            # A footer of very many tables.
            fetched = yield Get(name, need)
            if fetched is None:
                raise (yield from gone(file_id, seen))
        footer = file_format.footer_of(fetched.data)
        opened = Opened(file_format.info_of(footer), footer, fetched.metadata, fetched.data)
        # A copied or renamed file must not pass as another one: its content says which file it is.
        if fault := chain.name_fault(opened.info, file_id):
            raise WalFileCorruptError(fault)
    seen.note(file_id)
    return opened


def _has_later(
    file_id: int, options: WalReaderOptions, seen: Seen, *, polling: bool
) -> Steps[bool]:
    """Whether this file, or one with a higher id, exists or existed."""
    # It was seen before, or a later one was, so a miss means that it is gone.
    if file_id <= seen.highest:
        return True
    # A listing costs as much as many requests, and an archive that isn't written to would be listed
    # at every poll.
    if polling and file_id >= seen.last and time.monotonic() - seen.looked_at < options.recheck_s:
        return False
    if (yield from _is_later_there(file_id)):
        return True
    before = file_id - 1
    if layout.FIRST_ID <= before <= seen.highest and (yield Head(layout.file_name(before))) is None:
        # The last file is never collected: either the end is lost, or this file was created since,
        # and that one collected.
        return True
    seen.last = file_id
    seen.looked_at = time.monotonic()
    return False


def _is_later_there(file_id: int) -> Steps[bool]:
    later: list[ObjectMetadata] = yield Names(layout.file_name(file_id), 1)
    # Other objects may be stored among the files.
    if any(layout.file_id(item.location) is not None for item in later):
        return True
    # A listing may be older than its files: a request for the next file is current.
    return (yield Head(layout.file_name(file_id + 1))) is not None


def begin_at_end(file_id: int, options: WalReaderOptions, seen: Seen) -> Steps[Opened | None]:
    """Where to start if the requested file doesn't exist yet: the one before must exist, as the
    last file.
    """
    if file_id == layout.FIRST_ID or (yield Head(layout.file_name(file_id - 1))) is not None:
        return None
    # This file may have been created since, and that one collected.
    opened = yield from open_file(file_id, options, seen)
    if opened is None:
        raise WalFileMissingError(
            f"the archive ends before {layout.described(file_id - 1)}: it can't be read from "
            f"file {file_id} on"
        )
    return opened


def gone(file_id: int, seen: Seen) -> Steps[ArchiveError]:
    """The reason why a file no longer exists. Ask after it was missed: the oldest files are
    collected first.
    """
    first = yield from first_left()
    if first > file_id:
        return WalFileCollectedError(
            f"file {file_id} was removed by garbage collection: the first one is now {first}"
        )
    if (yield from _is_later_there(file_id)):
        return WalFileMissingError(
            f"{layout.described(file_id)} is missing, though a later file exists"
        )
    lost = min(file_id, max(seen.highest, layout.FIRST_ID))
    return WalFileMissingError(
        f"{layout.described(lost)} is missing: it used to be the end of the archive"
    )


def list_files(first: int, stop: int | None, seen: Seen | None = None) -> Steps[list[ListedFile]]:
    """The existing files, from one id to before another."""
    listed = yield from _list_files(first, stop)
    late = bool(listed) and listed[0].id > first > layout.FIRST_ID
    if late or (listed and listed[-1].id - listed[0].id >= len(listed)):
        # A folder that is listed while files are created may show a later one without an earlier
        # one; a second listing can't.
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
    """A file's bytes: all of them, or those of the wanted row groups, and nothing in between."""

    data: bytes | bytearray
    whole: bool
    # The row groups that were requested.
    wanted: tuple[int, ...] = ()


def content(
    opened: Opened, chosen: Groups, options: WalReaderOptions, seen: Seen
) -> Steps[Content]:
    """The parts of a file to read. Verifying its checksum takes all of it; without that, pages have
    their own.
    """
    if opened.data is not None:
        return Content(opened.data, True)
    size = opened.object.size
    name = layout.file_name(opened.info.id)
    part = chosen.stop - chosen.start
    # For most of a file, one request for all of it is quicker than a second round trip.
    if part <= size // 2 and (opened.info.page_checksums or not options.verify):
        piece: Fetched | None = yield ByteRange(name, chosen.start, chosen.stop)
        if piece is None:
            raise (yield from gone(opened.info.id, seen))
        return Content(
            file_format.assembled(size, chosen.start, piece.data, opened.tail), False, chosen.wanted
        )
    fetched: Fetched | None = yield Get(name)
    if fetched is None:
        raise (yield from gone(opened.info.id, seen))
    return Content(fetched.data, True)


def head(file_id: int) -> Steps[ObjectMetadata | None]:
    found: ObjectMetadata | None = yield Head(layout.file_name(file_id))
    return found


def first_left() -> Steps[int]:
    """The id of the first existing file; the first id of all if there is none yet."""
    found: list[ObjectMetadata] = yield Names(layout.file_name(layout.FIRST_ID - 1), 1)
    number = layout.file_id(found[0].location) if found else layout.FIRST_ID
    if number is None:
        # Other objects are stored among the files.
        listed = yield from list_files(layout.FIRST_ID, None)
        number = listed[0].id if listed else layout.FIRST_ID
    return number


def find(
    past: Callable[[WalFileInfo], bool], options: WalReaderOptions, seen: Seen
) -> Steps[tuple[int, Opened | None]]:
    """The id of the first file for which `past` is true, by bisection; the one after the last file
    if there is none.

    `past` must stay true once it is. If that is the first existing file, it is returned as well.
    """
    for _ in range(FIND_ATTEMPTS):
        files = yield from list_files(layout.FIRST_ID, None, seen)
        try:
            return (yield from _halved(files, past, options, seen))
        except WalFileCollectedError:
            # Collected since it was listed: list again.
            continue
    raise WalFileCollectedError("files are removed faster than the start can be found among them")


def _halved(
    files: list[ListedFile],
    past: Callable[[WalFileInfo], bool],
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
    """The file with this id, once it exists."""
    while True:
        opened = yield from open_file(file_id, options, seen, polling=True)
        if opened is not None:
            return opened
        yield Wait(options.poll_interval_s)


def interesting(info: WalFileInfo, selection: RowSelection) -> bool:
    """Whether a file may have rows that are wanted: by its own account."""
    # The changes that a gap lacks may have been anywhere in it.
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
