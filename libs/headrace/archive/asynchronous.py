"""`AsyncWalReader`: `WalReader` for asyncio. Both take the same steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import datetime

import pyarrow as pa

from headrace.archive import columns, read_protocol
from headrace.archive.chain import ReadFiles
from headrace.archive.entry import RowEntry
from headrace.archive.metadata import SegmentInfo
from headrace.archive.read_protocol import (
    ListedFile,
    Opened,
    ReaderMetrics,
    Steps,
    T,
    WalReaderOptions,
)
from headrace.archive.reader import ArchiveReading, ReadingStart
from headrace.archive.segment import ALL, RowSelection
from headrace.archive.store import ObjectMetadata, Store, Wait
from headrace.lsn import Position


class AsyncWalFile:
    """An existing file."""

    def __init__(self, reader: AsyncWalReader, opened: Opened) -> None:
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
        """The file's metadata: positions, tables, checksum, gap."""
        return self._opened.info

    async def metadata(self) -> ObjectMetadata | None:
        """The object as the store has it now; None if it no longer exists."""
        return await self._reader.run(read_protocol.head(self.id))

    async def __aiter__(self) -> AsyncIterator[RowEntry]:
        async for entry in self.entries():
            yield entry

    async def entries(self, selection: RowSelection = ALL) -> AsyncIterator[RowEntry]:
        """The rows in order."""
        self._reader.reading.check(self.info)
        async for batch in self.batches(selection):
            for entry in columns.entries(batch):
                yield entry

    async def batches(
        self, selection: RowSelection = ALL, columns: Collection[str] | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """The rows in order as Arrow batches, with all columns or some."""
        reading = self._reader.reading
        chosen = reading.chosen(selection)
        read = await self._reader.run(reading.fetch(self._opened, chosen))
        if read is None:
            return
        for batch in reading.batches(self._opened, read, chosen, columns):
            yield batch
            # Let other tasks run: a batch takes about ten milliseconds.
            await asyncio.sleep(0)


class AsyncWalReader:
    """Reads an archive; `url` is a folder in any store that obstore supports."""

    def __init__(self, url: str, options: WalReaderOptions | None = None) -> None:
        self.reading = ArchiveReading(options or WalReaderOptions())
        self._store = Store(url, self.reading.options.store_options, self.reading.options.timeout_s)

    @property
    def metrics(self) -> ReaderMetrics:
        return self.reading.metrics

    async def run(self, work: Steps[T]) -> T:
        """Execute a generator of requests, step by step."""
        answer: object = None
        try:
            while True:
                request = work.send(answer)
                if isinstance(request, Wait):
                    await asyncio.sleep(request.seconds)
                    answer = None
                else:
                    answer = await self._store.ask_async(request)
                    self.metrics.count(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def list(self, first: int = 1, stop: int | None = None) -> list[ListedFile]:
        """The existing files with ids from `first` to before `stop`."""
        return await self.run(read_protocol.list_files(first, stop, self.reading.seen))

    async def get(self, file_id: int) -> AsyncWalFile | None:
        """The file with this id; None if it doesn't exist yet; raises as `WalReader.get` does."""
        opened = await self.run(self.reading.open(file_id))
        if opened is None:
            return None
        return AsyncWalFile(self, opened)

    async def files(
        self,
        from_id: int | None = None,
        from_lsn: int | None = None,
        from_time: datetime | None = None,
        *,
        after: Position | None = None,
        wait: bool = False,
    ) -> AsyncIterator[AsyncWalFile]:
        """Files from a place on; at the tail it ends, or waits for the next one."""
        start = ReadingStart(from_id, from_lsn, from_time, after)
        trail = ReadFiles()
        opened = await self.run(self.reading.first_file(start, trail, wait=wait))
        while opened is not None:
            yield AsyncWalFile(self, opened)
            opened = await self.run(self.reading.next_file(opened.info.next_id, trail, wait=wait))

    async def follow(
        self,
        from_id: int | None = None,
        from_lsn: int | None = None,
        from_time: datetime | None = None,
        *,
        after: Position | None = None,
        wait: bool = True,
    ) -> AsyncIterator[RowEntry]:
        """Rows from a place on, or behind a stored position, in order; waits at the tail unless
        told not to.
        """
        selection = ReadingStart(from_id, from_lsn, from_time, after).selection
        async for file in self.files(from_id, from_lsn, from_time, after=after, wait=wait):
            async for entry in file.entries(selection):
                yield entry
