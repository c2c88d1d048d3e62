"""The open file: encodes its row groups as they fill, so that rows are held only that long.

Promises that groups are in the file in the order in which they were added, and that at most one is
being encoded; `add` waits for the previous one. Holds the encoded bytes, and never writes them
anywhere.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from headrace.archive.file_format import WalFileEncoder
from headrace.archive.metadata import WalFileInfo


class OpenFile:
    def __init__(self) -> None:
        self._writer = WalFileEncoder()
        self._encoding: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """The size of the encoded groups."""
        return self._writer.size

    async def add(self, rows: pa.Table) -> None:
        """Start to encode a row group, in a thread."""
        # The writer is used by one thread at a time, and groups keep their order.
        await self.encoded()
        self._encoding = asyncio.create_task(
            asyncio.to_thread(self._writer.add, rows), name="archive row group"
        )

    async def encoded(self) -> None:
        """Wait for the group that is being encoded; raises its error."""
        if self._encoding is not None:
            # Forgotten first: its error is raised once, and closing the file does not raise it
            # again.
            encoding = self._encoding
            self._encoding = None
            await encoding

    async def finish(self, rest: pa.Table, info: WalFileInfo) -> tuple[bytes, WalFileInfo]:
        """Add the rest; returns the file's bytes, and its metadata with the checksum."""
        await self.encoded()
        # Compressing and hashing would block the loop for longer than a lease allows.
        return await asyncio.to_thread(self._finish, rest, info)

    def _finish(self, rest: pa.Table, info: WalFileInfo) -> tuple[bytes, WalFileInfo]:
        self._writer.add(rest)
        return self._writer.finish(info)
