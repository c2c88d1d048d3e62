"""Telemetry's view of the suite: which services report, what they count, and the state of the slot.

Promises: a service that stops reporting keeps its counters and loses its state, so that no total
ever decreases; of several instances of a service the active one represents it, never a standby. A
silent service is shown for as long as the configuration asks for it. Holds a bounded number of
instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.bus.participation import Report
from headrace.lsn import format_lsn
from headrace.metrics.counters import Stats
from headrace.metrics.figure import PUBLISHER, READER, RESPONDER
from headrace.telemetry.configured import Asked
from headrace.telemetry.retention import ConsumerView, StreamView

# A process has another instance name after each restart.
INSTANCES_MAX = 64
# Beyond this number of services, the one that was heard longest ago is forgotten.
SERVICES_MAX = 512
# A service that nothing asks for is forgotten this long after an ordered stop, or after its last
# report if it did not stop in order.
STOPPED_S = 300.0
DEAD_S = 86_400.0
SILENT_REPORTS = 5
SILENT_S_MIN = 3.0


@dataclass(frozen=True, slots=True)
class SlotView:
    """The replication slot, as PostgreSQL shows it."""

    active: bool
    wal_status: str
    confirmed_lsn: int
    lag_bytes: int
    retained_bytes: int
    safe_bytes: int | None
    wal_lsn: int = 0
    # At the current pace: how fast WAL is written, and when `safe_bytes` are used up.
    wal_rate_bytes: float = 0.0
    loss_s: float | None = None
    alarm: str = "ok"


@dataclass(frozen=True, slots=True)
class Watch:
    """The last look at PostgreSQL; `reason` says why there is nothing to see."""

    reachable: bool = False
    slot: SlotView | None = None
    reason: str = "not checked yet"


@dataclass(frozen=True, slots=True)
class _Heard:
    report: Report
    at: float


@dataclass(frozen=True, slots=True)
class Member:
    """A service of the suite, represented by its leading instance."""

    stats: Stats
    reasons: dict[str, str]
    live: bool
    instances: int
    # Since its last report.
    age_s: float = 0.0

    @property
    def state(self) -> str:
        if not self.live:
            return "silent"
        if self.stats.get("ready"):
            return "ready"
        return "not ready"


@dataclass(slots=True)
class SuiteStatus:
    """Everything received and seen so far."""

    started_at: float
    stats_interval_s: float
    watch: Watch = field(default_factory=Watch)
    # Since when a query to PostgreSQL is unanswered; None while there is none.
    asking_since: float | None = None
    streams: tuple[StreamView, ...] = ()
    consumers: tuple[ConsumerView, ...] = ()
    _heard: dict[tuple[str, str], _Heard] = field(default_factory=dict)
    # Of forgotten services: a counter must not decrease.
    _reconnects_before: int = 0

    def hear(self, service: str, report: Report, now: float) -> None:
        self._heard[service, report.instance] = _Heard(report, now)
        if len(self._heard) > INSTANCES_MAX:
            self._drop_an_instance()

    def _drop_an_instance(self) -> None:
        """Drop the report that was heard longest ago, of a service that has a newer one: no process
        that restarts again and again makes another service disappear.
        """
        newest: dict[str, float] = {}
        for (service, _), heard in self._heard.items():
            newest[service] = max(newest.get(service, heard.at), heard.at)
        older = [key for key, heard in self._heard.items() if heard.at < newest[key[0]]]
        if not older and len(self._heard) <= SERVICES_MAX:
            return
        del self._heard[min(older or self._heard, key=lambda key: self._heard[key].at)]

    def forget(self, asked: Callable[[str, float], Asked], now: float) -> list[str]:
        """Forget the silent services that nobody waits for any more; returns their names."""
        gone = [name for name in self.members(now) if self._is_gone(name, asked(name, now), now)]
        for name in gone:
            member = self.member(name, now)
            self._reconnects_before += _whole(member, "nats_reconnects")
            self._heard = {key: heard for key, heard in self._heard.items() if key[0] != name}
        return gone

    def _is_gone(self, service: str, asked: Asked, now: float) -> bool:
        heard = [h for (name, _), h in self._heard.items() if name == service]
        if asked is Asked.YES or any(self._live(h, now) for h in heard):
            return False
        if asked is Asked.NO_LONGER:
            return True
        last = max(heard, key=lambda h: h.at)
        return now - last.at > (STOPPED_S if last.report.stopping else DEAD_S)

    def member(self, service: str, now: float) -> Member | None:
        """The service's leading instance; None if it never reported."""
        heard = [h for (name, _), h in self._heard.items() if name == service]
        if not heard:
            return None
        # A standby reports, too, and is not ready by design: the one that works speaks for the
        # service.
        leader = max(
            heard, key=lambda h: (self._live(h, now), self._live(h, now) and _works(h.report), h.at)
        )
        live = sum(self._live(h, now) for h in heard)
        report = leader.report
        return Member(report.stats, report.reasons, self._live(leader, now), live, now - leader.at)

    def members(self, now: float) -> dict[str, Member]:
        found = {name: self.member(name, now) for name in sorted({name for name, _ in self._heard})}
        return {name: member for name, member in found.items() if member is not None}

    def _live(self, heard: _Heard, now: float) -> bool:
        return now - heard.at <= max(SILENT_S_MIN, SILENT_REPORTS * self.stats_interval_s)

    def waiting_s(self, now: float) -> float:
        """For how long PostgreSQL has not answered the current query."""
        if self.asking_since is None:
            return 0.0
        return round(now - self.asking_since, 3)

    def totals(self, now: float) -> SuiteTotals:
        members = self.members(now)
        reader = members.get(READER)
        publisher = members.get(PUBLISHER)
        slot = self.watch.slot
        # Each may be stale: the report by its interval, the slot by the time since the last look.
        confirmed = max(_whole(reader, "confirmed_lsn"), slot.confirmed_lsn if slot else 0)
        return SuiteTotals(
            uptime_s=int(now - self.started_at),
            wal_messages=_whole(reader, "wal_messages"),
            cdc_events=_whole(publisher, "cdc_events"),
            confirmed_lsn=confirmed,
            # Counters of a silent reader stay valid, its connection doesn't.
            connected=bool(reader and reader.live and reader.stats.get("pg_connected")),
            reconnects=_whole(reader, "pg_reconnects"),
            nats_reconnects=self._reconnects_before
            + sum(_whole(member, "nats_reconnects") for member in members.values()),
            last_processing_time_us=_whole(publisher, "last_processing_time_us"),
            slot_active=slot.active if slot else False,
            lag_bytes=slot.lag_bytes if slot else 0,
        )

    def exposed(self, now: float) -> dict[str, Stats]:
        """The data behind `headrace_*`; for a silent service only that it is silent."""
        return {
            name: {
                # A figure of a dead process would look like a present one.
                **(member.stats if member.live else {}),
                "up": int(member.live),
                "instances": member.instances,
            }
            for name, member in self.members(now).items()
        }

    def services(self, now: float) -> dict[str, Any]:
        return {
            name: {
                "state": member.state,
                "instances": member.instances,
                "reasons": member.reasons if member.live else {},
                "figures": member.stats,
                "age_s": round(member.age_s, 3),
            }
            for name, member in self.members(now).items()
        }


@dataclass(frozen=True, slots=True)
class SuiteTotals:
    """The suite in one row: the data of the METRICS line, `/status` and the bridge's metrics."""

    uptime_s: int
    wal_messages: int
    cdc_events: int
    confirmed_lsn: int
    connected: bool
    reconnects: int
    nats_reconnects: int
    last_processing_time_us: int
    slot_active: bool
    lag_bytes: int

    @property
    def lsn(self) -> str:
        """In lower case, like the bridge."""
        return format_lsn(self.confirmed_lsn).lower()

    def line(self) -> str:
        return (
            f"METRICS uptime={self.uptime_s} wal_messages={self.wal_messages} "
            f"cdc_events={self.cdc_events} "
            f"lsn={self.lsn} connected={int(self.connected)} reconnects={self.reconnects} "
            f"nats_reconnects={self.nats_reconnects} lag_bytes={self.lag_bytes} "
            f"slot_active={int(self.slot_active)}"
        )

    def status(self) -> dict[str, Any]:
        """The bridge's fields, in its order."""
        return {
            "status": "connected" if self.connected else "disconnected",
            "uptime_seconds": self.uptime_s,
            "wal_messages_received": self.wal_messages,
            "cdc_events_published": self.cdc_events,
            "current_lsn": self.lsn,
            "is_connected": self.connected,
            "reconnect_count": self.reconnects,
            "nats_reconnect_count": self.nats_reconnects,
            "last_processing_time_us": self.last_processing_time_us,
            "slot_active": self.slot_active,
            "wal_lag_bytes": self.lag_bytes,
            "wal_lag_mb": self.lag_bytes // (1024 * 1024),
        }

    def bridge(self) -> Mapping[str, float]:
        """A value for each of `BRIDGE_FIGURES`."""
        return {
            "uptime_seconds": self.uptime_s,
            "wal_messages_received": self.wal_messages,
            "cdc_events_published": self.cdc_events,
            "last_ack_lsn": self.confirmed_lsn,
            "connected": int(self.connected),
            "reconnects": self.reconnects,
            "nats_reconnects": self.nats_reconnects,
            "last_processing_time_us": self.last_processing_time_us,
            "slot_active": int(self.slot_active),
            "wal_lag_bytes": self.lag_bytes,
        }


def summary(suite: SuiteStatus, now: float) -> str:
    """The line that ends telemetry's stdout."""
    totals = suite.totals(now)
    members = suite.members(now)
    publisher = members.get(PUBLISHER)
    responder = members.get(RESPONDER)
    return (
        f"SUMMARY uptime={totals.uptime_s} wal_messages={totals.wal_messages} "
        f"cdc_events={totals.cdc_events} "
        f"transactions={_whole(publisher, 'transactions')} "
        f"published_bytes={_whole(publisher, 'published_bytes')} "
        f"snapshots={_whole(responder, 'snapshots_completed')} lsn={totals.lsn} "
        f"reconnects={totals.reconnects} "
        f"nats_reconnects={totals.nats_reconnects} lag_bytes={totals.lag_bytes}"
    )


def _works(report: Report) -> bool:
    return bool(report.stats.get("ready"))


def _whole(member: Member | None, key: str) -> int:
    if member is None:
        return 0
    value = member.stats.get(key, 0)
    if isinstance(value, int | float):
        return int(value)
    return 0
