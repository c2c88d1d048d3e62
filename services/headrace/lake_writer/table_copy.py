"""Copies a table of the source into data files of the lake, at an exact LSN.

Owns the snapshot and the table's description; an engine copies the ranges. Nothing refers to the
files until a cut does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import asyncpg
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headrace import log as logs
from headrace.archive.metadata import ColumnInfo
from headrace.errors import HeadraceError, describe
from headrace.lake.catalog import TableName
from headrace.lake.engine import CopyWork, Engine, Progress
from headrace.lake.errors import LakeError
from headrace.lake.tables import LakeTable, copied, new_table
from headrace.lake_writer.range_copy import APPLICATION
from headrace.postgres.connection import explained
from headrace.settings import Settings
from headrace.spark.driver_process import SparkUnusableError
from headrace.spark.plan import SnapshotPlan
from headrace.spark.range_receiver import importing
from headrace.spark.ranges import deal
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import HeldSnapshot, held_snapshot
from headrace.spark.table_plan import plan_of
from headrace.spark.unless_lost import unless_lost

log = logs.logger("lake-writer")

_COLUMNS = """
SELECT a.attname AS name, a.atttypid::int8 AS type_oid, a.atttypmod AS type_modifier,
       format_type(a.atttypid, a.atttypmod) AS type_name, a.attnum::int AS number,
       c.oid::int8 AS relation_id
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

ATTEMPTS = 3
PAUSE_S = 1.0

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
    engine: Engine,
    name: TableName,
    before: LakeTable | None,
    prepare: Prepare,
    progress: Progress,
) -> TableCopy:
    """Copy a published table; `progress` receives the number of rows so far."""
    # Before the snapshot: starting Spark takes long, and PostgreSQL would keep old rows meanwhile.
    await engine.started()
    request = SnapshotRequest(str(name), name.namespace, name.name)
    async with held_snapshot(settings, request) as held:
        try:
            # In the snapshot, so that the columns are those of the rows that are copied.
            table = await _described(settings, name, before, held)
            folder, schema = prepare(table)
            plan = _dealt(plan_of(held, settings), settings.snapshot.tasks_max)
            work = CopyWork(plan, table, folder, schema, held.rows_estimated)
            copies = await unless_lost(engine.copy(work, progress), held.lost)
        except asyncpg.PostgresError as error:
            raise explained(error.sqlstate, str(error), settings.postgres) from error
    return TableCopy(table, folder, copies.files, copies.rows)


async def attempted(name: TableName, copy: Callable[[], Awaitable[TableCopy]]) -> TableCopy:
    """A table's copy, of several attempts if the first fail for a reason that may pass.

    A session that changes the table's structure waits for the snapshot's lock, and the copy behind
    it: the copy gives way after a few seconds, and is tried again when the change is through.
    """
    attempt = 1
    while True:
        try:
            return await copy()
        except HeadraceError as error:
            if error.retry or isinstance(error, SparkUnusableError) or attempt == ATTEMPTS:
                raise
            log.warning("copy_failed", table=str(name), attempt=attempt, reason=describe(error))
        attempt += 1
        await asyncio.sleep(PAUSE_S)


def _dealt(plan: SnapshotPlan, tasks_max: int) -> SnapshotPlan:
    """Adjacent ranges in one task: each task ends with a file that may be small."""
    ranges = [page_range for task in plan.tasks for page_range in task]
    return replace(plan, tasks=tuple(tuple(task) for task in deal(ranges, tasks_max)))


async def _described(
    settings: Settings, name: TableName, before: LakeTable | None, held: HeldSnapshot
) -> LakeTable:
    async with importing(settings, held.exported, APPLICATION) as connection:
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
