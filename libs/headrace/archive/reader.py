"""`WalReader`: reads the archive file by file and row by row. Blocking; see also `asynchronous`.

    reader = WalReader("s3://bucket/orders")
    for entry in reader.follow(from_id=stored.next_id):
        ...

Promises rows in commit order, each exactly once, whole files at a time. Raises at a missing file,
at one that does not follow the file before, at changed bytes and (by default) at a gap that the
archive records. Never writes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar

import pyarrow as pa

from headrace.archive import columns, file_format, read_protocol
from headrace.archive.chain import ReadFiles, RowsCheck
from headrace.archive.entry import RowEntry
from headrace.archive.errors import (
    ArchiveError,
    WalFileCollectedError,
    WalFileCorruptError,
    WalGapError,
    naming,
)
from headrace.archive.file_format import ALL, RowSelection
from headrace.archive.layout import FIRST_ID
from headrace.archive.metadata import WalFileInfo
from headrace.archive.read_protocol import (
    Content,
    ListedFile,
    Opened,
    ReaderMetrics,
    Seen,
    Steps,
    T,
    WalReaderOptions,
)
from headrace.archive.store import ObjectMetadata, Store, Wait
from headrace.lsn import Position, format_lsn

__all__ = ["ObjectMetadata", "WalFile", "WalReader", "WalReaderOptions"]


@dataclass(frozen=True, slots=True)
class ReadingStart:
    """Where to begin; the first file that is left, where nothing is given."""

    from_id: int | None = None
    from_lsn: int | None = None
    from_time: datetime | None = None
    # After a row that was read before.
    after: Position | None = None

    @property
    def selection(self) -> RowSelection:
        """The rows of the first files that are before it are left out."""
        after = self.after
        if self.from_lsn is not None:
            # Behind every position of the LSN before: ordinals stay below 2^62.
            after = Position(self.from_lsn - 1, 1 << 62)
        return RowSelection(
            after=after, from_time_us=None if self.from_time is None else self._time_us
        )

    @property
    def _time_us(self) -> int:
        assert self.from_time is not None, "asked only where there is one"
        return file_format.time_us(self.from_time)

    def lost(self, opened: Opened) -> str | None:
        """Why the first existing file lacks part of the request; None if it contains all of it."""
        info = opened.info
        begins = f"file {info.id}, the first one, starts at {format_lsn(info.from_lsn)}"
        if (
            # The file says which row came before it, so a reader that starts behind that row has
            # lost nothing.
            info.id > FIRST_ID
            and info.after is not None
            and (self.from_lsn is not None or self.after is not None)
        ):
            # Exact where the file says it: an LSN between two files would otherwise look like a
            # loss.
            asked = self.after or Position((self.from_lsn or 0) - 1, 1 << 62)
            if asked < info.after:
                return begins
            return None
        lsn = self.from_lsn
        if lsn is None and self.after:
            lsn = self.after.lsn
        if lsn is not None and lsn < info.from_lsn:
            return begins
        if self.from_time is not None and info.id > FIRST_ID:
            first = file_format.first_time_us(opened.footer)
            # Without a commit time in each row, it is unknown whether earlier files contained later
            # ones.
            if first is None or self._time_us < first:
                return f"files before {info.id} were removed by garbage collection"
        return None

    def past(self, info: WalFileInfo) -> bool:
        """Whether the start is in this file, or in an earlier one."""
        if self.from_lsn is not None:
            return info.last.lsn >= self.from_lsn
        if self.after is not None:
            return info.last > self.after
        if self.from_time is not None:
            return info.time_us >= self._time_us
        return True

    @property
    def is_anywhere(self) -> bool:
        """Whether no place is given: the reading begins with whichever file is left."""
        return self == ReadingStart()

    def first_id(self, options: WalReaderOptions, seen: Seen) -> Steps[int]:
        given = [
            place
            for place in (self.from_id, self.from_lsn, self.from_time, self.after)
            if place is not None
        ]
        if len(given) > 1:
            raise ArchiveError(
                "start from an id, an LSN, a time or after a position: more than one was given"
            )
        if self.from_id is not None:
            return self.from_id
        if not given:
            return (yield from read_protocol.first_left())
        found, first = yield from read_protocol.find(self.past, options, seen)
        if first is None or found > first.info.id:
            why = None
        else:
            why = self.lost(first)
        if why is not None:
            asked: object = given[0]
            if self.from_lsn is not None:
                asked = format_lsn(self.from_lsn)
            raise WalFileCollectedError(f"the archive does not reach back to {asked}: {why}")
        return found


@dataclass(slots=True)
class ArchiveReading:
    """The common state of both readers: options, counts, known files, and how bytes become rows."""

    options: WalReaderOptions
    metrics: ReaderMetrics = field(default_factory=ReaderMetrics)
    seen: Seen = field(default_factory=Seen)
    # Of `get`, file by file; who reads on by `files` has another.
    trail: ReadFiles = field(default_factory=ReadFiles)

    def open(self, file_id: int) -> Steps[Opened | None]:
        """The file with this id; must follow the one before if that was opened last."""
        opened = yield from read_protocol.open_file(file_id, self.options, self.seen, polling=True)
        if opened is not None:
            self.trail.follow(opened.info)
        return opened

    def first_file(
        self, start: ReadingStart, trail: ReadFiles, *, wait: bool
    ) -> Steps[Opened | None]:
        """The first file of a reading, as `next_file`."""
        # A reader that named a place has to hear that it is gone.
        attempts = read_protocol.FIND_ATTEMPTS if start.is_anywhere else 1
        while True:
            attempts -= 1
            file_id = yield from start.first_id(self.options, self.seen)
            try:
                return (yield from self.next_file(file_id, trail, wait=wait))
            except WalFileCollectedError:
                # It may have been removed since it was listed.
                if not attempts:
                    raise

    def next_file(self, file_id: int, trail: ReadFiles, *, wait: bool) -> Steps[Opened | None]:
        """The next file of a reading; None at the tail, where it does not wait."""
        opened = yield from read_protocol.open_file(file_id, self.options, self.seen, polling=wait)
        # The first file of a reading doesn't exist yet. Without a file before it, nothing proves
        # that the archive reaches so far.
        if opened is None and trail.before is None:
            opened = yield from read_protocol.begin_at_end(file_id, self.options, self.seen)
        # Only then wait: a number beyond the end that nothing proves would be waited for forever.
        if opened is None and wait:
            opened = yield from read_protocol.await_file(file_id, self.options, self.seen)
        if opened is not None:
            trail.follow(opened.info)
        return opened

    def check(self, info: WalFileInfo) -> None:
        """Raise at a gap, unless the reader wants gaps as entries."""
        if info.gap is not None and self.options.raise_at_gap:
            raise WalGapError(
                f"file {info.id} records a gap: transactions committed from "
                f"{format_lsn(info.gap.after)} to before {format_lsn(info.gap.up_to)} are not "
                f"in the archive ({info.gap.reason})"
            )

    def chosen(self, selection: RowSelection) -> RowSelection:
        """Restrict the selection to the tables in the reader's options."""
        return replace(selection, tables=selection.tables or self.options.wanted)

    def fetch(self, opened: Opened, chosen: RowSelection) -> Steps[Content | None]:
        """Read the needed part of a file; None if no row of it is wanted."""
        # The metadata says enough: nothing is fetched for a file without the wanted tables.
        if not read_protocol.interesting(opened.info, chosen):
            self.metrics.files_skipped += 1
            return None
        found = file_format.groups(opened.footer, chosen, opened.info)
        if not found.wanted:
            self.metrics.files_skipped += 1
            return None
        self.metrics.files += 1
        self.metrics.groups_skipped += found.count - len(found.wanted)
        return (yield from read_protocol.content(opened, found, self.options, self.seen))

    def batches(
        self,
        opened: Opened,
        read: Content,
        chosen: RowSelection,
        columns: Collection[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        rows = RowsCheck(opened.info)
        # Order can be checked only with both columns.
        seen = columns is None or {"commit_lsn", "ordinal"} <= set(columns)
        # Errors of decoding don't know the file's number.
        with naming(opened.info.id):
            # The checksum is that of the whole file.
            if self.options.verify and read.whole:
                file_format.verify(read.data, opened.info)
            # Only some row groups were fetched; each of them has a checksum.
            elif self.options.verify:
                file_format.verify_groups(read.data, opened.info, read.wanted)
            for batch in file_format.batches(
                read.data,
                chosen,
                columns,
                footer=opened.footer,
                page_checksums=self.options.verify and not read.whole,
            ):
                if seen:
                    _raise(rows.take(batch))
                self.metrics.rows += batch.num_rows
                yield batch
            # Rows were left out on purpose otherwise, so their number says nothing.
            if seen and chosen == ALL:
                _raise(rows.end())


def _raise(fault: str | None) -> None:
    if fault is not None:
        raise WalFileCorruptError(fault)


R = TypeVar("R")


class OpenedFile(Generic[R]):
    """An existing file, for both readers."""

    def __init__(self, reader: R, opened: Opened) -> None:
        self._reader = reader
        self._opened = opened

    @property
    def id(self) -> int:
        """Its number; the files of an archive are numbered without gaps, from 1 on."""
        return self._opened.info.id

    @property
    def next_id(self) -> int:
        """The number of the next file."""
        return self._opened.info.id + 1

    @property
    def info(self) -> WalFileInfo:
        """The file's metadata: positions, tables, checksum, gap."""
        return self._opened.info


class WalFile(OpenedFile["WalReader"]):
    """A file of the archive, as `get` and `files` return it."""

    def metadata(self) -> ObjectMetadata | None:
        """Return what the store reports about the file now, or None if it no longer exists."""
        return self._reader.run(read_protocol.head(self.id))

    def __iter__(self) -> Iterator[RowEntry]:
        return self.entries()

    def entries(self, selection: RowSelection = ALL) -> Iterator[RowEntry]:
        """Return the rows in order, all of them or a selection.

        Raises `WalGapError` at a gap, unless the reader's options allow gaps, and
        `WalFileCorruptError` if the file is damaged.
        """
        self._reader.reading.check(self.info)
        for batch in self.batches(selection):
            yield from columns.entries(batch)

    def batches(
        self, selection: RowSelection = ALL, columns: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows in order as Arrow batches, with all columns or some."""
        reading = self._reader.reading
        chosen = reading.chosen(selection)
        read = self._reader.run(reading.fetch(self._opened, chosen))
        if read is not None:
            yield from reading.batches(self._opened, read, chosen, columns)


class ReaderBase:
    """The common part of the blocking and the asynchronous reader."""

    def __init__(self, url: str, options: WalReaderOptions | None = None) -> None:
        self.reading = ArchiveReading(options or WalReaderOptions())
        self.store = Store(url, self.reading.options.store_options, self.reading.options.timeout_s)

    @property
    def metrics(self) -> ReaderMetrics:
        """Counters of what this reader has requested and read."""
        return self.reading.metrics


class WalReader(ReaderBase):
    """Reads an archive; blocking. `url` is a folder in any store that obstore supports."""

    def run(self, work: Steps[T]) -> T:
        """Internal: execute a generator of requests, step by step."""
        answer: object = None
        try:
            while True:
                request = work.send(answer)
                if isinstance(request, Wait):
                    time.sleep(request.seconds)
                    answer = None
                else:
                    answer = self.store.ask(request)
                    self.metrics.count(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def list(self, first: int = 1, stop: int | None = None) -> list[ListedFile]:
        """Return the existing files with numbers from `first` to before `stop`.

        After `WalFileCollectedError`, the first of them is where to continue.
        """
        return self.run(read_protocol.list_files(first, stop, self.reading.seen))

    def get(self, file_id: int) -> WalFile | None:
        """Return the file with this number, or None if it doesn't exist yet.

        Raises `WalFileCollectedError` if garbage collection has removed it, and
        `WalFileMissingError` if it is missing for another reason.
        """
        opened = self.run(self.reading.open(file_id))
        if opened is None:
            return None
        return WalFile(self, opened)

    def files(
        self,
        from_id: int | None = None,
        from_lsn: int | None = None,
        from_time: datetime | None = None,
        *,
        after: Position | None = None,
        wait: bool = False,
    ) -> Iterator[WalFile]:
        """Return the files from a start on; at the tail, end or wait for the next file.

        The start is a file's number, an LSN, a commit time, or the stored position of the last row
        that was read; by default the first available file. Raises `WalFileCollectedError` if
        garbage collection has removed a requested file, and `WalFileMissingError` if a file is
        missing for another reason.
        """
        start = ReadingStart(from_id, from_lsn, from_time, after)
        trail = ReadFiles()
        opened = self.run(self.reading.first_file(start, trail, wait=wait))
        while opened is not None:
            yield WalFile(self, opened)
            # After the caller has taken the rows: a file that nobody reads on is not opened.
            opened = self.run(self.reading.next_file(opened.info.next_id, trail, wait=wait))

    def follow(
        self,
        from_id: int | None = None,
        from_lsn: int | None = None,
        from_time: datetime | None = None,
        *,
        after: Position | None = None,
        wait: bool = True,
    ) -> Iterator[RowEntry]:
        """Return the rows from a start on, in order; at the tail, wait for the next file or end.

        The start is as for `files`, and so are the errors. `WalGapError` is raised at a gap, unless
        the reader's options allow gaps.
        """
        selection = ReadingStart(from_id, from_lsn, from_time, after).selection
        for file in self.files(from_id, from_lsn, from_time, after=after, wait=wait):
            yield from file.entries(selection)
