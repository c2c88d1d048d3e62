"""Telemetry in tests: its environment, its slot, and its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.process import ServiceProcess

POLL_S = 0.02
# Names of the bridge that telemetry keeps.
BRIDGE_STATUS = [
    "status",
    "uptime_seconds",
    "wal_messages_received",
    "cdc_events_published",
    "current_lsn",
    "is_connected",
    "reconnect_count",
    "nats_reconnect_count",
    "last_processing_time_us",
    "slot_active",
    "wal_lag_bytes",
    "wal_lag_mb",
]
BRIDGE_METRICS = [
    "bridge_uptime_seconds",
    "bridge_wal_messages_received_total",
    "bridge_cdc_events_published_total",
    "bridge_last_ack_lsn",
    "bridge_connected",
    "bridge_reconnects_total",
    "bridge_nats_reconnects_total",
    "bridge_last_processing_time_us",
    "bridge_slot_active",
    "bridge_wal_lag_bytes",
]


def environment(database: Database, nats_url: str, names: Names, **more: str) -> dict[str, str]:
    return {
        **database.environment(nats_url),
        **names.settings,
        "HEADRACE_STATS_INTERVAL_S": "0.1",
        "HEADRACE_SLOT_INTERVAL_S": "0.1",
        **more,
    }


async def make_slot(database: Database, names: Names) -> None:
    await database.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", names.slot)


def values(metrics: str) -> dict[str, float]:
    lines = [
        line.rpartition(" ") for line in metrics.splitlines() if line and not line.startswith("#")
    ]
    return {name: float(value) for name, _, value in lines}


async def status_when(
    telemetry: ServiceProcess, true: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(60):
        # The status page gives no event.
        while not true(status := json.loads((await telemetry.get("/status"))[1])):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    return dict(status)
