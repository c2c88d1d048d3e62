"""Takes a base snapshot: holds the table's snapshot, copies it, and completes it once the archive
has come so far.

Promises that a base counts only once every part is stored and the archive contains all changes
before its LSN: then it and the files from `next_id` on give any later moment of the table. Refuses
a server that is not the archive's source.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import asyncpg

from headrace import log as logs
from headrace.archive.bases import BasePart, BaseRecord, Bases
from headrace.archive.errors import ArchiveError
from headrace.archive.mark import ArchiveMark
from headrace.archive.metadata import ColumnInfo, TableInfo, WalFileInfo
from headrace.archive.reader import ReadingStart, WalReader
from headrace.bases.copying import APPLICATION, BaseWork, Progress, copy_ranges
from headrace.contract.subjects_and_ids import table_token
from headrace.contract.values import ArrayForm, Encoding, JsonForm
from headrace.lsn import format_lsn
from headrace.postgres import catalog
from headrace.postgres.connection import explained
from headrace.postgres.facts import ServerIdentity
from headrace.process.failpoint import failpoint
from headrace.settings import Settings
from headrace.spark.plan import SnapshotPlan
from headrace.spark.range_receiver import importing
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import HeldSnapshot, held_snapshot
from headrace.spark.table_plan import plan_of
from headrace.spark.unless_lost import unless_lost

log = logs.logger("base")

_POLL_S = 0.5
_VERSION = 1

_TABLE = """
SELECT c.oid::int8 AS relation_id, c.relreplident::text AS identity,
       (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS time_us
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2
"""
_COLUMNS = """
SELECT attname AS name, atttypid::int8 AS type_oid, atttypmod AS type_modifier,
       format_type(atttypid, nullif(atttypmod, -1)) AS type_name, attnum::int AS number
FROM pg_attribute WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

# The archiver's mark of how far the log contained nothing more.
ReadMark = Callable[[], Awaitable[ArchiveMark]]
# Runs every task of the work.
Copier = Callable[[BaseWork], Awaitable[Sequence[BasePart]]]


class BaseAheadError(ArchiveError):
    """The archive does not contain the changes before the base."""

    retry = True
    remedy = "Start `headrace archiver`, or look at its log, and take the base again."


class ForeignSourceError(ArchiveError):
    """The archive contains the log of another source."""

    remedy = "Set HEADRACE_ARCHIVE_URL, HEADRACE_SLOT and PG_HOST to those of one suite."


@dataclass(frozen=True, slots=True)
class BasePlace:
    """The archive's place of a base."""

    archive: str
    system_id: str
    next_id: int


@dataclass(frozen=True, slots=True)
class CopiedBase:
    """A base whose parts are stored. It does not count yet."""

    id: str
    table: TableInfo
    lsn: int
    time_us: int
    server: ServerIdentity
    parts: tuple[BasePart, ...]


async def copy_base(
    settings: Settings, reader: WalReader, name: tuple[str, str], copier: Copier
) -> CopiedBase:
    """Copy a published table at one LSN."""
    schema, table = name
    base = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    await asyncio.to_thread(Bases(reader.store).begin, base)
    request = SnapshotRequest(table_token(schema, table), schema, table)
    async with held_snapshot(settings, request) as held:
        try:
            # With the role's own search_path, as the archiver: types have the same names.
            async with importing(settings, held.exported, APPLICATION, {}) as connection:
                info, time_us = await _described(connection, request, held)
                server = await catalog.server_identity(connection)
        except asyncpg.PostgresError as error:
            raise explained(error.sqlstate, str(error), settings.postgres) from error
        work = BaseWork(
            reader.store.url,
            base,
            settings.source.slot,
            _plan(held, settings),
            info,
            held.lsn,
            time_us,
            settings.archive.file_rows_max,
            settings.archive.file_bytes_max,
        )
        remedy = "Take the base again when PostgreSQL is available."
        parts = await unless_lost(copier(work), held.lost, remedy)
    return CopiedBase(base, info, held.lsn, time_us, server, tuple(parts))


async def complete_base(
    settings: Settings, reader: WalReader, copied: CopiedBase, mark: ReadMark, timeout_s: float
) -> BaseRecord:
    """Wait until the archive contains everything before the copy, and let it count from then on."""
    place = await covered(settings, reader, copied.lsn, copied.server, mark, timeout_s)
    record = BaseRecord(
        copied.id,
        place.archive,
        settings.source.slot,
        place.system_id,
        copied.table,
        copied.lsn,
        copied.time_us,
        place.next_id,
        sum(part.rows for part in copied.parts),
        copied.parts,
    )
    failpoint("base.before_record")
    await asyncio.to_thread(Bases(reader.store).complete, record)
    failpoint("base.after_record")
    log.info("base_taken", base=record.id, rows=record.rows, bytes=record.bytes)
    return record


def inline(settings: Settings, progress: Progress | None = None) -> Copier:
    """Copies in this process, one range after another."""

    async def copy(work: BaseWork) -> Sequence[BasePart]:
        parts: list[BasePart] = []
        for task in range(len(work.plan.tasks)):
            parts += await copy_ranges(settings, work, task, progress)
        return parts

    return copy


def _plan(held: HeldSnapshot, settings: Settings) -> SnapshotPlan:
    # The forms that the archive's files have.
    return replace(
        plan_of(held, settings),
        encoding=Encoding.JSON,
        arrays=ArrayForm.LITERAL,
        json_values=JsonForm.NATIVE,
    )


async def _described(
    connection: asyncpg.Connection, request: SnapshotRequest, held: HeldSnapshot
) -> tuple[TableInfo, int]:
    """The table's shape in the snapshot, as the archiver would describe it, and the time."""
    row = await connection.fetchrow(_TABLE, request.schema, request.table)
    rows = await connection.fetch(_COLUMNS, row["relation_id"])
    keys = (await catalog.keys(connection, [row["relation_id"]]))[row["relation_id"]]
    copied = {column.name for column in held.columns}
    shown = [each for each in rows if each["name"] in copied]
    key = _key(row["identity"], [each["name"] for each in shown], keys)
    columns = tuple(
        ColumnInfo(
            each["name"],
            each["type_oid"],
            each["type_modifier"],
            each["type_name"],
            each["name"] in key,
            filled=True,
            number=each["number"],
        )
        for each in shown
    )
    info = TableInfo(request.schema, request.table, row["relation_id"], _VERSION, key, columns)
    return info, row["time_us"]


def _key(identity: str, shown: Sequence[str], keys: catalog.Keys) -> tuple[str, ...]:
    """The columns that the archiver takes as a row's key."""
    if identity in {"d", "i"}:
        wanted = keys.primary if identity == "d" else keys.identity_index
        return tuple(name for name in shown if name in wanted)
    if keys.primary and set(keys.primary) <= set(shown):
        return keys.primary
    return tuple(shown) if identity == "f" else ()


async def covered(
    settings: Settings,
    reader: WalReader,
    lsn: int,
    server: ServerIdentity,
    mark: ReadMark,
    timeout_s: float,
) -> BasePlace:
    """Wait until the archive contains everything before an LSN; the file to continue with."""
    deadline = time.monotonic() + timeout_s
    while True:
        info = await asyncio.to_thread(_last, reader)
        # After the files: a mark counts only for the last one.
        noted = await mark()
        if info is not None:
            _check_source(settings, info, server)
        reached = _reached(info, noted, reader.store.url)
        if reached >= lsn:
            break
        if time.monotonic() > deadline:
            raise BaseAheadError(
                f"the archive contains the log up to {format_lsn(reached)}, the snapshot is at "
                f"{format_lsn(lsn)}"
            )
        await asyncio.sleep(_POLL_S)
    if info is None:
        return BasePlace(noted.archive, server.system_id, 1)
    next_id = await asyncio.to_thread(_first_with, reader, lsn)
    return BasePlace(info.archive, info.system_id, next_id)


def _check_source(settings: Settings, info: WalFileInfo, server: ServerIdentity) -> None:
    if info.source != settings.source.slot:
        raise ForeignSourceError(
            f"the archive belongs to the slot {info.source}, not to {settings.source.slot}"
        )
    if server.contradicts(ServerIdentity(info.system_id)):
        raise ForeignSourceError(
            f"the archive is of the PostgreSQL server {info.system_id}, and this is "
            f"{server.system_id}"
        )


def _reached(info: WalFileInfo | None, mark: ArchiveMark, url: str) -> int:
    """Everything before this LSN is in the archive."""
    if info is None:
        # An archive without files, of which only the mark knows.
        return mark.lsn if mark.url == url and not mark.file else 0
    if (mark.archive, mark.file) == (info.archive, info.id):
        return max(info.end_lsn, mark.lsn)
    return info.end_lsn


def _last(reader: WalReader) -> WalFileInfo | None:
    listed = reader.list(max(1, reader.reading.seen.highest))
    file = reader.get(listed[-1].id) if listed else None
    return None if file is None else file.info


def _first_with(reader: WalReader, lsn: int) -> int:
    start = ReadingStart(from_lsn=lsn)
    return reader.run(start.first_id(reader.reading.options, reader.reading.seen))
