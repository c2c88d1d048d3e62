"""Reading an archive, as steps: generators that yield requests to the store and get their answers.

One text for the blocking reader and the asynchronous one. Pure: what carries the requests out is `reader`'s and
`asynchronous`'.

A file that is not there either was never written or was collected. Ids have no gaps, and garbage collection never takes
the last file: a file with a higher id tells that it was collected. A reader that holds the file before the one it asks
for, and asked not long ago, need not look: its polling costs one request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.archive import layout, segment
from headrace.archive.errors import WalFileCollectedError
from headrace.archive.metadata import SegmentInfo
from headrace.archive.store import Fetched, Get, Head, Names, ObjectMetadata, Request, Wait

T = TypeVar("T")
Steps = Generator[Request, Any, T]


@dataclass(frozen=True, slots=True)
class WalReaderOptions:
    """How an archive is read."""

    # "schema.table"; none given: all of them.
    tables: tuple[str, ...] = ()
    poll_interval_s: float = 0.5
    # Fetched with a file's footer: small files need no second request.
    tail_bytes: int = 256 * 1024
    # For how long having seen the file before makes a missing one "not yet there" without another look.
    recheck_s: float = 60.0
    verify: bool = True
    # Raise at a gap in the archive, or give it as an entry of kind `gap`.
    raise_at_gap: bool = True
    timeout_s: float = 30.0
    # obstore's: access_key_id, endpoint, region …; what is not here comes from the environment.
    store_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[tuple[str, str], ...]:
        return tuple((schema or "public", name) for schema, _, name in (table.rpartition(".") for table in self.tables))


@dataclass(slots=True)
class ReaderMetrics:
    """What a reader has done so far."""

    requests: int = 0
    not_found: int = 0
    bytes: int = 0
    files: int = 0
    files_skipped: int = 0
    rows: int = 0

    def count(self, answer: object) -> None:
        self.requests += 1
        self.not_found += answer is None
        if isinstance(answer, Fetched):
            self.bytes += len(answer.data)


@dataclass(slots=True)
class Seen:
    """The highest file that a reader found, and when."""

    file_id: int = 0
    at: float = float("-inf")

    def note(self, file_id: int) -> None:
        if file_id >= self.file_id:
            self.file_id, self.at = file_id, time.monotonic()


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is there: its own account, and the bytes that came with it."""

    info: SegmentInfo
    object: ObjectMetadata
    tail: bytes

    @property
    def data(self) -> bytes | None:
        """The whole file, where it is small."""
        return self.tail if len(self.tail) == self.object.size else None


def open_file(file_id: int, options: WalReaderOptions, seen: Seen) -> Steps[Opened | None]:
    """The file with this id; None when it is not there yet; raises when it was collected."""
    name = layout.file_name(file_id)
    fetched: Fetched | None = yield Get(name, options.tail_bytes)
    if fetched is None:
        fresh = file_id == seen.file_id + 1 and time.monotonic() - seen.at < options.recheck_s
        if not fresh and (yield from is_collected(file_id)):
            raise WalFileCollectedError(f"file {file_id} was removed by garbage collection")
        return None
    need = segment.footer_bytes(fetched.data)
    if need > len(fetched.data):
        # A footer of very many tables.
        fetched = yield Get(name, need)
        if fetched is None:
            raise WalFileCollectedError(f"file {file_id} was removed by garbage collection")
    seen.note(file_id)
    return Opened(segment.info_of(fetched.data), fetched.metadata, fetched.data)


def is_collected(file_id: int) -> Steps[bool]:
    """Whether a file that is missing was there once: then there is one with a higher id."""
    later: list[ObjectMetadata] = yield Names(layout.file_name(file_id), 1)
    return any(layout.file_id(item.location) is not None for item in later)


def list_files(first: int, stop: int | None) -> Steps[list[tuple[int, ObjectMetadata]]]:
    """The files that are there, from an id to before another."""
    found: list[ObjectMetadata] = yield Names(layout.file_name(max(first, layout.FIRST_ID) - 1))
    numbered = [(layout.file_id(item.location), item) for item in found]
    return [(number, item) for number, item in numbered if number is not None and (stop is None or number < stop)]


def whole(opened: Opened) -> Steps[bytes]:
    """A file's bytes."""
    if opened.data is not None:
        return opened.data
    fetched: Fetched | None = yield Get(layout.file_name(opened.info.id))
    if fetched is None:
        raise WalFileCollectedError(f"file {opened.info.id} was removed by garbage collection")
    return fetched.data


def head(file_id: int) -> Steps[ObjectMetadata | None]:
    found: ObjectMetadata | None = yield Head(layout.file_name(file_id))
    return found


def find(past: Callable[[SegmentInfo], bool], options: WalReaderOptions, seen: Seen) -> Steps[int]:
    """The id of the first file that `past` is true of, by halving; the one after the last file where it is of none.

    `past` must stay true once it is.
    """
    files = yield from list_files(layout.FIRST_ID, None)
    low, high = 0, len(files)
    while low < high:
        middle = (low + high) // 2
        opened = yield from open_file(files[middle][0], options, seen)
        if opened is not None and past(opened.info):
            high = middle
        else:
            low = middle + 1
    if low < len(files):
        return files[low][0]
    return files[-1][0] + 1 if files else layout.FIRST_ID


def await_file(file_id: int, options: WalReaderOptions, seen: Seen) -> Steps[Opened]:
    """The file with this id, once it is there."""
    while True:
        opened = yield from open_file(file_id, options, seen)
        if opened is not None:
            return opened
        yield Wait(options.poll_interval_s)


def interesting(info: SegmentInfo, options: WalReaderOptions) -> bool:
    """Whether a file may have rows that are wanted: by its own account alone."""
    if info.gap is not None or not options.tables:
        return True
    there = {(table.schema, table.table) for table in info.tables}
    return any(table in there for table in options.wanted)
