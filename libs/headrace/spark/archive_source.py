"""An archive as a Spark DataFrame, or as a stream of changes.

Promises that the rows of one task are in commit order, and that no row passes through the driver.
Credentials come from the environment of Spark's Python workers, never from options.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.archive import ListedFile, WalReader, WalReaderOptions, layout, read_protocol
from headrace.archive.columns import NAMES, SCHEMA
from headrace.archive.errors import ArchiveError, WalFileMissingError
from headrace.archive.file_format import RowSelection
from headrace.archive.reader import ReadingStart
from headrace.lsn import parse_lsn
from headrace.spark.archive_filters import narrowed

TYPES = dict.fromkeys(NAMES, "bigint") | {
    "commit_time": "timestamp",
    **dict.fromkeys(("schema", "table", "operation", "key", "before", "after", "exact"), "string"),
    "unchanged": "array<string>",
    "schema_version": "int",
}
# As Spark declares them: every column is nullable, and a list's items are named element.
_LIST = pa.list_(pa.field("element", pa.string()))
_SPARK = pa.schema(
    [(field.name, _LIST if field.name == "unchanged" else field.type) for field in SCHEMA]
)
FILES_PER_TASK = 16
# A task's files are as large together; fewer, where cores would have nothing to do.
TASK_BYTES = 32 * 1024 * 1024
TASK_BYTES_MIN = 512 * 1024
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query, checked when it is planned."""

    url: str
    reader: WalReaderOptions
    start: ReadingStart
    to_id: int | None = None
    files_per_task: int = FILES_PER_TASK
    files_per_trigger: int | None = None
    name: str | None = None
    columns: tuple[str, ...] = NAMES
    tasks: int = 1

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        # Spark's options ignore case.
        options = {name.lower(): value for name, value in given.items()}
        if not options.get("path"):
            raise ArchiveError(
                "no archive is named", remedy="Give its URL to load(), or as the option path."
            )
        gaps = options.get("gaps", "fail")
        if gaps not in ("fail", "tell"):
            raise ArchiveError(f"the option gaps is {gaps!r}", remedy="Set it to fail or tell.")
        store = {
            name.removeprefix("store."): value
            for name, value in options.items()
            if name.startswith("store.")
        }
        tables = _listed(options, "tables")
        columns = _listed(options, "columns") or NAMES
        unknown = [name for name in columns if name not in NAMES]
        if unknown:
            raise ArchiveError(
                f"an archive has no column {unknown[0]}", remedy=f"It has {', '.join(NAMES)}."
            )
        return cls(
            options["path"],
            WalReaderOptions(tables=tables, raise_at_gap=gaps == "fail", store_options=store),
            ReadingStart(
                _number(options, "fromid"),
                _lsn(options),
                _moment(options),
            ),
            _number(options, "toid"),
            _number(options, "filespertask") or FILES_PER_TASK,
            _number(options, "maxfilespertrigger"),
            options.get("reader"),
            columns,
            _number(options, "tasks") or len(os.sched_getaffinity(0)),
        )

    def wal_reader(self) -> WalReader:
        return WalReader(self.url, self.reader)

    def first_id(self, reader: WalReader) -> int:
        """Where reading starts: the requested position, or else the first existing file."""
        return reader.run(self.start.first_id(reader.reading.options, reader.reading.seen))


def _listed(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in options.get(name, "").split(",") if item.strip())


def _lsn(options: Mapping[str, str]) -> int | None:
    """`fromlsn`, as PostgreSQL writes LSNs or as a number."""
    text = options.get("fromlsn")
    if text is None:
        return None
    if "/" in text:
        return parse_lsn(text)
    return int(text)


def _moment(options: Mapping[str, str]) -> datetime | None:
    text = options.get("fromtime")
    if text is None:
        return None
    return datetime.fromisoformat(text)


def _number(options: Mapping[str, str], name: str) -> int | None:
    if name in options:
        return int(options[name])
    return None


# pyspark publishes no types that mypy is given.
class ArchiveSource(DataSource):  # type: ignore[misc]
    """Reads an archive as a DataFrame, or as a stream of changes (format `headrace.archive`).

        spark.dataSource.register(ArchiveSource)
        archive = spark.read.format("headrace.archive").option("tables", "public.orders")
        changes = archive.load("s3://bucket/archive")
        stream = spark.readStream.format("headrace.archive").load("s3://bucket/archive")

    Options:

    - `tables` and `columns`: separated by commas. Spark does not report to a Python data source
      which columns a query needs, so name them.
    - `fromId`, `fromLsn` or `fromTime`: where to start. `toId`: before which file to end (batch
      only).
    - `gaps`: `fail`, or `tell` for rows with the operation `gap`.
    - `tasks`: the minimal number of tasks if there is enough to read, by default the cores of the
      planning machine. `filesPerTask`: the maximal number of files in one task.
    - `maxFilesPerTrigger` (streams): the maximal number of files in one micro-batch.
    - `reader` (streams): a name to register, so that garbage collection leaves files that the
      stream has not read.
    - `store.…`: options of obstore, such as `store.endpoint`.

    Rows of one task are in commit order. With `spark.sql.python.filterPushdown.enabled`, files and
    row groups without rows that pass the query's filters are not read. Credentials come from the
    environment of Spark's Python workers.
    """

    @classmethod
    def name(cls) -> str:
        """Internal: the format's name."""
        return "headrace.archive"

    def schema(self) -> str:
        """Internal: the DataFrame's columns."""
        return ", ".join(
            f"`{name}` {TYPES[name]}" for name in SourceOptions.parse(dict(self.options)).columns
        )

    def reader(self, schema: Any) -> ArchiveReader:  # noqa: ARG002  # it is always that of `schema`
        """Internal: called by Spark."""
        # Without pushdown, Spark refuses a reader that could take filters.
        kind = FilteringReader if _PUSHING in sys.modules else ArchiveReader
        return kind(SourceOptions.parse(dict(self.options)))

    def streamReader(self, schema: Any) -> Any:  # noqa: ARG002, N802  # Spark's name
        """Internal: called by Spark."""
        # Streams need a newer Spark than batches.
        from headrace.spark.archive_stream import ArchiveStreamReader  # noqa: PLC0415

        return ArchiveStreamReader(SourceOptions.parse(dict(self.options)))


@dataclass
class FilesPartition(InputPartition):  # type: ignore[misc]  # as above
    """One task's files: from an id to before another."""

    first: int
    stop: int
    # Whether the query also reads the file before the first one: they must follow each other.
    follows: bool = False


def partitions(
    options: SourceOptions, reader: WalReader, first: int, stop: int | None
) -> list[FilesPartition]:
    """Tasks of some files each, small ones together; raises if a file is missing."""
    listed = reader.list(first, stop)
    there = {file.id for file in listed}
    due = range(first, stop if stop is not None else max(there, default=first - 1) + 1)
    # A listing may be older than its files: request those that it lacks.
    found = [_found(reader, file_id) for file_id in due if file_id not in there]
    return grouped(sorted([*listed, *found]), options.tasks, options.files_per_task)


def _found(reader: WalReader, file_id: int) -> ListedFile:
    file = reader.get(file_id)
    metadata = None if file is None else file.metadata()
    if metadata is None:
        raise WalFileMissingError(f"{layout.described(file_id)} doesn't exist")
    return ListedFile(file_id, metadata)


def grouped(listed: Sequence[ListedFile], tasks: int, files_per_task: int) -> list[FilesPartition]:
    """Consecutive files, distributed by their bytes."""
    total = sum(item.size for _, item in listed)
    # As many tasks as there are cores, unless they would be tiny or huge.
    each = max(TASK_BYTES_MIN, min(TASK_BYTES, -(-total // tasks)))
    made: list[FilesPartition] = []
    before = 0
    for file_id, item in listed:
        # By all bytes so far, so that differences of single tasks don't add up.
        if made and before < len(made) * each and made[-1].stop - made[-1].first < files_per_task:
            made[-1].stop = file_id + 1
        else:
            made.append(FilesPartition(file_id, file_id + 1, follows=bool(made)))
        before += item.size
    return made


def rows(
    options: SourceOptions, partition: FilesPartition, selection: RowSelection
) -> Iterator[pa.RecordBatch]:
    """A task's rows as Spark expects them."""
    reader = options.wal_reader()
    chosen = reader.reading.chosen(selection)
    shape = pa.schema([_SPARK.field(name) for name in options.columns])
    if partition.follows:
        # That file's own task reports its faults; here it only must be the one before.
        with contextlib.suppress(ArchiveError):
            reader.get(partition.first - 1)
    for file_id in range(partition.first, partition.stop):
        file = reader.get(file_id)
        if file is None:
            raise WalFileMissingError(
                f"{layout.described(file_id)} existed when the query was planned"
            )
        # A gap outside the wanted range is no fault of this query.
        if read_protocol.interesting(file.info, chosen):
            reader.reading.check(file.info)
        for batch in file.batches(chosen, options.columns):
            yield batch.select(list(options.columns)).cast(shape)


class ArchiveReader(DataSourceReader):  # type: ignore[misc]  # as above
    """Plans tasks in the driver's process, and reads files in each task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        # Rows before the requested start are skipped wherever they are.
        self._selection = options.start.selection

    def partitions(self) -> list[FilesPartition]:
        reader = self._options.wal_reader()
        first = self._first_id(reader)
        stop = self._options.to_id
        # `toId` may be beyond the end: files that don't exist yet are not missing.
        if stop is not None and stop > first:
            listed = reader.list(first, stop)
            stop = listed[-1][0] + 1 if listed else first
        return partitions(self._options, reader, first, stop) or [FilesPartition(first, first)]

    def _first_id(self, reader: WalReader) -> int:
        return self._options.first_id(reader)

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        return rows(self._options, partition, self._selection)


class FilteringReader(ArchiveReader):
    """Reads only rows that Spark's filters may match."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802  # Spark's name
        self._selection = narrowed(self._selection, filters)
        # Spark filters again: reading may be less exact than the filters.
        return filters

    def _first_id(self, reader: WalReader) -> int:
        """The first file that may have what is wanted, never one before the place that was asked
        for.
        """
        asked = self._selection
        first = super()._first_id(reader)
        if asked.after is None and asked.from_time_us is None:
            return first
        found, _ = reader.run(
            read_protocol.find(
                lambda info: read_protocol.interesting(
                    info, RowSelection(after=asked.after, from_time_us=asked.from_time_us)
                ),
                reader.reading.options,
                reader.reading.seen,
            )
        )
        return max(first, found)
