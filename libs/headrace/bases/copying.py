"""Copies ranges of a table, in a snapshot that is held elsewhere, into the parts of a base.

A part has the form of the archive's files, and a row the form of an insert. Memory is bounded by a
part's size.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import pyarrow as pa

from headrace.archive import layout
from headrace.archive.bases import BasePart, checksum
from headrace.archive.columns import SCHEMA
from headrace.archive.file_format import WalFileEncoder
from headrace.archive.metadata import TableInfo, WalFileInfo
from headrace.archive.store import Store
from headrace.contract.json_bytes import compact_json
from headrace.lsn import Position
from headrace.postgres.connection import explained
from headrace.process.failpoint import failpoint
from headrace.settings import Settings
from headrace.spark.csv_rows import CsvRows, Exact, Row
from headrace.spark.plan import SnapshotPlan
from headrace.spark.range_receiver import RangeReceiver, importing

# The size of a parsed block of text.
BLOCK_BYTES = 4 << 20
APPLICATION = "headrace base"

# The number of rows so far.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BaseWork:
    """Everything that a task needs except credentials."""

    url: str
    base: str
    source: str
    plan: SnapshotPlan
    table: TableInfo
    lsn: int
    time_us: int
    part_rows_max: int
    part_bytes_max: int


async def copy_ranges(
    settings: Settings, work: BaseWork, task: int, progress: Progress | None = None
) -> list[BasePart]:
    """Copy the ranges of one of the plan's tasks."""
    store = Store(work.url, timeout_s=settings.archive.put_timeout_s)
    copying = _Copying(store, work, progress)
    try:
        receiver = RangeReceiver(work.plan, BLOCK_BYTES, copying.take)
        async with importing(settings, work.plan.exported, APPLICATION) as connection:
            for page_range in work.plan.tasks[task]:
                await receiver.copy(connection, page_range)
            await copying.finish()
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings.postgres) from error
    return copying.parts


class _Copying:
    """A copy at work: rows come in blocks, and leave as parts."""

    def __init__(self, store: Store, work: BaseWork, progress: Progress | None) -> None:
        self._store = store
        self._work = work
        # A task that runs again replaces nothing.
        self._attempt = secrets.token_hex(4)
        self._progress = progress
        names = [column.name for column in work.plan.columns]
        self._reader = CsvRows(names, work.plan.converters())
        self._part: WalFileEncoder | None = None
        self._part_rows = 0
        self._part_bytes = 0
        self.parts: list[BasePart] = []
        self._rows = 0

    async def take(self, data: bytes) -> None:
        """Encode a block of rows."""
        # Another thread: the lease is renewed meanwhile.
        await asyncio.to_thread(self._encode, data)
        if self._progress is not None:
            self._progress(self._rows)

    async def finish(self) -> None:
        """Write what is left."""
        if self._part is not None:
            await asyncio.to_thread(self._close_part)

    def _encode(self, data: bytes) -> None:
        rows, exact = self._reader.rows(data)
        if self._part is None:
            self._part = WalFileEncoder()
        self._part.add(table_of(self._work, rows, exact, self._part_rows))
        self._part_rows += len(rows)
        self._part_bytes += len(data)
        self._rows += len(rows)
        if (
            self._part_rows >= self._work.part_rows_max
            or self._part_bytes >= self._work.part_bytes_max
        ):
            self._close_part()

    def _close_part(self) -> None:
        assert self._part is not None, "the caller's"
        work = self._work
        number = len(self.parts) + 1
        data, _ = self._part.finish(_info(work, number, self._part_rows))
        name = layout.base_part(work.base, self._attempt, number)
        self._store.put_new(name, data)
        self.parts.append(BasePart(name, self._part_rows, len(data), checksum(data)))
        self._part = None
        self._part_rows = 0
        self._part_bytes = 0
        failpoint("base.after_part")


def table_of(work: BaseWork, rows: Sequence[Row], exact: Exact, first: int) -> pa.Table:
    """Rows as the archive's files have inserts; `first`: the ordinal of the first one."""
    count = len(rows)
    key = work.table.key
    texts = [
        None if place not in exact else compact_json({"after": exact[place]})
        for place in range(count)
    ]
    keys = [compact_json({name: row[name] for name in key}) if key else None for row in rows]
    columns = {
        "commit_lsn": pa.repeat(work.lsn, count),
        "ordinal": pa.array(range(first, first + count), pa.int64()),
        "lsn": pa.repeat(work.lsn, count),
        "xid": pa.repeat(0, count),
        "commit_time": pa.repeat(work.time_us, count).cast(SCHEMA.field("commit_time").type),
        "schema": pa.repeat(work.table.schema, count),
        "table": pa.repeat(work.table.table, count),
        "operation": pa.repeat("insert", count),
        "key": _texts(keys),
        "before": pa.nulls(count, pa.string()),
        "after": _texts([compact_json(row) for row in rows]),
        "unchanged": pa.nulls(count, SCHEMA.field("unchanged").type),
        "schema_version": pa.repeat(work.table.version, count).cast(pa.int32()),
        "exact": _texts(texts),
    }
    return pa.table(columns, schema=SCHEMA)


def _texts(values: Sequence[bytes | None]) -> pa.Array[Any]:
    return pa.array(values, pa.binary()).cast(pa.string())


def _info(work: BaseWork, number: int, rows: int) -> WalFileInfo:
    """The footer of a part."""
    return WalFileInfo(
        id=number,
        archive=work.base,
        epoch=0,
        writer=APPLICATION,
        source=work.source,
        database="",
        system_id="",
        timeline=0,
        from_lsn=work.lsn,
        end_lsn=work.lsn,
        rows=rows,
        first=Position(work.lsn, 0),
        last=Position(work.lsn, rows - 1),
        time_us=work.time_us,
        tables=(work.table,),
    )
