"""The lake's engine inside the lake-writer: no JVM, one connection, one file at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile

from headrace.archive.asynchronous import AsyncWalFile
from headrace.lake.compaction import CompactWork, rewritten
from headrace.lake.engine import CopiedFiles, CopyWork, Progress
from headrace.lake.files import LakeFiles
from headrace.lake.writer import LakeWriter
from headrace.lake_writer.range_copy import copy_ranges
from headrace.process.pyarrow_memory import give_back
from headrace.settings import Settings

# Applying rows takes many times their size in memory.
BLOCK_BYTES = 12 << 20


class InlineEngine:
    """Runs everything here; rows of small batches stay in memory until the cut."""

    def __init__(self, settings: Settings, files: LakeFiles) -> None:
        self._settings = settings
        self._files = files

    async def started(self) -> None:
        """Nothing has to start."""

    async def copy(self, work: CopyWork, progress: Progress) -> CopiedFiles:
        """Copy one range after another."""
        ranges = [page_range for task in work.plan.tasks for page_range in task]
        return await copy_ranges(self._settings, self._files, work, ranges, progress)

    async def apply(self, writer: LakeWriter, files: Sequence[AsyncWalFile]) -> int:
        """Apply the first file, a block of rows at a time."""
        file = files[0]
        async for batch in file.batches():
            rows_max = max(1, int(batch.num_rows * BLOCK_BYTES / max(1, batch.nbytes)))
            for start in range(0, batch.num_rows, rows_max):
                block = pa.Table.from_batches([batch.slice(start, rows_max)])
                await asyncio.to_thread(writer.take, file.info, block)
                give_back()
        return 1

    async def compact(self, works: Sequence[CompactWork]) -> list[list[DataFile]]:
        """Do one rewrite after another."""
        return [await asyncio.to_thread(rewritten, self._files, work) for work in works]

    async def close(self) -> None:
        """Nothing was started."""
