"""Watches the server: the time up to which its log is stored, the lag, the relations' names.

A dropped relation is known only by its number; its name is read from the catalog whenever a commit
has changed that. Promises that `status.json` never claims a time before everything committed by
then is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg

from headrace import log as logs
from headrace.backup import drills, layout
from headrace.backup.backups import Backups, label_time
from headrace.backup.commits import CommitRecord
from headrace.backup.drills import DrillRecord
from headrace.backup.errors import BackupError
from headrace.backup.names import NamesBook, RelationName
from headrace.backup.store import BackupStore, StoredUntil
from headrace.lsn import parse_lsn
from headrace.postgres.connection import BROKEN, PostgresError, connect
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.timing.waits import wait_for
from headrace.wal_archiver.receiver import Receiver

log = logs.logger("wal-archiver")

INTERVAL_S = 1.0
# So that a series of DDL statements costs one look at the catalog.
NAMES_INTERVAL_S = 0.2
STATUS_INTERVAL_S = 5.0
# A listing of all backups.
PROOFS_INTERVAL_S = 60.0

# In this order: what was committed by this time is before this LSN.
_NOW = "SELECT clock_timestamp() AS now, pg_current_wal_insert_lsn()::text AS lsn"
_NAMES = """
SELECT c.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name,
       c.relkind::text AS kind, pg_current_wal_insert_lsn()::text AS lsn,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND n.nspname !~ '^pg_(toast|temp)'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""


class ServerWatch:
    """Looks at the server while a receiver works."""

    def __init__(self, scope: Scope, settings: Settings, store: BackupStore) -> None:
        self._scope = scope
        self._settings = settings
        self._store = store
        self._book = NamesBook(store)
        self._changed = asyncio.Event()
        self._changed.set()
        self._receiver: Receiver | None = None
        # A moment that is claimed once the log up to its LSN is stored.
        self._pending: tuple[int, int] | None = None
        self._claimed: StoredUntil | None = None
        self._written_at = 0.0
        self._seen_us = 0
        self._insert_lsn = 0
        # The newest backup's time, and all drills, from the last listing.
        self._newest: datetime | None = None
        self._drills: Sequence[DrillRecord] = ()
        self._proofs_at = 0.0

    def follow_receiver(self, receiver: Receiver) -> None:
        """Use this receiver's state from now on."""
        self._receiver = receiver

    def on_commits(self, commits: list[CommitRecord]) -> None:
        """Called with each commit that was received."""
        if any(commit.catalog_changed for commit in commits):
            self._changed.set()

    async def run(self) -> None:
        """Look until the service stops; what fails is tried again."""
        while not self._scope.stopping.is_set():
            try:
                await self._connected()
            # The receiver reports the same failure with its reason.
            except (*BROKEN, PostgresError, BackupError, asyncpg.PostgresError) as error:
                log.debug("watch_failed", reason=str(error))
                await self._scope.pause(INTERVAL_S)
        with contextlib.suppress(BackupError):
            await self._write_status(force=True)

    async def _connected(self) -> None:
        session = await connect(self._settings.postgres, "headrace wal-archiver")
        try:
            while not self._scope.stopping.is_set():
                if self._changed.is_set():
                    self._changed.clear()
                    await self._read_names(session)
                    await self._scope.pause(NAMES_INTERVAL_S)
                await self._look(session)
                await self._proofs()
                await wait_for(self._changed, INTERVAL_S)
        finally:
            session.terminate()

    async def _read_names(self, session: Any) -> None:
        try:
            rows = await session.fetch(_NAMES)
            found = {
                row["oid"]: RelationName(row["schema"], row["name"], row["kind"]) for row in rows
            }
            if rows:
                lsn = parse_lsn(rows[0]["lsn"])
                database = rows[0]["database"]
                await asyncio.to_thread(self._book.note, lsn, database, found)
        except BaseException:
            # The names were not stored: the next connection looks again.
            self._changed.set()
            raise

    async def _look(self, session: Any) -> None:
        row = await session.fetchrow(_NOW)
        now: datetime = row["now"]
        self._seen_us = int(now.timestamp() * 1_000_000)
        self._insert_lsn = parse_lsn(row["lsn"])
        # One moment at a time: under constant load a later one would never be reached.
        if self._pending is None:
            self._pending = (self._insert_lsn, self._seen_us)
        await self._write_status()
        self._refresh()

    async def _write_status(self, *, force: bool = False) -> None:
        receiver = self._receiver
        if receiver is None or self._pending is None:
            return
        lsn, time_us = self._pending
        if receiver.stored >= lsn:
            self._claimed = StoredUntil(receiver.timeline, receiver.stored, time_us)
            self._pending = None
        due = self._seen_us / 1e6 - self._written_at >= STATUS_INTERVAL_S
        if self._claimed is not None and (due or force):
            self._written_at = self._seen_us / 1e6
            await asyncio.to_thread(self._store.put_status, self._claimed)

    async def _proofs(self) -> None:
        """The ages of the newest backup and of the last drill."""
        if self._seen_us / 1e6 - self._proofs_at >= PROOFS_INTERVAL_S:
            self._proofs_at = self._seen_us / 1e6
            newest = await asyncio.to_thread(Backups(self._store).newest_label)
            self._newest = label_time(newest) if newest is not None else None
            names = await asyncio.to_thread(self._store.names, layout.DRILLS)
            self._drills = drills.listed(names)
        stats = self._scope.health.stats
        now = self._seen_us / 1e6
        if self._newest is not None:
            stats.set("backup_age_seconds", max(0.0, now - self._newest.timestamp()))
        else:
            stats.unset("backup_age_seconds")
        if self._drills:
            stats.set("backup_drill_failed", not self._drills[-1].passed)
        passed = drills.last_passed(self._drills)
        if passed is not None:
            stats.set("backup_drill_age_seconds", max(0.0, now - passed.time.timestamp()))

    def _refresh(self) -> None:
        stats = self._scope.health.stats
        stored = self._receiver.stored if self._receiver is not None else 0
        stats.set("backup_stored_lsn", stored)
        stats.set("backup_unstored_bytes", max(0, self._insert_lsn - stored))
        if self._claimed is not None:
            behind_us = self._seen_us - self._claimed.time_us
            stats.set("backup_stored_timestamp_seconds", self._claimed.time_us / 1e6)
            stats.set("backup_lag_seconds", max(0.0, behind_us / 1e6))
