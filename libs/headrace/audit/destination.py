"""The database that the trail is written to: rows and position in one transaction.

Promises: a batch is written completely or not at all, and once: the state is updated by
compare-and-set in the transaction of the rows, so that neither a restart nor a second writer
repeats or skips one. Never recreates the table if the state says that it existed: it waits for a
renamed or dropped audit table.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import asyncpg

from headrace.audit.rows import COLUMNS, change_id
from headrace.audit.settings import AuditSettings, SslMode
from headrace.audit.stitching import Batch, Open
from headrace.audit.table import ADOPTABLE, GAPS, STATE, TABLES, AuditTable
from headrace.audit.table_book import Names, Noted
from headrace.audit.values import escaped, unreadable
from headrace.contract.values import SESSION_SETTINGS
from headrace.errors import SettingError
from headrace.lsn import ORIGIN, Position
from headrace.postgres.connection import PostgresError, PostgresRefusedError, explained
from headrace.postgres.quoting import quote_literal
from headrace.process.failpoint import failpoint
from headrace.settings import PostgresSettings

_NOTHING_NEW: Mapping[Names, Noted] = MappingProxyType({})
# Classes of SQLSTATEs: a value that PostgreSQL can't read, or that exceeds its limits.
_UNREADABLE = ("22", "54")
# Two audit-writers may start at the same moment, with an empty destination.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('headrace audit'))"
# A session's lock: it ends with its connection, however the process ends.
_CLAIM = "SELECT pg_try_advisory_lock(hashtext('headrace audit'), hashtext($1))"
# So that a lock whose holder's network is gone is released within half a minute.
_KEEPALIVES = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
}
# Rows that one DELETE of the retention removes.
EXPIRED_AT_ONCE = 10_000
# An index on an older table's rows may take hours.
_UPGRADE_TIMEOUT_S = 86_400.0
_OWN = """
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND (c.relname = ANY($2::text[])
    OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($3)))
"""


class AuditTableError(PostgresError):
    """The audit table is missing, or isn't an audit table."""


class DestinationFencedError(PostgresError):
    """Another audit-writer has moved the trail on."""

    retry = True
    remedy = "Run one audit-writer per source; this one continues from where the other is."


class ClaimedError(PostgresError):
    """Another audit-writer writes the trail; this one stands by."""

    retry = True


@dataclass(slots=True)
class TrailState:
    """How far the trail is."""

    position: Position = ORIGIN
    stream_seq: int = 0
    open: Open | None = None


def _ssl(settings: AuditSettings) -> ssl.SSLContext | str | None:
    """As in libpq: a configured authority is also checked with `require`, and never with `disable`
    and `prefer`.
    """
    mode = settings.ssl_mode
    if mode in {None, SslMode.DISABLE, SslMode.PREFER} or settings.ssl_root_cert is None:
        if mode is None:
            return None
        return str(mode)
    try:
        context = ssl.create_default_context(cafile=settings.ssl_root_cert)
    except OSError as error:
        raise SettingError(
            (
                f"DEST_DB_SSL_ROOT_CERT={settings.ssl_root_cert!r} can't be read: "
                f"{error.strerror or error}"
            ),
            remedy="Name a file of PEM certificates.",
        ) from error
    context.check_hostname = mode is SslMode.VERIFY_FULL
    return context


async def connect(
    settings: AuditSettings,
    source: PostgresSettings,
    application: str,
    command_timeout_s: float | None = None,
) -> asyncpg.Connection:
    """A connection to the destination; a statement that takes longer raises `TimeoutError`."""
    to = settings.destination(source)
    given: dict[str, Any] = {
        "host": to.host,
        "port": to.port,
        "user": to.user,
        "password": to.password,
    }
    given |= {"database": to.database, "ssl": _ssl(settings)}
    try:
        return await asyncpg.connect(
            **{name: value for name, value in given.items() if value is not None},
            timeout=to.connect_timeout_s,
            command_timeout=command_timeout_s,
            server_settings={"application_name": application, **SESSION_SETTINGS, **_KEEPALIVES},
        )
    except asyncpg.PostgresError as error:
        raise explained(error.sqlstate, str(error.args[0]), to) from error
    except (OSError, asyncio.IncompleteReadError, asyncpg.InterfaceError) as error:
        unreachable = explained(None, str(error) or "it did not answer in time", to)
        if settings.elsewhere:
            unreachable.remedy = "Start it, or set DEST_DB_HOST and DEST_DB_PORT to its address."
        raise unreachable from error


def _noted(row: asyncpg.Record) -> Noted:
    since = None
    if row["since_position"] is not None:
        since = Position(row["since_position"], row["since_ordinal"])
    binary = row["binary_columns"]
    if binary is not None:
        binary = tuple(binary)
    return Noted(tuple(row["key"]), binary, row["relation_id"], since, row["files"])


class Destination:
    """An open connection to the trail's database."""

    def __init__(
        self, connection: asyncpg.Connection, settings: AuditSettings, source: str
    ) -> None:
        self._connection = connection
        self._table = AuditTable.of(settings)
        self._source = source
        # Months whose partitions are known to exist.
        self._months: set[str] = set()
        self._insert_gap = (
            f"INSERT INTO {self._table.beside(GAPS)} (source, stream_seq, reason) VALUES ($1, "
            "$2, $3)"
            " ON CONFLICT (source, stream_seq) DO UPDATE SET reason = excluded.reason, noticed_at "
            "= now()"
        )
        # As of the last commit: the next one replaces exactly this state, or is refused.
        self.state = TrailState()
        # The audit's own tables: with the source's database as destination they come in the stream
        # too. By name and oid: elsewhere a table of the same name is another's, and one of the same
        # oid has another name.
        self.own: set[tuple[int, str, str]] = set()

    @property
    def names(self) -> set[str]:
        return {self._table.name, STATE, TABLES, GAPS}

    async def claim(self) -> None:
        """Become the only writer of this source's trail, for as long as the connection lasts."""
        if not await self._connection.fetchval(_CLAIM, self._source):
            raise ClaimedError(f"another audit-writer writes the trail of {self._source}")

    async def prepare(self) -> None:
        """Create what is missing; read how far the trail is."""
        try:
            async with self._connection.transaction():
                # Held to the end of the transaction: without the lock, CREATE TABLE IF NOT EXISTS
                # fails if two run at the same time.
                await self._connection.execute(_LOCK)
                await self._make()
            async with self._connection.transaction():
                await self._connection.execute(_LOCK)
                await self._make_place_unique()
        except asyncpg.InsufficientPrivilegeError as error:
            raise PostgresRefusedError(
                f"the audit's destination: {error.args[0]}",
                remedy="Grant the role CREATE on the schema, or run what `headrace audit "
                "sql` prints as "
                "the tables' "
                "owner (it also upgrades those of an earlier version) and grant the "
                "role SELECT, "
                "INSERT, UPDATE and "
                "DELETE on them.",
            ) from error
        await self._load()

    async def noted(self) -> dict[Names, Noted]:
        """The known facts of every table, as of the trail's position."""
        found = await self._connection.fetch(
            f"SELECT * FROM {self._table.beside(TABLES)} WHERE source = $1",
            self._source,
        )
        return {(row["schema"], row["table"]): _noted(row) for row in found}

    async def write(self, batch: Batch, noted: Mapping[Names, Noted] = _NOTHING_NEW) -> None:
        """Commit a batch; if PostgreSQL refuses a value, write that value as text.

        `noted` contains what became known about tables up to the batch's end, and not beyond: after
        a crash, the rest is read again.
        """
        try:
            await self._write(batch, noted)
        except asyncpg.PostgresError as error:
            if not str(error.sqlstate).startswith(_UNREADABLE):
                raise
            await self._mend(batch)
            await self._write(batch, noted)

    @property
    def is_lost(self) -> bool:
        """Whether its connection ended, which would go unnoticed with nothing to write."""
        return bool(self._connection.is_closed())

    async def note_gap(self, stream_seq: int, reason: str) -> None:
        """Record permanently that something is missing, and continue in the stream after this
        sequence.
        """
        async with self._connection.transaction():
            await self._connection.execute(self._insert_gap, self._source, stream_seq, reason)
            await self._move(self.state.position, stream_seq, self.state.open)

    async def expire(self, keep_days: int) -> int:
        """Remove older rows: whole partitions, or rows some at a time. Returns the number of
        partitions or rows.

        The oldest first: a revert in between must not take a row's last change but one for its
        last one.
        """
        if self._table.partitioned:
            return await self._drop_partitions(keep_days)
        status = await self._connection.execute(
            f"DELETE FROM {self._table.quoted} WHERE ctid = ANY(ARRAY(SELECT ctid FROM "
            f"{self._table.quoted}"
            " WHERE committed_at < now() - make_interval(days => $1)"
            f" ORDER BY committed_at, position, ordinal LIMIT {EXPIRED_AT_ONCE}))",
            keep_days,
        )
        return int(status.split()[-1])

    async def _drop_partitions(self, keep_days: int) -> int:
        oldest = await self._connection.fetchval(
            "SELECT to_char((now() - make_interval(days => $1)) AT TIME ZONE 'UTC', 'YYYY-MM')",
            keep_days,
        )
        partitions = await self._connection.fetch(
            (
                "SELECT c.relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE "
                "inhparent = to_regclass($1)"
            ),
            self._table.quoted,
        )
        # The audit must not drop a partition that it did not create, such as a default partition.
        months = [row["relname"] for row in partitions if self._table.is_a_month(row["relname"])]
        old = [name for name in months if name < self._table.partition(oldest)]
        for name in sorted(old):
            await self._connection.execute(f'DROP TABLE "{self._table.schema}"."{name}"')
        return len(old)

    async def _make(self) -> None:
        fetchval = self._connection.fetchval
        if await fetchval("SELECT to_regclass($1)", self._table.beside(STATE)) is None:
            if await fetchval("SELECT to_regnamespace($1)", f'"{self._table.schema}"') is None:
                await self._connection.execute(f'CREATE SCHEMA "{self._table.schema}"')
            await self._connection.execute(self._table.create_beside())
        began = await fetchval(f"SELECT count(*) FROM {self._table.beside(STATE)}")
        there = await fetchval("SELECT to_regclass($1)::oid", self._table.quoted)
        # Someone renamed or dropped it. A new, empty table would hide that, and the trail would
        # have a hole.
        if there is None and began:
            raise AuditTableError(
                f"the audit table {self._table.quoted} no longer exists, although its trail has "
                "started",
                remedy=f"Rename it back, or empty {STATE} to start a new one.",
            )
        if there is None:
            await self._connection.execute(self._table.create())
        else:
            await self._adopt(there)

    async def _make_place_unique(self) -> None:
        """In a separate transaction: an earlier version's large table stays readable meanwhile."""
        if (
            await self._connection.fetchval("SELECT to_regclass($1)", self._table.place_index)
            is None
        ):
            await self._connection.execute(self._table.unique_place(), timeout=_UPGRADE_TIMEOUT_S)

    async def _adopt(self, oid: int) -> None:
        rows = await self._connection.fetch(
            (
                "SELECT attname FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT "
                "attisdropped"
            ),
            oid,
        )
        columns = {row["attname"] for row in rows}
        if {"ordinal", "unchanged", "exact", "source"} <= columns:
            await self._complete_tables()
            return
        if not columns.issuperset(ADOPTABLE):
            raise AuditTableError(
                f"{self._table.quoted} exists, but is not an audit table",
                remedy="Choose another name with HEADRACE_AUDIT_TABLE.",
            )
        if "ordinal" in columns:
            sources = await self._connection.fetch(
                f"SELECT source FROM {self._table.beside(STATE)}"
            )
            source = None
            if len(sources) == 1:
                source = quote_literal(sources[0]["source"])
            statements = self._table.upgrade(source)
        else:
            statements = self._table.adopt()
        await self._connection.execute(statements, timeout=_UPGRADE_TIMEOUT_S)

    async def _complete_tables(self) -> None:
        """Add the columns of tables to a trail that is otherwise of this version."""
        last = await self._connection.fetchval(
            (
                "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass($1) AND "
                "attname = 'files'"
            ),
            self._table.beside(TABLES),
        )
        if not last:
            await self._connection.execute(self._table.upgrade())

    async def _load(self) -> None:
        state = self._table.beside(STATE)
        await self._connection.execute(
            f"INSERT INTO {state} (source, position, ordinal, stream_seq) VALUES ($1, 0, 0, 0) "
            "ON CONFLICT DO NOTHING",
            self._source,
        )
        row = await self._connection.fetchrow(
            f"SELECT position, ordinal, stream_seq, open FROM {state} WHERE source = $1",
            self._source,
        )
        if row["open"] is None:
            opened = None
        else:
            opened = Open(**json.loads(row["open"]))
        self.state = TrailState(
            Position(row["position"], row["ordinal"]), row["stream_seq"], opened
        )
        await self._know_own()

    async def _know_own(self) -> None:
        found = await self._connection.fetch(
            _OWN, self._table.schema, list(self.names), self._table.quoted
        )
        self.own = {(row["oid"], row["nspname"], row["relname"]) for row in found}

    async def _write(self, batch: Batch, noted: Mapping[Names, Noted]) -> None:
        # Before the transaction: creating a partition locks the table, and readers must not wait
        # for the COPY.
        if self._table.partitioned and not batch.months <= self._months:
            await self._partitions(batch.months)
        assert batch.position is not None, "a batch that was cut has one"
        async with self._connection.transaction():
            await self._move(batch.position, batch.stream_seq, batch.open)
            for stream_seq, reason in batch.gaps:
                await self._connection.execute(self._insert_gap, self._source, stream_seq, reason)
            failpoint("audit_writer.before_copy")
            if batch.lines:
                await self._connection.copy_to_table(
                    self._table.name,
                    schema_name=self._table.schema,
                    source=_pieces(batch),
                    columns=COLUMNS,
                )
            for patch in batch.patches:
                await self._connection.execute(
                    # Another source may have rows at the same position. The id distinguishes them
                    # even if the table's earlier rows don't name their source.
                    f"UPDATE {self._table.quoted} SET context = $3::text::jsonb WHERE position "
                    "= $1 AND ordinal < $2"
                    " AND id BETWEEN $4 AND $5 AND coalesce(source, $6) = $6",
                    patch.lsn,
                    patch.before,
                    patch.context.decode(),
                    change_id(self._source, patch.lsn, 0),
                    change_id(self._source, patch.lsn, patch.before),
                    self._source,
                )
            await self._keep(noted)
            failpoint("audit_writer.before_commit")
        failpoint("audit_writer.after_commit")
        self.state = TrailState(batch.position, batch.stream_seq, batch.open)

    async def _move(self, position: Position, stream_seq: int, opened: Open | None) -> None:
        """First in the transaction: a second writer waits here, and then finds that it is late."""
        status = await self._connection.execute(
            f"UPDATE {self._table.beside(STATE)} SET position = $2, ordinal = $3, stream_seq = "
            "$4, open = $5,"
            " updated_at = now() WHERE source = $1 AND position = $6 AND ordinal = $7 AND "
            "stream_seq = $8",
            self._source,
            *position,
            stream_seq,
            None if opened is None else json.dumps(asdict(opened)),
            *self.state.position,
            self.state.stream_seq,
        )
        # The condition names the state that this process has read. Another writer has moved it, so
        # the rows of this transaction may be in the trail already.
        if status != "UPDATE 1":
            raise DestinationFencedError(
                f"the audit of {self._source} was moved on by another process"
            )

    async def _keep(self, noted: Mapping[Names, Noted]) -> None:
        for (schema, table), known in noted.items():
            since: tuple[int, int] | tuple[None, None] = known.since or (None, None)
            await self._connection.execute(
                f'INSERT INTO {self._table.beside(TABLES)} (source, schema, "table", key, '
                "binary_columns,"
                " relation_id, since_position, since_ordinal, files)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
                ' ON CONFLICT (source, schema, "table") DO UPDATE SET key = excluded.key,'
                " binary_columns = excluded.binary_columns, relation_id = excluded.relation_id,"
                " since_position = excluded.since_position, since_ordinal = excluded.since_ordinal,"
                " files = excluded.files",
                self._source,
                schema,
                table,
                list(known.key),
                None if known.binary is None else list(known.binary),
                known.relation_id,
                *since,
                known.files,
            )

    async def _partitions(self, months: set[str]) -> None:
        for month in sorted(months - self._months):
            await self._connection.execute(self._table.create_partition(month))
        self._months |= months
        await self._know_own()

    async def _mend(self, batch: Batch) -> None:
        """Find the values that jsonb refuses, and replace them by their text."""
        for place, line in enumerate(batch.lines):
            fields = line.split(b"\t")
            fields[5], fields[6] = await self._mended(fields[5]), await self._mended(fields[6])
            batch.lines[place] = b"\t".join(fields)
        mended = {one: await self._mended(one) for one in set(batch.contexts)}
        batch.contexts = [mended[one] for one in batch.contexts]
        for place, patch in enumerate(batch.patches):
            context = _unescaped(await self._mended(escaped(patch.context))).encode()
            batch.patches[place] = replace(patch, context=context)

    async def _mended(self, field: bytes) -> bytes:
        text = _unescaped(field)
        try:
            await self._connection.fetchval("SELECT $1::text::jsonb IS NULL", text)
        except asyncpg.PostgresError as error:
            if not str(error.sqlstate).startswith(_UNREADABLE):
                raise
            return unreadable(text[:1_000_000], str(error.args[0])).replace(b"\\", b"\\\\")
        return field


def _unescaped(field: bytes) -> str:
    plain = (
        field.replace(b"\\\\", b"\x00")
        .replace(b"\\n", b"\n")
        .replace(b"\\t", b"\t")
        .replace(b"\\r", b"\r")
    )
    return plain.replace(b"\x00", b"\\").decode()


async def _pieces(batch: Batch) -> AsyncIterator[bytes]:
    for piece in batch.copy_chunks():
        yield piece
