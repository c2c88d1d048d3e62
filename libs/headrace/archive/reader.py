"""`WalReader`: the archive, read file by file and row by row. Blocking; `asynchronous` has the other one.

    reader = WalReader("s3://bucket/orders")
    for entry in reader.follow(from_id=stored.next_id):
        ...

Promises rows in commit order, each exactly once, whole files at a time; raises at a hole, at bytes that are not those
that were written and (unless told otherwise) at a gap that the archive tells of. Never writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace.archive import columns, segment, steps
from headrace.archive.entry import RowEntry
from headrace.archive.errors import ArchiveError, WalGapError
from headrace.archive.metadata import SegmentInfo
from headrace.archive.segment import ALL, Selection
from headrace.archive.steps import Opened, ReaderMetrics, Seen, Steps, T, WalReaderOptions
from headrace.archive.store import ObjectMetadata, Store, Wait
from headrace.lsn import format_lsn

__all__ = ["ObjectMetadata", "WalFile", "WalReader", "WalReaderOptions"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin; the first file that is left, where nothing is given."""

    from_id: int | None = None
    from_lsn: int | None = None
    from_time: datetime | None = None

    @property
    def selection(self) -> Selection:
        """The rows of the first files that are before it are left out."""
        after = None if self.from_lsn is None else (self.from_lsn - 1, 1 << 62)
        return Selection(after=after, from_time_us=None if self.from_time is None else self._time_us)

    @property
    def _time_us(self) -> int:
        assert self.from_time is not None, "asked only where there is one"
        moment = self.from_time if self.from_time.tzinfo else self.from_time.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)

    def past(self, info: SegmentInfo) -> bool:
        """Whether the place is in this file, or before."""
        if self.from_lsn is not None:
            return info.last.lsn >= self.from_lsn
        if self.from_time is not None:
            return info.time_us >= self._time_us
        return True

    def first_id(self, options: WalReaderOptions, seen: Seen) -> Steps[int]:
        if sum(given is not None for given in (self.from_id, self.from_lsn, self.from_time)) > 1:
            raise ArchiveError("begin from an id, an LSN or a time: more than one was given")
        if self.from_id is not None:
            return self.from_id
        found: int = yield from steps.find(self.past, options, seen)
        return found


@dataclass(slots=True)
class Reading:
    """What the two readers share: options, counts, what was seen, and how rows come from bytes."""

    options: WalReaderOptions
    metrics: ReaderMetrics = field(default_factory=ReaderMetrics)
    seen: Seen = field(default_factory=Seen)

    def check(self, info: SegmentInfo) -> None:
        """Raise at a gap, where the reader did not ask to be told of it."""
        if info.gap is not None and self.options.raise_at_gap:
            raise WalGapError(
                f"file {info.id} tells of a gap: what was committed after {format_lsn(info.gap.after)} up to "
                f"{format_lsn(info.gap.up_to)} is not in the archive ({info.gap.reason})"
            )

    def batches(self, opened: Opened, data: bytes, selection: Selection) -> Iterator[pa.RecordBatch]:
        if self.options.verify:
            segment.verify(data, opened.info)
        self.metrics.files += 1
        chosen = Selection(self.options.wanted, selection.after, selection.from_time_us)
        for batch in segment.batches(data, chosen):
            self.metrics.rows += batch.num_rows
            yield batch


class WalFile:
    """A file that is there."""

    def __init__(self, reader: WalReader, opened: Opened) -> None:
        self._reader = reader
        self._opened = opened

    @property
    def id(self) -> int:
        return self._opened.info.id

    @property
    def next_id(self) -> int:
        return self._opened.info.id + 1

    @property
    def info(self) -> SegmentInfo:
        """The file's own account: positions, tables, checksum, gap."""
        return self._opened.info

    def metadata(self) -> ObjectMetadata | None:
        """The object as the store has it now; None when it is there no more."""
        return self._reader.run(steps.head(self.id))

    def __iter__(self) -> Iterator[RowEntry]:
        return self.entries()

    def entries(self, selection: Selection = ALL) -> Iterator[RowEntry]:
        """The rows in order."""
        self._reader.reading.check(self.info)
        for batch in self.batches(selection):
            yield from columns.entries(batch)

    def batches(self, selection: Selection = ALL) -> Iterator[pa.RecordBatch]:
        """The rows in order, as Arrow has them."""
        reading = self._reader.reading
        if not steps.interesting(self.info, reading.options):
            reading.metrics.files_skipped += 1
            return
        yield from reading.batches(self._opened, self._reader.run(steps.whole(self._opened)), selection)


class WalReader:
    """Reads an archive; `url` is a folder in any store that obstore knows."""

    def __init__(self, url: str, options: WalReaderOptions | None = None) -> None:
        self.reading = Reading(options or WalReaderOptions())
        self._store = Store(url, self.reading.options.store_options, self.reading.options.timeout_s)

    @property
    def metrics(self) -> ReaderMetrics:
        return self.reading.metrics

    def run(self, work: Steps[T]) -> T:
        """Carry out what is asked for, step by step."""
        answer: object = None
        try:
            while True:
                request = work.send(answer)
                if isinstance(request, Wait):
                    time.sleep(request.seconds)
                    answer = None
                else:
                    answer = self._store.ask(request)
                    self.metrics.count(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def list(self, first: int = 1, stop: int | None = None) -> list[tuple[int, ObjectMetadata]]:
        """The files that are there, with ids from `first` to before `stop`: after a collected file, where to go on."""
        return self.run(steps.list_files(first, stop))

    def get(self, file_id: int) -> WalFile | None:
        """The file with this id; None when it is not there yet; `WalFileCollectedError` when it is there no more."""
        opened = self.run(steps.open_file(file_id, self.reading.options, self.reading.seen))
        return None if opened is None else WalFile(self, opened)

    def files(
        self,
        from_id: int | None = None,
        from_lsn: int | None = None,
        from_time: datetime | None = None,
        *,
        wait: bool = False,
    ) -> Iterator[WalFile]:
        """Files from a place on; at the tail it ends, or waits for the next one."""
        options, seen = self.reading.options, self.reading.seen
        file_id = self.run(Start(from_id, from_lsn, from_time).first_id(options, seen))
        while True:
            opened = self.run(
                steps.await_file(file_id, options, seen) if wait else steps.open_file(file_id, options, seen)
            )
            if opened is None:
                return
            yield WalFile(self, opened)
            file_id += 1

    def follow(
        self,
        from_id: int | None = None,
        from_lsn: int | None = None,
        from_time: datetime | None = None,
        *,
        wait: bool = True,
    ) -> Iterator[RowEntry]:
        """Rows from a place on, in order; blocks at the tail unless told not to."""
        selection = Start(from_id, from_lsn, from_time).selection
        for file in self.files(from_id, from_lsn, from_time, wait=wait):
            yield from file.entries(selection)
