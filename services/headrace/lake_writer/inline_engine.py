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
from headrace.settings import Settings


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
        """Apply the first file."""
        file = files[0]
        batches = [batch async for batch in file.batches()]
        if batches:
            rows = pa.Table.from_batches(batches).unify_dictionaries()
            await asyncio.to_thread(writer.take, file.info, rows)
        return 1

    async def compact(self, works: Sequence[CompactWork]) -> list[list[DataFile]]:
        """Do one rewrite after another."""
        return [await asyncio.to_thread(rewritten, self._files, work) for work in works]

    async def close(self) -> None:
        """Nothing was started."""
