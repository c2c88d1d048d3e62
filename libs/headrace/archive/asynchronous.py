"""`AsyncWalReader`: `WalReader` for asyncio. Both take the same steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import datetime

import pyarrow as pa

from headrace.archive import columns, read_protocol
from headrace.archive.chain import ReadFiles
from headrace.archive.entry import RowEntry
from headrace.archive.file_format import ALL, RowSelection
from headrace.archive.read_protocol import ListedFile, Steps, T
from headrace.archive.reader import OpenedFile, ReaderBase, ReadingStart
from headrace.archive.store import ObjectMetadata, Wait
from headrace.lsn import Position


class AsyncWalFile(OpenedFile["AsyncWalReader"]):
    """A file of the archive, as `get` and `files` return it."""

    async def metadata(self) -> ObjectMetadata | None:
        """Return what the store reports about the file now, or None if it no longer exists."""
        return await self._reader.run(read_protocol.head(self.id))

    async def __aiter__(self) -> AsyncIterator[RowEntry]:
        async for entry in self.entries():
            yield entry

    async def entries(self, selection: RowSelection = ALL) -> AsyncIterator[RowEntry]:
        """Return the rows in order, all of them or a selection.

        Raises `WalGapError` at a gap, unless the reader's options allow gaps, and
        `WalFileCorruptError` if the file is damaged.
        """
        self._reader.reading.check(self.info)
        async for batch in self.batches(selection):
            for entry in columns.entries(batch):
                yield entry

    async def batches(
        self, selection: RowSelection = ALL, columns: Collection[str] | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """Return the rows in order as Arrow batches, with all columns or some."""
        reading = self._reader.reading
        chosen = reading.chosen(selection)
        read = await self._reader.run(reading.fetch(self._opened, chosen))
        if read is None:
            return
        for batch in reading.batches(self._opened, read, chosen, columns):
            yield batch
            # Let other tasks run: a batch takes about ten milliseconds.
            await asyncio.sleep(0)


class AsyncWalReader(ReaderBase):
    """Reads an archive in asyncio; `url` is a folder in any store that obstore supports."""

    async def run(self, work: Steps[T]) -> T:
        """Internal: execute a generator of requests, step by step."""
        answer: object = None
        try:
            while True:
                request = work.send(answer)
                if isinstance(request, Wait):
                    await asyncio.sleep(request.seconds)
                    answer = None
                else:
                    # In the order of the steps, one at a time: each depends on the answer before.
                    answer = await self.store.ask_async(request)
                    self.metrics.count(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def list(self, first: int = 1, stop: int | None = None) -> list[ListedFile]:
        """Return the existing files with numbers from `first` to before `stop`."""
        return await self.run(read_protocol.list_files(first, stop, self.reading.seen))

    async def get(self, file_id: int) -> AsyncWalFile | None:
        """Return the file with this number, or None if it doesn't exist yet.

        Raises `WalFileCollectedError` if garbage collection has removed it, and
        `WalFileMissingError` if it is missing for another reason.
        """
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
        """Return the files from a start on; at the tail, end or wait for the next file.

        The start is a file's number, an LSN, a commit time, or the stored position of the last row
        that was read; by default the first available file. Raises `WalFileCollectedError` if
        garbage collection has removed a requested file, and `WalFileMissingError` if a file is
        missing for another reason.
        """
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
        """Return the rows from a start on, in order; at the tail, wait for the next file or end.

        The start is as for `files`, and so are the errors. `WalGapError` is raised at a gap, unless
        the reader's options allow gaps.
        """
        selection = ReadingStart(from_id, from_lsn, from_time, after).selection
        async for file in self.files(from_id, from_lsn, from_time, after=after, wait=wait):
            async for entry in file.entries(selection):
                yield entry
