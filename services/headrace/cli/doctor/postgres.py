"""The checks of `headrace doctor` on PostgreSQL. Reads only: its replication connection streams
nothing.
"""

from __future__ import annotations

import time

import asyncpg

from headrace.cli.doctor import generated_columns, partition_identities
from headrace.cli.doctor.checks import Findings
from headrace.cli.session import postgres, suite_of
from headrace.contract.table_patterns import column_named
from headrace.errors import HeadraceError
from headrace.postgres import slot_reader
from headrace.postgres.connection import where
from headrace.postgres.replication import ReplicationConnection
from headrace.postgres.slot_reader import SlotReader
from headrace.settings import Settings

_DENIED_REMEDY = "Grant the role CONNECT on the database, and pg_monitor."

GROUP = "PostgreSQL"
_OLDEST = 140_000
_GIVES = (
    (180_000, "generated columns in publications"),
    (170_000, "failover slots"),
    (150_000, "row filters and column lists"),
)
_SHOWN_TABLES = 5

_TABLES = """
SELECT format('%I.%I', n.nspname, c.relname) AS name, c.relreplident::text AS identity,
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE') AS readable,
       EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key,
       EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid
           AND i.indisreplident) AS has_identity_index
FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = $1 ORDER BY 1
"""
_COLUMNS = """
SELECT p.schemaname AS schema, p.tablename AS name, array_agg(a.attname::text) AS columns
FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE p.pubname = $1 GROUP BY 1, 2
"""
# As bytes: a SQL_ASCII database has names in any encoding, which a driver can't read as text.
_NAMES = """
SELECT DISTINCT convert_to(p.schemaname || '.' || p.tablename, 'SQL_ASCII') AS name,
       convert_to(a.attname::text, 'SQL_ASCII') AS column
FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE p.pubname = $1 AND getdatabaseencoding() = 'SQL_ASCII'
"""
_PUBLICATION = """
SELECT puballtables AS everything, array_remove(ARRAY[CASE WHEN NOT pubinsert THEN 'insert' END,
       CASE WHEN NOT pubupdate THEN 'update' END, CASE WHEN NOT pubdelete THEN 'delete' END,
       CASE WHEN NOT pubtruncate THEN 'truncate' END], NULL) AS left_out
FROM pg_publication WHERE pubname = $1
"""
_SLOT = """
SELECT s.plugin, s.database, current_database() AS here, s.two_phase,
       s.active, s.active_pid, s.wal_status,
       pg_size_pretty(pg_current_wal_lsn() - s.restart_lsn) AS retained
FROM pg_replication_slots s WHERE s.slot_name = $1
"""
_ROOM = """
SELECT (SELECT count(*) FROM pg_replication_slots) AS slots,
    current_setting('max_replication_slots')::int AS slots_max,
       (SELECT count(*) FROM pg_stat_replication) AS senders,
           current_setting('max_wal_senders')::int AS senders_max,
       current_setting('max_slot_wal_keep_size') AS keep, extract(epoch
           FROM clock_timestamp())::float8 AS clock
"""


async def examine(settings: Settings) -> Findings:
    findings = Findings(GROUP, [])
    # First, and without PostgreSQL: the slot's reader may be this very suite.
    suite = await suite_of(settings, "doctor")
    try:
        async with postgres(settings, "doctor", _DENIED_REMEDY) as session:
            await _server(session, settings, findings)
            await _replication(settings, findings)
            await _publication(session, settings, findings)
            await _slot(session, settings, suite, findings)
            await _room(session, settings, findings)
    except HeadraceError as error:
        findings.fail("connection", *_parts(error))
    return findings


def _parts(error: HeadraceError) -> tuple[str, str]:
    """An error's message and its remedy, separately."""
    return str(error.args[0]), error.remedy


async def _server(session: asyncpg.Connection, settings: Settings, findings: Findings) -> None:
    row = await session.fetchrow(
        "SELECT current_user AS role, current_database() AS database, version() AS version"
    )
    number = int(await session.fetchval("SHOW server_version_num"))
    version = " ".join(str(row["version"]).split()[:2])
    findings.ok(
        "connection", f"{where(settings.postgres)}, database {row['database']}, role {row['role']}"
    )
    gives = next((what for since, what in _GIVES if number >= since), "the basics")
    findings.judge(
        "version",
        f"{version} ({gives})",
        "Use PostgreSQL 14 or newer; 15 for row filters.",
        good=number >= _OLDEST,
    )
    level = await session.fetchval("SHOW wal_level")
    remedy = "Set wal_level = logical in postgresql.conf and restart PostgreSQL."
    findings.judge("wal_level", level, remedy, good=level == "logical")


async def _replication(settings: Settings, findings: Findings) -> None:
    """The permission is proved by using it: pg_hba.conf and free walsenders matter too."""
    try:
        connection = await ReplicationConnection.open(settings.postgres, "headrace doctor")
    except HeadraceError as error:
        findings.fail("replication", *_parts(error))
        return
    try:
        identity = await connection.identify()
        findings.ok("replication", f"system {identity.system_id}, timeline {identity.timeline}")
    except HeadraceError as error:
        findings.fail("replication", *_parts(error))
    finally:
        connection.close()


async def _publication(session: asyncpg.Connection, settings: Settings, findings: Findings) -> None:
    name = settings.source.publication
    row = await session.fetchrow(_PUBLICATION, name)
    if row is None:
        remedy = "Run `headrace init`, or CREATE PUBLICATION, or name another with --pub."
        findings.fail("publication", f"{name} does not exist", remedy)
        return
    # Before anything else is asked about the tables: the driver can't read such names as text.
    if unreadable := await _unreadable(session, name):
        findings.fail(
            "names",
            f"not UTF-8: {', '.join(unreadable)}",
            "Rename them before a row of these tables is written: HEADRACE_POISON=park parks "
            "changes, but a name that can't be read stops the stream.",
        )
        return
    tables = await session.fetch(_TABLES, name)
    found = f"{name}: {len(tables)} table{'' if len(tables) == 1 else 's'}"
    if row["left_out"]:
        left_out = ", ".join(row["left_out"])
        findings.warn(
            "publication",
            f"{found}, without {left_out}",
            f"ALTER PUBLICATION {name} SET (publish = '…').",
        )
    elif not tables:
        findings.warn("publication", found, f"Add some: ALTER PUBLICATION {name} ADD TABLE ….")
    else:
        findings.ok("publication", found)
    _tables(tables, findings)
    await _excluded_columns(session, settings, findings)
    refused = await generated_columns.refused(session, name)
    if refused.names:
        found = _named(refused.names, "PostgreSQL refuses UPDATE and DELETE of", "")
        findings.fail(
            "generated",
            f"{found}: their identity has columns that aren't published",
            refused.remedy(name),
        )
    lacking = await partition_identities.lacking(session, name)
    if lacking.names:
        found = _named(lacking.names, "old keys of rows are not sent for", "")
        findings.fail(
            "partitions",
            f"{found}: the replica identity lacks columns of the root's",
            lacking.remedy(),
        )


async def _unreadable(session: asyncpg.Connection, publication: str) -> list[str]:
    """Names of published tables and their columns that are not UTF-8, with escapes."""
    found = set()
    for row in await session.fetch(_NAMES, publication):
        for parts in ((row["name"],), (row["name"], row["column"])):
            name = b".".join(parts)
            if not _is_utf8(parts[-1]):
                found.add(name.decode(errors="backslashreplace"))
    return sorted(found)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _tables(tables: list[asyncpg.Record], findings: Findings) -> None:
    unreadable = [row["name"] for row in tables if not row["readable"]]
    grant = (
        f"GRANT SELECT ON {', '.join(unreadable[:_SHOWN_TABLES])} TO the role, and USAGE "
        "on the schema."
    )
    findings.judge(
        "SELECT", _named(unreadable, "no SELECT on", "all readable"), grant, good=not unreadable
    )
    lacking = [row["name"] for row in tables if not _identified(row)]
    if lacking:
        remedy = (
            "PostgreSQL refuses their UPDATEs and DELETEs: add a primary key, or ALTER "
            "TABLE … REPLICA IDENTITY FULL."
        )
        findings.warn("identity", _named(lacking, "none for", ""), remedy)
    else:
        findings.ok("identity", "every table has a replica identity")


async def _excluded_columns(
    session: asyncpg.Connection, settings: Settings, findings: Findings
) -> None:
    """A renamed column is delivered under its new name."""
    wanted = settings.format.exclude_columns
    if not wanted:
        return
    rows = await session.fetch(_COLUMNS, settings.source.publication)
    lost = [
        pattern
        for pattern in wanted
        if not any(
            column_named(pattern, row["schema"], row["name"]) in row["columns"] for row in rows
        )
    ]
    if lost:
        findings.warn(
            "excluded columns",
            _named(lost, "no published table has", ""),
            "Correct HEADRACE_EXCLUDE_COLUMNS: a column that was renamed is delivered under its "
            "new name.",
        )
    else:
        findings.ok("excluded columns", f"{len(wanted)} of them found")


def _identified(row: asyncpg.Record) -> bool:
    known = {"d": row["has_key"], "i": row["has_identity_index"], "f": True}
    return bool(known.get(row["identity"], False))


def _named(names: list[str], before: str, none: str) -> str:
    if len(names) > _SHOWN_TABLES:
        more = f" and {len(names) - _SHOWN_TABLES} more"
    else:
        more = ""
    if names:
        return f"{before} {', '.join(names[:_SHOWN_TABLES])}{more}"
    return none


async def _slot(
    session: asyncpg.Connection, settings: Settings, suite: str | None, findings: Findings
) -> None:
    name = settings.source.slot
    row = await session.fetchrow(_SLOT, name)
    if row is None:
        findings.fail("slot", f"{name} does not exist", "Run `headrace init`.")
        return
    # A slot of another database would stream that one's changes.
    if row["plugin"] != "pgoutput" or row["database"] != row["here"]:
        found = f"{name} is of {row['plugin']} in database {row['database']}"
        findings.fail("slot", found, "Name another slot with --slot.")
        return
    if row["two_phase"]:
        found = f"{name} was created with two_phase"
        findings.fail("slot", found, "Name another slot with --slot, or drop this one.")
        return
    other = await _other_reader(session, name, suite)
    if other is not None:
        findings.fail("slot", f"{name} is read by {other}", slot_reader.REMEDY)
        return
    if row["active"]:
        reader = f"read by process {row['active_pid']}"
    else:
        reader = "nobody reads it now"
    found = (
        f"{name}: {row['wal_status'] or 'unknown'}, retains {row['retained'] or 'nothing'}, "
        f"{reader}"
    )
    if row["wal_status"] == "lost":
        findings.fail(
            "slot", found, "`headrace teardown`, `headrace init`, and bootstrap consumers again."
        )
    elif row["wal_status"] == "unreserved":
        findings.warn(
            "slot",
            found,
            "Start the suite now, or raise max_slot_wal_keep_size: PostgreSQL is about to "
            "invalidate the slot.",
        )
    else:
        findings.ok("slot", found)


async def _other_reader(
    session: asyncpg.Connection, slot: str, suite: str | None
) -> SlotReader | None:
    """The slot's reader, if it isn't this suite's; if NATS doesn't say which suite this is, any
    suite's may be.
    """
    row = await session.fetchrow(f"{slot_reader.QUERY}$1", slot)
    if row is None:
        return None
    reader = SlotReader.of(row)
    unknown = suite is None and reader.is_suite
    if not unknown and reader.is_foreign(suite or ""):
        return reader
    return None


async def _room(session: asyncpg.Connection, settings: Settings, findings: Findings) -> None:
    before = time.time()
    row = await session.fetchrow(_ROOM)
    has_slot = await session.fetchval(
        "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1", settings.source.slot
    )
    found = f"{row['slots']} of {row['slots_max']} used"
    # An existing slot needs no free place.
    room = bool(has_slot) or row["slots"] < row["slots_max"]
    findings.judge(
        "slots",
        found,
        "Drop an unused slot, or raise max_replication_slots and restart.",
        good=room,
    )
    found = f"{row['senders']} of {row['senders_max']} used"
    free = row["senders"] < row["senders_max"]
    findings.judge("walsenders", found, "Raise max_wal_senders and restart PostgreSQL.", good=free)
    if row["keep"] == "-1":
        remedy = (
            "If the suite is down for long, WAL fills the disk: set max_slot_wal_keep_size (for "
            "example 10GB), and watch the lag."
        )
        findings.warn("WAL bound", "none (max_slot_wal_keep_size = -1)", remedy)
    else:
        findings.ok("WAL bound", f"max_slot_wal_keep_size = {row['keep']}")
    # The server read its clock between the two readings here.
    findings.skew(row["clock"] - (before + time.time()) / 2)
