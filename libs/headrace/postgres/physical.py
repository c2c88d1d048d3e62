"""Physical replication: the log as bytes, its slot, and base backups, over the replication stream.

Promises the log in order and without interpretation. The end of a timeline is a separate
error: another connection continues on the next one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Self, cast

from psycopg import pq

from headrace.lsn import format_lsn, parse_lsn
from headrace.postgres.connection import PostgresError
from headrace.postgres.quoting import quote_literal, quote_name
from headrace.postgres.replication import ReplicationConnection
from headrace.settings import PostgresSettings

# A checkpoint may take as long as the disks need.
_CHECKPOINT_TIMEOUT_S = 3600.0
_UPLOAD_BYTES = 1 << 20
_PHYSICAL_SLOT = """
SELECT restart_lsn, wal_status, active FROM pg_catalog.pg_replication_slots
WHERE slot_type = 'physical'
"""


class TimelineEndError(PostgresError):
    """The server has sent this timeline to its end."""

    retry = True


@dataclass(frozen=True, slots=True)
class PhysicalSlot:
    """A physical replication slot."""

    # None until the first connection, if the slot was created without reserving the log.
    restart_lsn: int | None
    # PostgreSQL's word: reserved, extended, unreserved or lost.
    wal_status: str
    active: bool


@dataclass(frozen=True, slots=True)
class BackupPoint:
    """A place in the log: where a base backup begins or ends."""

    lsn: int
    timeline: int


@dataclass(frozen=True, slots=True)
class Tablespace:
    """A tablespace outside of the data directory."""

    # Its number, which is also the name of its tar stream.
    oid: int
    location: str


@dataclass(frozen=True, slots=True)
class BackupStart:
    """The server's answer before a base backup's data."""

    # Recovery begins here.
    point: BackupPoint
    tablespaces: tuple[Tablespace, ...]


class PhysicalConnection(ReplicationConnection):
    """One connection that reads the log as bytes, or takes a base backup."""

    @classmethod
    async def open(cls, settings: PostgresSettings, application: str) -> Self:
        """Connect; `application` is the name that synchronous_standby_names may list."""
        return cast("Self", await super().open(settings, application))

    async def setting(self, name: str) -> str:
        """A server's setting."""
        return str((await self._query(f"SHOW {name}"))[0][0])

    async def facts(self, query: str) -> tuple[str | None, ...]:
        """One row of a query without parameters."""
        return (await self._query(query))[0]

    async def rows(self, query: str) -> list[tuple[str | None, ...]]:
        """The rows of a query without parameters."""
        return await self._query(query)

    @property
    def server_version(self) -> int:
        """The server's major version."""
        return self._pg.server_version // 10_000

    async def physical_slot(self, slot: str) -> PhysicalSlot | None:
        """The slot; None if it doesn't exist or is a logical one."""
        name = quote_literal(slot)
        # The replication protocol has no parameters; `name` is a quoted literal.
        rows = await self._query(f"{_PHYSICAL_SLOT} AND slot_name = {name}")
        if not rows:
            return None
        lsn, status, active = rows[0]
        return PhysicalSlot(parse_lsn(lsn) if lsn else None, status or "", active == "t")

    async def create_physical_slot(self, slot: str) -> None:
        """Create a slot that retains the log from now on."""
        await self._query(f"CREATE_REPLICATION_SLOT {quote_name(slot)} PHYSICAL RESERVE_WAL")

    async def history(self, timeline: int) -> bytes:
        """The history file of a timeline."""
        if timeline <= 1:
            return b""
        content = (await self._query(f"TIMELINE_HISTORY {timeline}"))[0][1] or ""
        return content.encode()

    async def start_log(self, slot: str, lsn: int, timeline: int) -> None:
        """Start streaming the log from an LSN."""
        await self._begin(
            f"START_REPLICATION SLOT {quote_name(slot)} PHYSICAL {format_lsn(lsn)} "
            f"TIMELINE {timeline}"
        )

    async def _begin(self, command: str) -> None:
        async with self._in_time(30.0):
            self._pg.send_query(command.encode())
            result = await self._result()
        # A timeline that ended right there has nothing to stream.
        if result is not None and result.status == pq.ExecStatus.TUPLES_OK:
            raise TimelineEndError("the timeline ended before this LSN")
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._error(result)

    def _error(self, result: pq.abc.PGresult | None) -> PostgresError:
        # The server has ended its side of the copy: libpq reports that ours is still open.
        if result is not None and result.status in {
            pq.ExecStatus.COPY_IN,
            pq.ExecStatus.COPY_BOTH,
        }:
            return TimelineEndError("the server has sent its timeline to the end")
        return super()._error(result)

    async def base_backup(
        self,
        label: str,
        *,
        fast: bool,
        incremental_to: bytes | None = None,
        rate_kib_s: int | None = None,
    ) -> tuple[BackupStart, AsyncIterator[bytes]]:
        """Begin a base backup: where it begins, and the messages of its data.

        After the last message, `backup_end` says where the log must reach. `incremental_to` is the
        manifest of the backup that this one follows.
        """
        # The server compares its summaries of the log with this manifest.
        if incremental_to is not None:
            await self._upload_manifest(incremental_to)
        options = [
            f"LABEL {quote_literal(label)}",
            f"CHECKPOINT {quote_literal('fast' if fast else 'spread')}",
            "WAIT false",
            "MANIFEST 'yes'",
            "MANIFEST_CHECKSUMS 'SHA256'",
            "TABLESPACE_MAP true",
        ]
        if rate_kib_s is not None:
            options.append(f"MAX_RATE {rate_kib_s}")
        if incremental_to is not None:
            options.append("INCREMENTAL true")
        self._pg.send_query(f"BASE_BACKUP ({', '.join(options)})".encode())
        point = self._point(await self._tuples(_CHECKPOINT_TIMEOUT_S))
        spaces = await self._tuples(_CHECKPOINT_TIMEOUT_S)
        found = tuple(
            Tablespace(int(oid), location or "") for oid, location, *_ in spaces if oid is not None
        )
        return BackupStart(point, found), self._copied()

    async def _upload_manifest(self, manifest: bytes) -> None:
        self._pg.send_query(b"UPLOAD_MANIFEST")
        result = await self._result()
        if result is None or result.status != pq.ExecStatus.COPY_IN:
            raise self._error(result)
        for start in range(0, len(manifest), _UPLOAD_BYTES):
            self._pg.put_copy_data(manifest[start : start + _UPLOAD_BYTES])
            await self._flush()
        self._pg.put_copy_end()
        await self._ended_well()

    async def _ended_well(self) -> None:
        while (result := await self._result()) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise self._error(result)

    async def _copied(self) -> AsyncIterator[bytes]:
        result = await self._result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            raise self._error(result)
        while True:
            # 0 means that nothing has arrived, -1 that all has.
            size, data = self._pg.get_copy_data(1)
            if size > 0:
                yield bytes(data)
            elif size == 0:
                await self._readable()
                self._consume()
            else:
                return

    async def backup_end(self) -> BackupPoint:
        """The end of the backup, after all of its data."""
        point = self._point(await self._tuples(_CHECKPOINT_TIMEOUT_S))
        await self._ended_well()
        return point

    async def _tuples(self, timeout_s: float) -> list[tuple[str | None, ...]]:
        async with self._in_time(timeout_s):
            result = await self._result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise self._error(result)
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def _point(self, rows: Sequence[tuple[str | None, ...]]) -> BackupPoint:
        lsn, timeline = rows[0]
        return BackupPoint(parse_lsn(lsn or ""), int(timeline or 0))


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    return value.decode()
