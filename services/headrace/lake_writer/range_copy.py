"""Copies ranges of a table, in a snapshot that is held elsewhere, into data files.

Runs in the lake-writer or in Spark's workers, on any machine; takes credentials from that machine's
environment. Its memory does not depend on the table's size: rows come in blocks, and are encoded
immediately.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Sequence

import asyncpg
import pyarrow as pa
import uvloop
from pyiceberg.manifest import DataFile

from headrace.lake.copy_rows import CopyRows
from headrace.lake.data_files import RowsWriter
from headrace.lake.engine import CopiedFiles, CopyWork, Progress
from headrace.lake.files import LakeFiles
from headrace.postgres.connection import explained
from headrace.process.failpoint import failpoint
from headrace.settings import Settings, load
from headrace.spark.range_receiver import RangeReceiver, importing
from headrace.spark.ranges import PageRange

# The size of a parsed block of text.
BLOCK_BYTES = 8 << 20
# The size of an encoded block, as Arrow has it in memory, and how large a file becomes.
GROUP_BYTES = 32 << 20
FILE_BYTES = 64 << 20
APPLICATION = "headrace lake copy"


def run_task(packed: bytes, task: int) -> bytes:
    """A task of Spark's: one of the plan's tasks."""
    work: CopyWork = pickle.loads(packed)  # noqa: S301  # from the lake-writer
    settings = load(os.environ)
    assert settings.lake.url, "checked by the lake-writer"
    files = LakeFiles(settings.lake.url)
    copies = uvloop.run(copy_ranges(settings, files, work, work.plan.tasks[task]))
    failpoint("lake_task.after_copy")
    return pickle.dumps(copies)


# As Spark's workers find it.
TASK = f"{__name__}:{run_task.__name__}"


async def copy_ranges(
    settings: Settings,
    files: LakeFiles,
    work: CopyWork,
    ranges: Sequence[PageRange],
    progress: Progress | None = None,
) -> CopiedFiles:
    """Copy some ranges of the snapshot."""
    copying = _Copying(files, work, progress)
    try:
        receiver = RangeReceiver(work.plan, BLOCK_BYTES, copying.take)
        async with importing(settings, work.plan.exported, APPLICATION) as connection:
            for page_range in ranges:
                await receiver.copy(connection, page_range)
            await copying.finish()
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings.postgres) from error
    return CopiedFiles(tuple(copying.written), copying.rows)


class _Copying:
    """A copy at work: rows come in blocks, and leave as files."""

    def __init__(self, files: LakeFiles, work: CopyWork, progress: Progress | None) -> None:
        self._files = files
        self._work = work
        self._progress = progress
        self._reader = CopyRows(work.table.infos, work.plan.types)
        self._parsed: list[pa.Table] = []
        self._writer: RowsWriter | None = None
        self.written: list[DataFile] = []
        self.rows = 0

    async def take(self, data: bytes) -> None:
        """Parse a block of rows, and encode parsed ones if they are enough for a row group."""
        # Another thread: the lease is renewed meanwhile.
        rows = await asyncio.to_thread(self._reader.read, data)
        self._parsed.append(rows)
        self.rows += rows.num_rows
        if self._progress is not None:
            self._progress(self.rows)
        if sum(each.nbytes for each in self._parsed) >= GROUP_BYTES:
            await asyncio.to_thread(self._encode)

    def _encode(self) -> None:
        rows = pa.concat_tables(self._parsed)
        self._parsed.clear()
        if self._writer is None:
            self._writer = RowsWriter(self._files, self._work.folder, self._work.schema)
        self._writer.write(rows)
        if self._writer.size >= FILE_BYTES:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._writer is not None:
            self.written.append(self._writer.close())
            self._writer = None

    async def finish(self) -> None:
        """Write what is left."""
        if self._parsed:
            await asyncio.to_thread(self._encode)
        await asyncio.to_thread(self._finish_file)
