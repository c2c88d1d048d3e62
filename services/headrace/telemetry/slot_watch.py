"""Looks at the replication slot, often and cheaply, and says when it holds too much WAL.

Promises: PostgreSQL being away is a state that is shown, never the end of the service. Reads only.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import asyncpg

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.lifecycle import Scope
from headrace.postgres import connection
from headrace.settings import Settings
from headrace.telemetry.suite import SlotView, Suite, Watch

log = logs.logger("telemetry")

# A LEFT JOIN, so that a missing slot is a row too and an empty answer is none.
_SLOT = """
WITH here AS (
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END AS lsn
)
SELECT s.slot_name IS NOT NULL AS found, s.active, coalesce(s.wal_status, '') AS wal_status,
       coalesce(s.confirmed_flush_lsn - '0/0'::pg_lsn, 0)::int8 AS confirmed_lsn,
       greatest(coalesce(here.lsn - s.confirmed_flush_lsn, 0), 0)::int8 AS lag_bytes,
       greatest(coalesce(here.lsn - s.restart_lsn, 0), 0)::int8 AS retained_bytes,
       s.safe_wal_size AS safe_bytes
FROM here LEFT JOIN pg_replication_slots s ON s.slot_name = $1
"""


class SlotWatch:
    def __init__(self, scope: Scope, settings: Settings, suite: Suite) -> None:
        self._scope = scope
        self._settings = settings
        self._suite = suite
        self._connection: asyncpg.Connection | None = None
        self._judged_at = 0.0
        self._high = False

    async def run(self) -> None:
        try:
            while not self._scope.stopping.is_set():
                await self.look()
                await self._scope.pause(self._settings.watch.slot_interval_s)
        finally:
            self._close()

    async def look(self) -> None:
        """Read the slot's state once, and judge its lag when that is due."""
        before = self._suite.watch
        try:
            self._suite.watch = await self._read()
        except (HeadraceError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            self._close()
            reason = str(error) or type(error).__name__
            # What was seen last stays in sight, apart from what a server that is away can't be doing.
            self._suite.watch = Watch(reachable=False, slot=_left_alone(before.slot), reason=reason)
        self._tell_turn(before, self._suite.watch)
        self._figures()
        if time.monotonic() - self._judged_at >= self._settings.watch.wal_interval_s:
            self._judged_at = time.monotonic()
            self._judge()

    async def _read(self) -> Watch:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connection.connect(self._settings.postgres, "headrace telemetry")
        async with asyncio.timeout(self._settings.postgres.connect_timeout_s):
            row = await self._connection.fetchrow(_SLOT, self._settings.source.slot)
        if not row["found"]:
            return Watch(reachable=True, reason=f"replication slot {self._settings.source.slot} does not exist")
        view = SlotView(
            bool(row["active"]),
            row["wal_status"],
            row["confirmed_lsn"],
            row["lag_bytes"],
            row["retained_bytes"],
            row["safe_bytes"],
        )
        return Watch(reachable=True, slot=view, reason="")

    def _tell_turn(self, before: Watch, after: Watch) -> None:
        if after.reason and after.reason != before.reason:
            log.warning("slot_not_visible", slot=self._settings.source.slot, reason=after.reason)
        elif before.reason and not after.reason:
            log.info("slot_visible", slot=self._settings.source.slot)

    def _figures(self) -> None:
        stats, watch = self._scope.health.stats, self._suite.watch
        stats["pg_reachable"] = int(watch.reachable)
        stats["slot_active"] = int(watch.slot.active) if watch.slot else 0
        stats["lag_bytes"] = watch.slot.lag_bytes if watch.slot else 0
        stats["retained_bytes"] = watch.slot.retained_bytes if watch.slot else 0

    def _judge(self) -> None:
        slot, watch = self._suite.watch.slot, self._settings.watch
        if slot is None or not self._suite.watch.reachable:
            return
        said = {"slot": self._settings.source.slot, "lag_bytes": slot.lag_bytes, "wal_status": slot.wal_status}
        if slot.wal_status == "lost":
            log.error("slot_lost", **said, remedy="run headrace doctor")
        elif slot.lag_bytes >= watch.wal_critical_bytes:
            log.error("wal_lag_critical", **said, limit=watch.wal_critical_bytes, active=slot.active)
        elif slot.lag_bytes >= watch.wal_warning_bytes:
            log.warning("wal_lag_high", **said, limit=watch.wal_warning_bytes, active=slot.active)
        elif self._high:
            log.info("wal_lag_normal", **said)
        self._high = slot.wal_status == "lost" or slot.lag_bytes >= watch.wal_warning_bytes

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _left_alone(slot: SlotView | None) -> SlotView | None:
    return None if slot is None else replace(slot, active=False)
