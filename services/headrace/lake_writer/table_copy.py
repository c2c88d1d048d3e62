"""Copies a table of the source into data files of the lake, at an exact LSN.

The copy reads ranges of the table's storage in one snapshot, a block of rows at a time, so its
memory does not depend on the table's size. Nothing refers to its files until a cut does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headrace.archive.metadata import ColumnInfo
from headrace.lake import data_files
from headrace.lake.catalog import TableName
from headrace.lake.copy_rows import CopyRows
from headrace.lake.errors import LakeError
from headrace.lake.files import LakeFiles
from headrace.lake.tables import LakeTable, copied, new_table
from headrace.postgres.connection import connect_lastingly, explained
from headrace.postgres.quoting import quote_literal
from headrace.settings import Settings
from headrace.spark.plan import SnapshotPlan
from headrace.spark.ranges import PageRange
from headrace.spark.request import SnapshotRequest
from headrace.spark.session import COPY_SESSION
from headrace.spark.source import HeldSnapshot, check_name, held_snapshot
from headrace.spark.table_plan import plan_of

_APPLICATION = "headrace lake copy"
# The size of a parsed block of text, and of the Arrow data that becomes a file.
BLOCK_BYTES = 8 << 20
FILE_BYTES = 192 << 20
_COLUMNS = """
SELECT a.attname AS name, a.atttypid::int8 AS type_oid, a.atttypmod AS type_modifier,
       format_type(a.atttypid, a.atttypmod) AS type_name, a.attnum::int AS number,
       c.oid::int8 AS relation_id
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

# The table as the lake had it, if at all; to where its files go, and their schema.
Prepare = Callable[[LakeTable], tuple[str, Schema]]


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A table's rows as of the LSN that the table begins with."""

    table: LakeTable
    folder: str
    files: tuple[DataFile, ...]
    rows: int


async def copy_table(
    settings: Settings,
    files: LakeFiles,
    name: TableName,
    before: LakeTable | None,
    prepare: Prepare,
    progress: Callable[[int], None],
) -> TableCopy:
    """Copy a published table; `progress` receives the number of rows so far."""
    request = SnapshotRequest(str(name), name.namespace, name.name)
    async with held_snapshot(settings, request) as held:
        plan = plan_of(held, settings)
        connection = await _importing(settings, held)
        try:
            table = await _described(connection, name, before, held)
            folder, schema = prepare(table)
            copying = _Copying(files, table, folder, schema, held, progress)
            for task in plan.tasks:
                for page_range in task:
                    await copying.copy(connection, plan, page_range)
            await copying.write()
        except asyncpg.PostgresError as error:
            raise explained(error.sqlstate, str(error), settings.postgres) from error
        finally:
            connection.terminate()
    return TableCopy(table, folder, tuple(copying.written), copying.rows)


async def _importing(settings: Settings, held: HeldSnapshot) -> asyncpg.Connection:
    """A connection whose transaction sees the snapshot."""
    session = {**COPY_SESSION, "statement_timeout": "0"}
    connection = await connect_lastingly(settings.postgres, _APPLICATION, **session)
    try:
        await connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(held.exported)}")
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _described(
    connection: asyncpg.Connection, name: TableName, before: LakeTable | None, held: HeldSnapshot
) -> LakeTable:
    rows = await connection.fetch(_COLUMNS, name.namespace, name.name)
    wanted = {column.name for column in held.columns}
    if hidden := sorted(set(held.key) - wanted):
        raise LakeError(
            f"{name} has the key column {hidden[0]}, which is excluded",
            remedy="Remove it from HEADRACE_EXCLUDE_COLUMNS, or exclude the table: without its "
            "key, a row can't be found.",
        )
    columns = [
        ColumnInfo(
            row["name"],
            row["type_oid"],
            row["type_modifier"],
            row["type_name"],
            row["name"] in held.key,
            filled=True,
            number=row["number"],
        )
        for row in rows
        if row["name"] in wanted
    ]
    relation_id = rows[0]["relation_id"]
    if before is None:
        return new_table(name, relation_id, columns, held.key, held.lsn)
    return copied(before, relation_id, columns, held.key, held.lsn)


class _Copying:
    """A copy at work: rows come in blocks, and leave as files."""

    def __init__(
        self,
        files: LakeFiles,
        table: LakeTable,
        folder: str,
        schema: Schema,
        held: HeldSnapshot,
        progress: Callable[[int], None],
    ) -> None:
        self._files = files
        self._folder = folder
        self._schema = schema
        self._progress = progress
        self._reader = CopyRows(table.infos, held.types)
        self._received = bytearray()
        self._parsed: list[pa.Table] = []
        self.written: list[DataFile] = []
        self.rows = 0

    async def copy(
        self, connection: asyncpg.Connection, plan: SnapshotPlan, page_range: PageRange
    ) -> None:
        async def receive(data: bytes) -> None:
            self._received.extend(data)
            if len(self._received) >= BLOCK_BYTES:
                await self._parse()

        await connection.copy_from_query(
            plan.copy_query(page_range), output=receive, format="csv", encoding="utf8"
        )
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
        self._progress(self.rows)
        if sum(each.nbytes for each in self._parsed) >= FILE_BYTES:
            await self.write()

    async def write(self) -> None:
        """Write the rows so far as a file."""
        if self._parsed:
            rows = pa.concat_tables(self._parsed)
            self._parsed.clear()
            file = await asyncio.to_thread(
                data_files.write_rows, self._files, self._folder, self._schema, rows
            )
            self.written.append(file)
