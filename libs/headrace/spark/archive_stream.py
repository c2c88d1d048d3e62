"""The archive as a Spark stream: the offset is the id of the next file.

A batch's files are those from one offset to before another, always with the same rows: after a
kill, Spark runs the same batch again. Admission is by files. Needs Spark 4.2 or newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from headrace.archive.chain import ReadFiles
from headrace.archive.layout import FIRST_ID
from headrace.archive.registry import register
from headrace.archive.store import Store
from headrace.spark.archive_source import FilesPartition, SourceOptions, partitions, rows

Offset = dict[str, int]


# pyspark has no types here.
class ArchiveStreamReader(
    DataSourceStreamReader,  # type: ignore[misc]
    SupportsTriggerAvailableNow,  # type: ignore[misc]
):
    """Plans batches in the driver's process, and reads files in each task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._reader: Any = None
        # With the trigger AvailableNow: where the query ends.
        self._target: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name, as those below
        return {"id": self._options.first_id(self._files())}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        end = self._end(start["id"])
        # Later files are for the next run; an offset must never move back.
        if self._target is not None:
            end = max(start["id"], min(end, self._target))
        if isinstance(limit, ReadMaxFiles):
            end = min(end, start["id"] + limit.max_files)
        return {"id": end}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.files_per_trigger
        if most is None:
            return ReadAllAvailable()
        return ReadMaxFiles(most)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        listed = self._files().list()
        if listed:
            return {"id": listed[-1].next_id}
        return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        listed = self._files().list()
        if listed:
            self._target = listed[-1].next_id
        else:
            self._target = self._options.first_id(self._files())

    def partitions(self, start: Offset, end: Offset) -> list[FilesPartition]:
        if start["id"] >= end["id"]:
            return []
        made = partitions(self._options, self._files(), start["id"], end["id"])
        # The previous batch read the file before.
        made[0].follows = start["id"] > FIRST_ID
        return made

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        # Rows before the requested start can only be in the first files; they are skipped wherever
        # they are.
        return rows(self._options, partition, self._options.start.selection)

    def commit(self, end: Offset) -> None:
        # Spark has processed these files, so garbage collection may remove them.
        if self._options.name is not None:
            options = self._options.reader
            register(Store(self._options.url, options.store_options), self._options.name, end["id"])

    def _files(self) -> Any:
        # Not in __init__: the reader is sent to tasks, which have their own.
        if self._reader is None:
            self._reader = self._options.wal_reader()
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def _end(self, first: int) -> int:
        """The id after the last existing file."""
        listed = self._files().list(first)
        if not listed:
            # Raises where the archive has lost its end.
            self._files().run(self._files().reading.next_file(first, ReadFiles(), wait=False))
            return first
        # If its beginning is missing, `partitions` raises.
        return int(listed[-1].next_id)
