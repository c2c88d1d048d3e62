"""Every metric's name, in one place, and their exposition.

Services count in plain dictionaries of figures (`Stats`): a counter in the hot path is one addition. Prometheus sees
them through `exposition`, named `headrace_*` with a `service` label. Never a label whose values grow without bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Stats = dict[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that services report: its key in `Stats` is its metric name without prefix and suffix."""

    key: str
    kind: Literal["counter", "gauge"]
    explain: str


FIGURES = (
    Figure("uptime_seconds", "gauge", "Seconds since the service started"),
    Figure("ready", "gauge", "1 while the service can do its work"),
    Figure("wal_messages", "counter", "pgoutput messages read from the slot"),
    Figure("wal_bytes", "counter", "Bytes read from the slot"),
    Figure("frames_sent", "counter", "Frames sent on the internal bus"),
    Figure("frames_received", "counter", "Frames received from the internal bus"),
    Figure("in_flight_bytes", "gauge", "Bytes sent on the bus and not consumed yet"),
    Figure("received_lsn", "gauge", "Last LSN received from PostgreSQL"),
    Figure("confirmed_lsn", "gauge", "LSN confirmed to PostgreSQL"),
    Figure("pg_connected", "gauge", "1 while the replication connection streams"),
    Figure("pg_reconnects", "counter", "Replication connections after the first"),
    Figure("nats_reconnects", "counter", "NATS reconnections"),
    Figure("epochs", "counter", "Epochs begun on the internal bus"),
    Figure("cdc_events", "counter", "Change events acknowledged by JetStream"),
    Figure("skipped_events", "counter", "Change events that were in the stream already"),
    Figure("transactions", "counter", "Transactions delivered whole"),
    Figure("published_bytes", "counter", "Payload bytes acknowledged by JetStream"),
    Figure("parked_messages", "counter", "Changes that could not be read and were put aside"),
    Figure("recoveries", "counter", "Times the publisher found its place again"),
    Figure("window_messages", "gauge", "Messages published and not acknowledged yet"),
    Figure("schemas_published", "counter", "Table schemas written to the KV bucket"),
    Figure("snapshots_requested", "counter", "Snapshot requests taken"),
    Figure("snapshots_completed", "counter", "Snapshots completed"),
    Figure("snapshots_failed", "counter", "Snapshots that ended in an error"),
    Figure("snapshot_rows", "counter", "Rows in completed snapshots"),
    Figure("last_processing_time_us", "gauge", "Time the latest frame took from receipt to publishing"),
    Figure("lag_bytes", "gauge", "WAL written and not confirmed"),
    Figure("retained_bytes", "gauge", "WAL that PostgreSQL keeps for the slot"),
    Figure("slot_active", "gauge", "1 while the slot is being read"),
    Figure("pg_reachable", "gauge", "1 while PostgreSQL answers telemetry"),
    Figure("up", "gauge", "1 while the service reports to telemetry"),
)
# What dashboards made for the PG-NATS bridge ask for; without labels, since its process was one.
BRIDGE_FIGURES = (
    Figure("uptime_seconds", "gauge", "Seconds since telemetry started"),
    Figure("wal_messages_received", "counter", "pgoutput messages read from the slot"),
    Figure("cdc_events_published", "counter", "Change events acknowledged by JetStream"),
    Figure("last_ack_lsn", "gauge", "LSN confirmed to PostgreSQL"),
    Figure("connected", "gauge", "1 while the replication connection streams"),
    Figure("reconnects", "counter", "Replication connections after the first"),
    Figure("nats_reconnects", "counter", "NATS reconnections"),
    Figure("last_processing_time_us", "gauge", "Time the latest frame took from receipt to publishing"),
    Figure("slot_active", "gauge", "1 while the slot is being read"),
    Figure("wal_lag_bytes", "gauge", "WAL written and not confirmed"),
)
_BY_KEY = {figure.key: figure for figure in FIGURES}


class _Suite(Collector):
    def __init__(self, stats_by_service: Mapping[str, Stats]) -> None:
        self._stats_by_service = stats_by_service

    def collect(self) -> Iterable[Metric]:
        for figure in FIGURES:
            make = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            family = make(f"headrace_{figure.key}", figure.explain, labels=["service"])
            for service, stats in sorted(self._stats_by_service.items()):
                value = stats.get(figure.key)
                if isinstance(value, int | float):
                    family.add_metric([service], value)
            if family.samples:
                yield family


class _Bridge(Collector):
    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        for figure in BRIDGE_FIGURES:
            make = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            yield make(f"bridge_{figure.key}", figure.explain, value=self._values[figure.key])


def bridge_exposition(values: Mapping[str, float]) -> bytes:
    """The Prometheus text of the bridge's names: a value for each of `BRIDGE_FIGURES`."""
    registry = CollectorRegistry()
    registry.register(_Bridge(values))
    return generate_latest(registry)


def exposition(stats_by_service: Mapping[str, Stats]) -> bytes:
    """The Prometheus text of these services' figures."""
    registry = CollectorRegistry()
    registry.register(_Suite(stats_by_service))
    return generate_latest(registry)


def count(stats: Stats, key: str, by: float = 1) -> None:
    """Add to a declared figure."""
    assert key in _BY_KEY, key
    stats[key] = stats.get(key, 0) + by  # type: ignore[operator]  # figures are numbers; only labels are text
