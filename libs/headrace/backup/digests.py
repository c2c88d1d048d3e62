"""Digests of all tables of a database, computed by PostgreSQL, at an exact LSN.

A drill compares those of the source with those of a restored cluster. Promises that both are of
exactly the rows that were committed before the LSN: a table that was rewritten or dropped while
its digest was computed has none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import orjson

from headrace.backup import layout
from headrace.backup.errors import BackupError, TakenError
from headrace.backup.sealed import seal
from headrace.backup.store import BackupStore
from headrace.postgres.connection import connect
from headrace.postgres.physical import PhysicalConnection
from headrace.settings import PostgresSettings

# Timeline and LSN.
_NAME = re.compile(r"[0-9A-F]{8}([0-9A-F]{16})\.zst")
# The text of a row must not depend on the settings of a role, a database or a server.
_SESSION = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    # A policy would hide rows: an error instead.
    "row_security": "off",
    # As a dump, it must not hold up the application behind its own waiting lock.
    "lock_timeout": "10s",
}
# Unlogged tables are empty after a recovery.
_TABLES = """
SELECT c.oid::int8 AS oid, format('%I.%I', n.nspname, c.relname) AS name,
       c.relfilenode::int8 AS file
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND c.relispopulated
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
ORDER BY 2
"""
# A sum: the order of rows doesn't matter, and a row that occurs twice counts twice.
_DIGEST = "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM ONLY {} t"


@dataclass(frozen=True, slots=True)
class RecordedDigests:
    """The digests of a database at an LSN."""

    # Of the log that contains everything before the LSN.
    timeline: int
    lsn: int
    # When they were computed, for people.
    time: str
    # The database, whose name a restored cluster has, too.
    database: str
    # Each table's number of rows and the sum of their hashes, as text, by qualified name.
    tables: Mapping[str, str]


async def digests_in(session: Any) -> dict[str, str]:
    """The digests that a transaction sees; its snapshot must be fixed."""
    for name, value in _SESSION.items():
        await session.execute("SELECT set_config($1, $2, true)", name, value)
    found = {}
    for row in await session.fetch(_TABLES):
        try:
            async with session.transaction():
                digest = await session.fetchval(_DIGEST.format(row["name"]))
        except asyncpg.UndefinedTableError:
            # Dropped or renamed since the snapshot.
            continue
        # TRUNCATE and ALTER TABLE replace the file, for older snapshots as well. The lock of the
        # query before prevents both from now on.
        if (
            await session.fetchval("SELECT pg_relation_filenode($1::oid)", row["oid"])
            == row["file"]
        ):
            found[row["name"]] = digest
    return found


async def source_digests(settings: PostgresSettings) -> RecordedDigests:
    """The digests of the source's database, at an LSN of now."""
    replication = await PhysicalConnection.open(settings, "headrace drill")
    try:
        identity = await replication.identify()
        if await replication.setting("wal_level") != "logical":
            raise BackupError(
                "a drill needs the LSN of a snapshot, and wal_level is not logical",
                remedy="Set wal_level = logical in postgresql.conf and restart PostgreSQL.",
            )
        # The slot is temporary: PostgreSQL drops it with the connection.
        snapshot = await replication.export_snapshot(f"headrace_drill_{replication.backend_pid}")
        async with _as_of(settings, snapshot.name) as session:
            database = await session.fetchval("SELECT current_database()")
            tables = await digests_in(session)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return RecordedDigests(identity.timeline, snapshot.lsn, time, database, tables)
    except asyncpg.InsufficientPrivilegeError as error:
        raise BackupError(
            f"a drill can't read every table: {error}",
            remedy="Connect as a role with pg_read_all_data and BYPASSRLS, or as a superuser.",
        ) from error
    finally:
        replication.close()


@asynccontextmanager
async def _as_of(settings: PostgresSettings, snapshot: str) -> AsyncIterator[Any]:
    session = await connect(settings, "headrace drill")
    try:
        async with session.transaction(isolation="repeatable_read", readonly=True):
            # The first statement of the transaction; the name is PostgreSQL's own.
            await session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            yield session
    finally:
        session.terminate()


def record(store: BackupStore, made: RecordedDigests) -> None:
    """Store digests, for drills to come."""
    name = f"{made.timeline:08X}{made.lsn:016X}.zst"
    # Another drill of the same moment has recorded the same.
    with contextlib.suppress(TakenError):
        store.put_new(layout.DIGESTS, name, seal(orjson.dumps(asdict(made))))


def recorded(store: BackupStore) -> list[RecordedDigests]:
    """All stored digests."""
    return [
        RecordedDigests(**orjson.loads(store.get_sealed(layout.DIGESTS, name)))
        for name in store.names(layout.DIGESTS)
        if _NAME.fullmatch(name)
    ]


def unusable(store: BackupStore, first_lsn: int) -> list[str]:
    """The names of digests before the LSN from which on moments can be restored."""
    found = (_NAME.fullmatch(name) for name in store.names(layout.DIGESTS))
    return [match[0] for match in found if match is not None and int(match[1], 16) < first_lsn]
