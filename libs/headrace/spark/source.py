"""The source of a snapshot: its table as published, and the transaction that holds it.

Promises an LSN such that the snapshot contains exactly the transactions committed before it;
neither a slot nor any WAL is held during the copy. Refuses tables that can't be copied faithfully:
tables outside the publication, views, rows that a policy hides.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import asyncpg

from headrace import log as logs
from headrace.contract.selection import Selection
from headrace.contract.values import TypeInfo
from headrace.errors import HeadraceError
from headrace.lsn import format_lsn
from headrace.postgres import catalog
from headrace.postgres.connection import (
    PostgresError,
    PostgresUnreachableError,
    connect,
    connect_lastingly,
    explained,
)
from headrace.postgres.facts import PublishedTable
from headrace.postgres.quoting import quote_literal, quote_name, quote_table
from headrace.postgres.replication import ExportedSnapshot, ReplicationConnection
from headrace.postgres.replication_errors import SnapshotTooLargeError
from headrace.settings import Settings
from headrace.spark.plan import PlannedColumn
from headrace.spark.ranges import PageRange, TableStorage
from headrace.spark.request import SnapshotRequest
from headrace.spark.session import HOLDER_SESSION

log = logs.logger("snapshot")

# A waiting lock request blocks every later one, also of the application: the snapshot gives up
# first.
LOCK_TIMEOUT_S = 10
# A migration rarely alters the table three times between the snapshot and the lock.
ATTEMPTS = 3
_APPLICATION = "headrace snapshot"
_TOO_LARGE_MAX = 10
_TOO_LARGE_PAUSE_S = 0.2

# The relations that store the table's rows.
_STORAGES = """
WITH RECURSIVE family AS (
    SELECT $1::oid AS oid
  UNION ALL
    SELECT i.inhrelid FROM pg_inherits i JOIN family f ON i.inhparent = f.oid
    JOIN pg_class p ON p.oid = f.oid AND p.relkind = 'p'
)
SELECT c.oid::int8 AS relation_id, format('%I.%I', n.nspname, c.relname) AS relation,
       coalesce(pg_relation_size(c.oid), 0) AS bytes, greatest(c.reltuples, 0)::int8 AS rows
FROM family f JOIN pg_class c ON c.oid = f.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' ORDER BY c.oid
"""
# COPY resolves these by the current catalog instead of the snapshot's: names, files, columns.
_DEFINITIONS = """
SELECT c.oid, n.nspname, c.relname, c.relfilenode,
       (SELECT array_agg((a.attnum, a.attname, a.atttypid, a.atttypmod)::text ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY($1::oid[])
    ORDER BY c.oid
"""
_COLUMN_TYPES = """
SELECT attname AS name, atttypid::int8 AS type_oid FROM pg_attribute
WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_WHOLE_TABLE = """
SELECT c.oid::int8 AS relation_id, c.relreplident::text AS identity, c.relkind::text AS kind,
       array(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
           AND NOT attisdropped
             ORDER BY attnum) AS columns
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')
"""
_KIND = """
SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2
"""
_WAITED_FOR = """
SELECT a.pid, a.usename AS role, a.application_name AS application,
       extract(epoch FROM clock_timestamp() - a.xact_start)::int8 AS age_s
FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids($1)) ORDER BY a.xact_start
"""
# Prepared transactions have no process, and hold up a snapshot all the same.
_PREPARED = """
SELECT gid, owner AS role, extract(epoch FROM clock_timestamp() - prepared)::int8 AS age_s
FROM pg_prepared_xacts WHERE database = current_database() AND 0 = ANY(pg_blocking_pids($1))
    ORDER BY prepared
"""
_KIND_NAMES = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
}


class TableRefusedError(HeadraceError):
    """The table can't be copied as asked; `available` are the tables that can be."""

    def __init__(self, message: str, *, remedy: str, available: Sequence[str] = ()) -> None:
        super().__init__(message, remedy=remedy)
        self.available = tuple(available)


class SnapshotHeldUpError(PostgresError):
    """The snapshot waits for older transactions that don't end."""


class ChangedMeanwhileError(PostgresError):
    """The table was altered, rewritten or replaced between the snapshot and its lock."""

    retry = True
    remedy = "Request it again when the table is not being altered, renamed or truncated."


class RenamedMeanwhileError(PostgresError):
    """The table's name meant another table during the copy: a renamed schema takes no lock."""

    remedy = "Request it again when no schema is being renamed."


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A snapshot that can be imported while its transaction is open."""

    lsn: int
    exported: str
    columns: tuple[PlannedColumn, ...]
    key: tuple[str, ...]
    types: dict[int, TypeInfo]
    storages: tuple[TableStorage, ...]
    conditions: tuple[str, ...]
    rows_estimated: int
    lost: asyncio.Event


def display_name(table: PublishedTable) -> str:
    """A table as `available_tables` lists it."""
    if table.schema == "public":
        return table.name
    return f"{table.schema}.{table.name}"


async def find_table(settings: Settings, request: SnapshotRequest) -> PublishedTable:
    """The table in the publication with the requested columns, or `TableRefusedError`."""
    connection = await connect(settings.postgres, _APPLICATION, **HOLDER_SESSION)
    try:
        return await _find_table(connection, settings, request)
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings.postgres) from error
    finally:
        connection.terminate()


async def describe_table(settings: Settings, request: SnapshotRequest) -> HeldSnapshot:
    """The table's columns and storage as they are now, without a snapshot."""
    connection = await connect(settings.postgres, _APPLICATION, **HOLDER_SESSION)
    try:
        async with connection.transaction(readonly=True):
            table = await _find_table(connection, settings, request)
            return await _describe(connection, connection, table, request, 0, "", asyncio.Event())
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings.postgres) from error
    finally:
        connection.terminate()


async def _whole_table(connection: asyncpg.Connection, request: SnapshotRequest) -> PublishedTable:
    """The whole table, published or not."""
    row = await connection.fetchrow(_WHOLE_TABLE, request.schema, request.table)
    if row is None:
        raise TableRefusedError(
            f"{request.schema}.{request.table} is not a table",
            remedy=(
                "Name an ordinary or partitioned table by its unquoted name, and its schema "
                "separately."
            ),
        )
    return PublishedTable(
        row["relation_id"],
        request.schema,
        request.table,
        row["identity"],
        tuple(row["columns"]),
        None,
        row["kind"],
    )


async def _find_table(
    connection: asyncpg.Connection, settings: Settings, request: SnapshotRequest
) -> PublishedTable:
    if not settings.source.publication:
        return await _whole_table(connection, request)
    tables = catalog.delivered(
        await catalog.published_tables(connection, settings.source.publication),
        _selection(settings),
    )
    for table in tables:
        if (table.schema, table.name) == (request.schema, request.table):
            _check_columns(table, request)
            return table
    available = [display_name(table) for table in tables]
    kind = await connection.fetchval(_KIND, request.schema, request.table)
    raise TableRefusedError(
        f"{request.schema}.{request.table} {_why(kind)}",
        remedy=(
            f"Request a table of the publication {settings.source.publication}, or add the table "
            "to it."
        ),
        available=available,
    )


def _selection(settings: Settings) -> Selection:
    chosen = settings.format
    return Selection(chosen.include, chosen.exclude, chosen.exclude_columns)


def _why(kind: str | None) -> str:
    if kind is None:
        return "doesn't exist"
    if kind == "p":
        return (
            "is partitioned, and its publication contains the partitions instead of the whole "
            "(publish_via_partition_root)"
        )
    if kind in _KIND_NAMES:
        return f"is {_KIND_NAMES[kind]}: its changes are not in the log, so it has no snapshots"
    return "is not in the publication, or is excluded by HEADRACE_INCLUDE or HEADRACE_EXCLUDE"


def _check_columns(table: PublishedTable, request: SnapshotRequest) -> None:
    if missing := sorted(request.columns_named - set(table.columns)):
        raise TableRefusedError(
            f"{display_name(table)} has no published columns {', '.join(missing)}",
            remedy=f"It has: {', '.join(table.columns)}.",
            available=[display_name(table)],
        )
    if not table.columns:
        raise TableRefusedError(
            f"{display_name(table)} has no columns",
            remedy="Add one.",
            available=[display_name(table)],
        )


@contextlib.asynccontextmanager
async def held_snapshot(
    settings: Settings, request: SnapshotRequest
) -> AsyncIterator[HeldSnapshot]:
    """The table's snapshot, held until the block ends."""
    for attempt in range(1, ATTEMPTS + 1):
        async with contextlib.AsyncExitStack() as stack:
            try:
                held = await _hold(stack, settings, request)
            except ChangedMeanwhileError:
                if attempt == ATTEMPTS:
                    raise
                continue
            yield held
            return


async def _hold(
    stack: contextlib.AsyncExitStack, settings: Settings, request: SnapshotRequest
) -> HeldSnapshot:
    connection = await connect_lastingly(settings.postgres, _APPLICATION, **HOLDER_SESSION)
    stack.callback(connection.terminate)
    lost = asyncio.Event()
    # The connection is idle while tasks copy, so nothing else would notice its end.
    connection.add_termination_listener(lambda _: lost.set())
    try:
        lsn, exported = await _take_over(connection, settings)
        table = await _find_table(connection, settings, request)
        present = await connect(settings.postgres, _APPLICATION, **HOLDER_SESSION)
        try:
            held = await _describe(connection, present, table, request, lsn, exported, lost)
        finally:
            present.terminate()
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error), settings.postgres) from error
    except (OSError, asyncpg.InterfaceError) as error:
        raise PostgresUnreachableError(
            f"the connection that holds the snapshot was lost: {error}"
        ) from error
    log.info("snapshot_held", lsn=format_lsn(lsn), relations=len(held.storages))
    return held


async def _take_over(connection: asyncpg.Connection, settings: Settings) -> tuple[int, str]:
    """Import a slot's snapshot into an ordinary transaction and export it again: then the slot can
    be dropped.
    """
    slot = await ReplicationConnection.open(settings.postgres, _APPLICATION)
    try:
        exported = await _patiently_exported(slot, connection, settings)
        await connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(exported.name)}")
        name: str = await connection.fetchval("SELECT pg_export_snapshot()")
    finally:
        # Its temporary slot ends with it, and no longer keeps WAL. The snapshot lives on in the
        # transaction.
        slot.close()
    return exported.lsn, name


async def _patiently_exported(
    slot: ReplicationConnection, connection: asyncpg.Connection, settings: Settings
) -> ExportedSnapshot:
    """The number of transactions that a snapshot must list changes from moment to moment."""
    for _ in range(_TOO_LARGE_MAX):
        try:
            return await _export(slot, connection, settings)
        except SnapshotTooLargeError as error:
            log.info("snapshot_too_large", reason=str(error))
            await asyncio.sleep(_TOO_LARGE_PAUSE_S)
    return await _export(slot, connection, settings)


async def _export(
    slot: ReplicationConnection, connection: asyncpg.Connection, settings: Settings
) -> ExportedSnapshot:
    wait_s = settings.snapshot.slot_wait_s
    # A task, because creating a slot waits for every older transaction, and what it waits for is to
    # be reported.
    export = asyncio.create_task(
        slot.export_snapshot(f"headrace_snapshot_{secrets.token_hex(8)}"), name="export-snapshot"
    )
    try:
        done, _ = await asyncio.wait({export}, timeout=wait_s)
        if done:
            return export.result()
        waited_for = await connection.fetch(_WAITED_FOR, slot.backend_pid)
        prepared = await connection.fetch(_PREPARED, slot.backend_pid)
        # Otherwise the walsender would continue to wait for its lock, and hold its slot.
        await connection.execute("SELECT pg_cancel_backend($1)", slot.backend_pid)
    finally:
        export.cancel()
        await asyncio.wait({export})
    raise held_up(waited_for, prepared, wait_s)


def held_up(
    waited_for: Sequence[asyncpg.Record], prepared: Sequence[asyncpg.Record], wait_s: float
) -> SnapshotHeldUpError:
    who = "; ".join(
        [
            f"pid {row['pid']} ({row['role']}, {row['application'] or 'no application name'}, "
            f"open for {row['age_s']} s)"
            for row in waited_for
        ]
        + [
            f"prepared transaction {row['gid']} ({row['role']}, for {row['age_s']} s)"
            for row in prepared
        ]
    )
    return SnapshotHeldUpError(
        (
            f"the snapshot waited {wait_s:g} s for older transactions: "
            f"{who or 'which have just ended'}"
        ),
        remedy=(
            "End them (pg_terminate_backend, or ROLLBACK PREPARED), or raise "
            "HEADRACE_SNAPSHOT_SLOT_WAIT_S, and request it again."
        ),
    )


async def _describe(
    connection: asyncpg.Connection,
    present: asyncpg.Connection,
    table: PublishedTable,
    request: SnapshotRequest,
    lsn: int,
    exported: str,
    lost: asyncio.Event,
) -> HeldSnapshot:
    """`present` sees the catalog as it is now; `connection` as it was at the snapshot."""
    storages = await _locked_storages(connection, present, table)
    block = int(await connection.fetchval("SELECT current_setting('block_size')"))
    conditions = tuple(
        condition
        for condition in (table.row_filter, *(condition.sql() for condition in request.conditions))
        if condition is not None
    )
    columns = await _columns(connection, table, request)
    await _check_query(connection, storages, columns, conditions)
    keys = await catalog.keys(connection, [table.relation_id])
    types = await catalog.types(connection, {column.type_oid for column in columns})
    return HeldSnapshot(
        lsn,
        exported,
        columns,
        keys[table.relation_id].row,
        types,
        tuple(
            TableStorage(row["relation"], -(-row["bytes"] // block), row["relation_id"])
            for row in storages
        ),
        conditions,
        sum(row["rows"] for row in storages),
        lost,
    )


async def _locked_storages(
    connection: asyncpg.Connection, present: asyncpg.Connection, table: PublishedTable
) -> list[asyncpg.Record]:
    """The relations that store the rows, locked against truncation and rewrites, which no snapshot
    would survive.
    """
    rows: list[asyncpg.Record] = await connection.fetch(_STORAGES, table.relation_id)
    await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
    # Partitions too: locking the parent only would not protect them from TRUNCATE.
    names = {row["relation"] for row in rows} | {quote_table(table.schema, table.name)}
    try:
        # In a fixed order, so that two snapshots of related tables can't deadlock.
        for name in sorted(names):
            await connection.execute(f"LOCK TABLE ONLY {name} IN ACCESS SHARE MODE")
    except asyncpg.LockNotAvailableError as error:
        raise SnapshotHeldUpError(
            f"{table.schema}.{table.name} was locked for longer than {LOCK_TIMEOUT_S} s",
            remedy="Request it again when no session holds ACCESS EXCLUSIVE on it.",
        ) from error
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
        raise ChangedMeanwhileError(f"{table.schema}.{table.name} was dropped") from error
    # Compared under the locks. COPY would find no row that a rewrite moved to another file, and
    # would read the table that has the name now, with the columns that it has now.
    relations = [table.relation_id, *(row["relation_id"] for row in rows)]
    before = await connection.fetch(_DEFINITIONS, relations)
    if before != await present.fetch(_DEFINITIONS, relations):
        raise ChangedMeanwhileError(
            f"{table.schema}.{table.name} was just altered, rewritten or truncated"
        )
    return rows


async def check_name(connection: asyncpg.Connection, page_range: PageRange) -> None:
    """Raise unless the name by which a range was just copied still means its relation."""
    found = await connection.fetchval("SELECT to_regclass($1)::oid::int8", page_range.relation)
    if found != page_range.relation_id:
        raise RenamedMeanwhileError(f"{page_range.relation} is not the table that it was")


async def _columns(
    connection: asyncpg.Connection, table: PublishedTable, request: SnapshotRequest
) -> tuple[PlannedColumn, ...]:
    wanted = set(table.columns) if request.columns is None else set(request.columns)
    rows = await connection.fetch(_COLUMN_TYPES, table.relation_id)
    return tuple(
        PlannedColumn(row["name"], row["type_oid"]) for row in rows if row["name"] in wanted
    )


async def _check_query(
    connection: asyncpg.Connection,
    storages: Sequence[asyncpg.Record],
    columns: Sequence[PlannedColumn],
    conditions: Sequence[str],
) -> None:
    """Let PostgreSQL check the query before Spark runs: permissions, policies, values that don't
    fit their columns.
    """
    if not storages:
        return
    names = ", ".join(quote_name(column.name) for column in columns)
    where = "".join(f" AND ({condition})" for condition in conditions)
    # Every part is quoted.
    query = f"SELECT {names} FROM ONLY {storages[0]['relation']} WHERE true{where}"  # noqa: S608
    try:
        # EXPLAIN plans the query, with all its checks, and reads no row.
        await connection.execute(f"EXPLAIN {query}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise TableRefusedError(
            f"the role may not read every row: {error}",
            remedy="GRANT SELECT on the table; where row-level security hides rows from the "
            "role, which "
            "the stream of "
            "changes has, ALTER ROLE … BYPASSRLS.",
        ) from error
    except (asyncpg.DataError, asyncpg.SyntaxOrAccessError) as error:
        raise TableRefusedError(
            f"PostgreSQL refuses the filter: {error}", remedy="Correct filter in the request."
        ) from error
