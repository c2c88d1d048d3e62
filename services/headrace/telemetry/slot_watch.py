"""Watches the replication slot, often and cheaply, and warns if it retains too much WAL.

Promises: an unavailable PostgreSQL is a state that is shown, never the end of the service. Reads
only.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import asyncpg

from headrace import log as logs
from headrace.errors import HeadraceError, describe
from headrace.metrics.counters import one_of
from headrace.metrics.figure import WAL_ALARMS, WAL_STATUSES
from headrace.postgres import connection
from headrace.process.lifecycle import Scope
from headrace.settings import Settings, WatchSettings
from headrace.telemetry.suite import SlotView, SuiteStatus, Watch
from headrace.telemetry.trend import Trend, seconds_left

log = logs.logger("telemetry")

# A LEFT JOIN, so that a missing slot is a row too and an empty answer isn't.
_SLOT = """
WITH here AS (
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
        ELSE pg_current_wal_lsn() END AS lsn
)
SELECT s.slot_name IS NOT NULL AS found, s.active, coalesce(s.wal_status, '') AS wal_status,
       coalesce(s.confirmed_flush_lsn - '0/0'::pg_lsn, 0)::int8 AS confirmed_lsn,
       greatest(coalesce(here.lsn - s.confirmed_flush_lsn, 0), 0)::int8 AS lag_bytes,
       greatest(coalesce(here.lsn - s.restart_lsn, 0), 0)::int8 AS retained_bytes,
       s.safe_wal_size AS safe_bytes, coalesce(here.lsn - '0/0'::pg_lsn, 0)::int8 AS wal_lsn
FROM here LEFT JOIN pg_replication_slots s ON s.slot_name = $1
"""


class SlotWatch:
    def __init__(self, scope: Scope, settings: Settings, suite: SuiteStatus) -> None:
        self._scope = scope
        self._settings = settings
        self._suite = suite
        self._connection: asyncpg.Connection | None = None
        self._judged_at = 0.0
        self._high = False
        self._written, self._safe = Trend(), Trend()

    async def run(self) -> None:
        try:
            while not self._scope.stopping.is_set():
                await self.look()
                await self._scope.pause(self._settings.watch.slot_interval_s)
        finally:
            self._close()

    async def look(self) -> None:
        """Read the slot's state once, and check its lag when that is due."""
        before = self._suite.watch
        # The page shows how long a silent server has been asked.
        self._suite.asking_since = time.monotonic()
        try:
            self._suite.watch = await self._read()
        except (HeadraceError, asyncpg.PostgresError, *connection.BROKEN) as error:
            self._close()
            reason = describe(error)
            # The last state stays visible, without what an unavailable server can't be doing.
            self._suite.watch = Watch(reachable=False, slot=_left_alone(before.slot), reason=reason)
            # The server may come back as another one, whose LSNs don't continue these.
            self._written.forget()
            self._safe.forget()
        finally:
            self._suite.asking_since = None
        self._tell_turn(before, self._suite.watch)
        self._figures()
        if time.monotonic() - self._judged_at >= self._settings.watch.wal_interval_s:
            self._judged_at = time.monotonic()
            self._judge()

    async def _read(self) -> Watch:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connection.connect(
                self._settings.postgres, "headrace telemetry"
            )
        # A peer that went silent causes no error, and would stop the watch forever.
        async with asyncio.timeout(self._settings.postgres.connect_timeout_s):
            row = await self._connection.fetchrow(_SLOT, self._settings.source.slot)
        if not row["found"]:
            return Watch(
                reachable=True,
                reason=f"replication slot {self._settings.source.slot} does not exist",
            )
        view = SlotView(
            bool(row["active"]),
            row["wal_status"],
            row["confirmed_lsn"],
            row["lag_bytes"],
            row["retained_bytes"],
            row["safe_bytes"],
            row["wal_lsn"],
        )
        return Watch(reachable=True, slot=self._projected(view), reason="")

    def _projected(self, slot: SlotView) -> SlotView:
        """Add the WAL rate, and the projected loss."""
        now = time.monotonic()
        self._written.add(now, slot.wal_lsn)
        loss_s = None
        if slot.safe_bytes is not None:
            self._safe.add(now, slot.safe_bytes)
            # A slot that nobody reads loses room as fast as WAL is written, even before a segment
            # is full.
            if slot.active:
                pace = -self._safe.per_second
            else:
                pace = max(-self._safe.per_second, self._written.per_second)
            loss_s = seconds_left(slot.safe_bytes, pace)
        paced = replace(slot, wal_rate_bytes=round(self._written.per_second, 1), loss_s=loss_s)
        return replace(paced, alarm=alarm(paced, self._settings.watch))

    def _tell_turn(self, before: Watch, after: Watch) -> None:
        if after.reason and after.reason != before.reason:
            log.warning("slot_not_visible", slot=self._settings.source.slot, reason=after.reason)
        elif before.reason and not after.reason:
            log.info("slot_visible", slot=self._settings.source.slot)

    def _figures(self) -> None:
        stats = self._scope.health.stats
        watch = self._suite.watch
        stats.set("pg_reachable", int(watch.reachable))
        if watch.slot:
            stats.set("slot_active", int(watch.slot.active))
        else:
            stats.set("slot_active", 0)
        if watch.slot:
            stats.set("lag_bytes", watch.slot.lag_bytes)
        else:
            stats.set("lag_bytes", 0)
        if watch.slot:
            stats.set("retained_bytes", watch.slot.retained_bytes)
        else:
            stats.set("retained_bytes", 0)
        # The series below keep their last values: the slot's state is unknown, not gone.
        if not watch.reachable:
            return
        status = watch.slot.wal_status if watch.slot else "missing"
        stats.set_series("slot_wal_status", one_of(WAL_STATUSES, status))
        # Without max_slot_wal_keep_size there is no limit, and 0 would mean that no room is left.
        for key in ("safe_wal_bytes", "slot_loss_seconds"):
            stats.unset(key)
        if watch.slot is None:
            return
        stats.observe("slot_lag_bytes", watch.slot.lag_bytes)
        stats.set("wal_lsn", watch.slot.wal_lsn)
        stats.set("wal_rate_bytes", watch.slot.wal_rate_bytes)
        stats.set_series("wal_alarm", one_of(WAL_ALARMS, watch.slot.alarm))
        if watch.slot.safe_bytes is not None:
            stats.set("safe_wal_bytes", watch.slot.safe_bytes)
        if watch.slot.loss_s is not None:
            stats.set("slot_loss_seconds", round(watch.slot.loss_s, 1))

    def _judge(self) -> None:
        slot = self._suite.watch.slot
        watch = self._settings.watch
        if slot is None or not self._suite.watch.reachable:
            return
        said: dict[str, object] = {
            "slot": self._settings.source.slot,
            "lag_bytes": slot.lag_bytes,
            "wal_status": slot.wal_status,
        }
        if slot.loss_s is not None:
            said["loss_in_s"] = round(slot.loss_s)
        if slot.wal_status == "lost":
            log.error("slot_lost", **said, remedy="run headrace doctor")
        elif slot.alarm == "critical":
            log.error(
                "wal_lag_critical", **said, limit=watch.wal_critical_bytes, active=slot.active
            )
        elif slot.loss_s is not None and slot.loss_s <= watch.wal_loss_warning_s:
            log.warning("slot_loss_near", **said, safe_bytes=slot.safe_bytes, active=slot.active)
        elif slot.alarm == "warning":
            log.warning("wal_lag_high", **said, limit=watch.wal_warning_bytes, active=slot.active)
        elif self._high:
            log.info("wal_lag_normal", **said)
        self._high = slot.alarm != "ok"

    def _close(self) -> None:
        if self._connection is not None:
            # `close` would wait for a server that may not answer.
            self._connection.terminate()
            self._connection = None


def alarm(slot: SlotView, watch: WatchSettings) -> str:
    """One of `WAL_ALARMS`."""
    if slot.wal_status == "lost":
        return "lost"
    if slot.lag_bytes >= watch.wal_critical_bytes:
        return "critical"
    near = slot.loss_s is not None and slot.loss_s <= watch.wal_loss_warning_s
    if near or slot.lag_bytes >= watch.wal_warning_bytes:
        return "warning"
    return "ok"


def _left_alone(slot: SlotView | None) -> SlotView | None:
    if slot is None:
        return None
    return replace(slot, active=False)
