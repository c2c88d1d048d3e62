"""An archive as a Spark DataFrame, or as a stream of changes.

    spark.dataSource.register(ArchiveSource)
    changes = spark.read.format("headrace.archive").option("tables", "public.orders").load("s3://bucket/archive")
    stream = spark.readStream.format("headrace.archive").load("s3://bucket/archive")

Options: `tables` (comma-separated), `fromId`, `fromLsn`, `fromTime`, `toId` (exclusive; batch alone), `gaps` (`fail`,
or `tell` for rows with the operation `gap`), `filesPerTask`, for streams `maxFilesPerTrigger` and `reader` (a name to
register, so that garbage collection leaves what the stream has not read), `store.…` (obstore's options, such as
`store.endpoint`). Credentials come from the environment of Spark's Python workers. Rows of one task are in commit
order; no row passes through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.archive import WalReader, WalReaderOptions, segment
from headrace.archive.columns import SCHEMA
from headrace.archive.errors import ArchiveError, WalFileCollectedError
from headrace.archive.reader import Start
from headrace.lsn import parse_lsn

DDL = (
    "commit_lsn bigint, ordinal bigint, lsn bigint, xid bigint, commit_time timestamp, `schema` string, "
    "`table` string, operation string, key string, before string, after string, unchanged array<string>, "
    "schema_version int"
)
# As Spark has them: everything may be null, and a list's items are called elements.
_LIST = pa.list_(pa.field("element", pa.string()))
_SPARK = pa.schema([(field.name, _LIST if field.name == "unchanged" else field.type) for field in SCHEMA])
FILES_PER_TASK = 16
TASK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asked for, checked where the query is planned."""

    url: str
    reader: WalReaderOptions
    start: Start
    to_id: int | None = None
    files_per_task: int = FILES_PER_TASK
    files_per_trigger: int | None = None
    name: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        options = {name.lower(): value for name, value in given.items()}
        if not options.get("path"):
            raise ArchiveError("no archive is named", remedy="Give its URL to load(), or as the option path.")
        gaps = options.get("gaps", "fail")
        if gaps not in ("fail", "tell"):
            raise ArchiveError(f"the option gaps is {gaps!r}", remedy="Set it to fail or tell.")
        store = {name.removeprefix("store."): value for name, value in options.items() if name.startswith("store.")}
        tables = tuple(table.strip() for table in options.get("tables", "").split(",") if table.strip())
        lsn, moment = options.get("fromlsn"), options.get("fromtime")
        return cls(
            options["path"],
            WalReaderOptions(tables=tables, raise_at_gap=gaps == "fail", store_options=store),
            Start(
                _number(options, "fromid"),
                None if lsn is None else (parse_lsn(lsn) if "/" in lsn else int(lsn)),
                None if moment is None else datetime.fromisoformat(moment),
            ),
            _number(options, "toid"),
            _number(options, "filespertask") or FILES_PER_TASK,
            _number(options, "maxfilespertrigger"),
            options.get("reader"),
        )

    def wal_reader(self) -> WalReader:
        return WalReader(self.url, self.reader)

    def first_id(self, reader: WalReader) -> int:
        """Where reading begins: the place that was asked for, else the first file that is left."""
        return reader.run(self.start.first_id(reader.reading.options, reader.reading.seen))


def _number(options: Mapping[str, str], name: str) -> int | None:
    return int(options[name]) if name in options else None


class ArchiveSource(DataSource):  # type: ignore[misc]  # pyspark publishes no types that mypy is given
    """`headrace.archive`."""

    @classmethod
    def name(cls) -> str:
        return "headrace.archive"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: Any) -> ArchiveReader:  # noqa: ARG002  # it is always the same
        return ArchiveReader(SourceOptions.parse(dict(self.options)))

    def streamReader(self, schema: Any) -> Any:  # noqa: ARG002, N802  # Spark's name
        # Streams need a newer Spark than batches do.
        from headrace.spark.archive_stream import ArchiveStreamReader  # noqa: PLC0415

        return ArchiveStreamReader(SourceOptions.parse(dict(self.options)))


@dataclass
class FilesPartition(InputPartition):  # type: ignore[misc]  # as above
    """One task's files: from an id to before another."""

    first: int
    stop: int


def partitions(reader: WalReader, first: int, stop: int | None, files_per_task: int) -> list[FilesPartition]:
    """Tasks of some files each, small ones together; raises where a file is missing that was there once."""
    listed = reader.list(first, stop)
    ids = [file_id for file_id, _ in listed]
    due = range(first, stop if stop is not None else first + len(ids))
    if ids != list(due):
        raise WalFileCollectedError(f"of files {first} to {due.stop - 1}, {len(due) - len(ids)} are there no more")
    made: list[FilesPartition] = []
    held = 0
    for file_id, item in listed:
        if made and made[-1].stop - made[-1].first < files_per_task and held + item.size <= TASK_BYTES:
            made[-1].stop, held = file_id + 1, held + item.size
        else:
            made.append(FilesPartition(file_id, file_id + 1))
            held = item.size
    return made


def rows(options: SourceOptions, partition: FilesPartition, *, from_start: bool) -> Iterator[pa.RecordBatch]:
    """A task's rows. What is before the place that was asked for is left out of the first files."""
    reader = options.wal_reader()
    selection = options.start.selection if from_start else segment.ALL
    for file_id in range(partition.first, partition.stop):
        file = reader.get(file_id)
        if file is None:
            raise WalFileCollectedError(f"file {file_id} was there when the query was planned")
        reader.reading.check(file.info)
        for batch in file.batches(selection):
            yield batch.cast(_SPARK)


class ArchiveReader(DataSourceReader):  # type: ignore[misc]  # as above
    """Plans tasks where the driver is, and reads files where each task is."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[FilesPartition]:
        reader = self._options.wal_reader()
        first = self._options.first_id(reader)
        stop = self._options.to_id
        if stop is not None and stop > first:
            listed = reader.list(first, stop)
            stop = listed[-1][0] + 1 if listed else first
        return partitions(reader, first, stop, self._options.files_per_task) or [FilesPartition(first, first)]

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        return rows(self._options, partition, from_start=True)
