"""A table as a Spark DataFrame: the consistent, parallel COPY of a snapshot, without JetStream.

Promises that all partitions read one snapshot. PostgreSQL's address and credentials come from the
environment of Spark's Python workers, never from options.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.contract import scalars, type_oids
from headrace.contract.values import Converter
from headrace.errors import HeadraceError
from headrace.postgres.connection import explained
from headrace.settings import Settings, load
from headrace.spark import table_holder
from headrace.spark.csv_rows import CsvRows
from headrace.spark.plan import SnapshotPlan
from headrace.spark.range_receiver import importing
from headrace.spark.source import check_name, describe_table
from headrace.spark.table_plan import TableOptions, plan_of

PARSE_BYTES = 4 * 1024 * 1024
BLOCKS_AHEAD = 2
# The receiver checks this often whether the task has ended.
WAIT_S = 0.5
# Spark's type name and pyarrow's, by the type's OID; integers of domains are long.
_INTEGERS = {type_oids.INT2: ("short", pa.int16()), type_oids.INT4: ("int", pa.int32())}
_KINDS: dict[Converter, tuple[str, pa.DataType]] = {
    scalars.integer: ("long", pa.int64()),
    scalars.number: ("double", pa.float64()),
    scalars.boolean: ("boolean", pa.bool_()),
    scalars.binary: ("binary", pa.binary()),
}
_TEXT = ("string", pa.string())


# pyspark publishes no types that mypy is given.
class TableSource(DataSource):  # type: ignore[misc]
    """Reads a table as a DataFrame (format `headrace.table`); all partitions read one snapshot.

        spark.dataSource.register(TableSource)
        users = spark.read.format("headrace.table").option("table", "users").load()

    Options:

    - `table`: the table's name, and `schema`: its schema (`public`).
    - `publication`: read only the columns and rows that it publishes; by default the whole table.
    - `hold_s`: how long the snapshot waits for its next reader.

    Numbers, booleans and bytes have these types, and all other values are PostgreSQL's text. The
    address and credentials of PostgreSQL come from the environment of Spark's Python workers
    (docs/settings.md), never from options.
    """

    @classmethod
    def name(cls) -> str:
        """Internal: the format's name."""
        return "headrace.table"

    def schema(self) -> str:
        """Internal: the DataFrame's columns."""
        options = TableOptions.parse(dict(self.options))
        described = asyncio.run(describe_table(options.settings(), options.request))
        plan = plan_of(described, Settings())
        names = [column.name.replace("`", "``") for column in plan.columns]
        return ", ".join(
            f"`{name}` {kind}" for name, (kind, _) in zip(names, column_kinds(plan), strict=True)
        )

    # Spark asked `schema()` for the schema that it passes here.
    def reader(self, schema: Any) -> TableReader:  # noqa: ARG002
        """Internal: called by Spark."""
        return TableReader(TableOptions.parse(dict(self.options)))


class SnapshotGoneError(HeadraceError):
    """The snapshot that a DataFrame was planned on is no longer held."""

    remedy = "Load the DataFrame again; raise the option hold_s if tasks wait long for their turn."


@dataclass
class TablePartition(InputPartition):  # type: ignore[misc]  # as above
    """One task's plan: the snapshot's, with one range."""

    packed_plan: bytes
    task: int
    application: str


class TableReader(DataSourceReader):  # type: ignore[misc]  # as above
    """Plans partitions in the driver's process, and reads each in its task."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def partitions(self) -> list[TablePartition]:
        held = table_holder.start(self._options)
        plan = SnapshotPlan.unpack(held.packed_plan)
        return [
            TablePartition(held.packed_plan, task, held.application)
            for task in range(len(plan.tasks))
        ] or [TablePartition(b"", 0, "")]

    def read(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range; an empty table has one partition without a plan."""
        if not partition.packed_plan:
            return
        plan = SnapshotPlan.unpack(partition.packed_plan)
        rows = CsvRows([column.name for column in plan.columns], plan.converters())
        kinds = [kind for _, kind in column_kinds(plan)]
        names = [column.name for column in plan.columns]
        for data in _blocks(plan, partition):
            arrays = [
                _typed(rows, place, column, kinds[place])
                for place, column in enumerate(rows.columns(data))
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def column_kinds(plan: SnapshotPlan) -> list[tuple[str, pa.DataType]]:
    """Spark's and pyarrow's type of each column."""
    return [
        _INTEGERS.get(column.type_oid) or _KINDS.get(converter, _TEXT)
        for column, converter in zip(plan.columns, plan.converters(), strict=True)
    ]


def _typed(rows: CsvRows, place: int, column: Any, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return column.cast(kind)
    return pa.array(rows.values(place, column), kind)


def _blocks(plan: SnapshotPlan, partition: TablePartition) -> Iterator[bytes]:
    """COPY's output, a few MiB of whole rows at a time, received while the previous ones are
    parsed.
    """
    # Bounded: PostgreSQL waits while Spark is behind.
    blocks: queue.Queue[bytes | BaseException | None] = queue.Queue(BLOCKS_AHEAD)
    over = threading.Event()

    def give(block: bytes | BaseException | None) -> None:
        while not over.is_set():
            with contextlib.suppress(queue.Full):
                blocks.put(block, timeout=WAIT_S)
                return

    def receive() -> None:
        try:
            asyncio.run(_copy(plan, partition, give, over))
            give(None)
        except BaseException as error:  # noqa: BLE001
            # Raised again where the rows are waited for.
            give(error)

    # A daemon, because Spark's worker must be able to end while PostgreSQL is silent.
    threading.Thread(target=receive, name="headrace-copy", daemon=True).start()
    try:
        while (block := blocks.get()) is not None:
            if isinstance(block, BaseException):
                raise block
            yield block
    finally:
        # Also if Spark stops reading early, as for a LIMIT: the COPY ends as well.
        over.set()


async def _copy(
    plan: SnapshotPlan,
    partition: TablePartition,
    give: Callable[[bytes], None],
    over: threading.Event,
) -> None:
    settings = load(os.environ)
    received = bytearray()

    # Not a RangeReceiver: it notices the end with every row, and blocks span ranges.
    async def receive(data: bytes) -> None:
        """Whole rows, as asyncpg delivers them; blocks while the parser is behind, and PostgreSQL
        with it.
        """
        if over.is_set():
            raise asyncio.CancelledError
        received.extend(data)
        if len(received) >= PARSE_BYTES:
            give(bytes(received))
            received.clear()

    try:
        async with importing(settings, plan.exported, partition.application) as connection:
            for page_range in plan.tasks[partition.task]:
                await connection.copy_from_query(
                    plan.copy_query(page_range), output=receive, format="csv", encoding="utf8"
                )
                # COPY finds the table by its name, and renaming a schema takes no lock on it.
                await check_name(connection, page_range)
            if received:
                give(bytes(received))
    except asyncpg.UndefinedObjectError as error:
        raise SnapshotGoneError(str(error)) from error
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings.postgres) from error
