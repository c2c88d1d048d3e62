"""Copies ranges of a table, in a snapshot that is held elsewhere, into data files.

Runs in the lake-writer or in Spark's workers, on any machine; takes credentials from that machine's
environment. Its memory does not depend on the table's size: rows come in blocks, and are encoded
immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pyarrow as pa
import uvloop
from pyiceberg.manifest import DataFile

from headrace.lake.copy_rows import CopyRows
from headrace.lake.data_files import RowsWriter
from headrace.lake.engine import CopiedFiles, CopyWork, Progress
from headrace.lake.files import LakeFiles
from headrace.postgres.connection import connect_lastingly, explained
from headrace.postgres.quoting import quote_literal
from headrace.process.failpoint import failpoint
from headrace.settings import Settings, load
from headrace.spark.ranges import PageRange
from headrace.spark.session import COPY_SESSION
from headrace.spark.source import check_name

# The size of a parsed block of text.
BLOCK_BYTES = 8 << 20
# The size of an encoded block, as Arrow has it in memory, and how large a file becomes.
GROUP_BYTES = 32 << 20
FILE_BYTES = 64 << 20
_APPLICATION = "headrace lake copy"


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
        async with importing(settings, work.plan.exported) as connection:
            for page_range in ranges:
                await copying.copy(connection, page_range)
            await copying.finish()
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings.postgres) from error
    return CopiedFiles(tuple(copying.written), copying.rows)


@contextlib.asynccontextmanager
async def importing(settings: Settings, exported: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection whose transaction sees the snapshot."""
    session = {**COPY_SESSION, "statement_timeout": "0"}
    connection = await connect_lastingly(settings.postgres, _APPLICATION, **session)
    try:
        await connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(exported)}")
        yield connection
    finally:
        # Not closed in order: an interrupted COPY would first have to be read to its end.
        connection.terminate()


class _Copying:
    """A copy at work: rows come in blocks, and leave as files."""

    def __init__(self, files: LakeFiles, work: CopyWork, progress: Progress | None) -> None:
        self._files = files
        self._work = work
        self._progress = progress
        self._reader = CopyRows(work.table.infos, work.plan.types)
        self._received = bytearray()
        self._parsed: list[pa.Table] = []
        self._writer: RowsWriter | None = None
        self.written: list[DataFile] = []
        self.rows = 0

    async def copy(self, connection: asyncpg.Connection, page_range: PageRange) -> None:
        """Read a range."""

        async def receive(data: bytes) -> None:
            self._received.extend(data)
            if len(self._received) >= BLOCK_BYTES:
                await self._parse()

        query = self._work.plan.copy_query(page_range)
        await connection.copy_from_query(query, output=receive, format="csv", encoding="utf8")
        # COPY finds the table by its name, and renaming a schema takes no lock on the table.
        await check_name(connection, page_range)
        await self._parse()

    async def _parse(self) -> None:
        if not self._received:
            return
        data = bytes(self._received)
        self._received.clear()
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
