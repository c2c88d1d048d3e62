"""`headrace top` shows a suite as telemetry tells it, live in a terminal and once elsewhere."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
import termios
from pathlib import Path

import nats

from headrace.bus import participation, subjects
from headrace.cli.watch.top_view import Past, spark
from headrace.embedded.nats import EmbeddedNats
from headrace.metrics.counters import Stats
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.process import ServiceProcess, command, service
from tests.support.telemetry_answers import (
    environment,
    make_slot,
    status_when,
)

PUBLISHER: Stats = {
    "ready": 1,
    "cdc_events": 5000,
    "paused": 0,
    "memory_bytes": 50 << 20,
    "table_events": {"users insert": 4000, "users update": 990, "app=2Forders insert": 10},
    "errors": {"error gap": 2, "warning not_ready_bus": 1},
    "ack_lag_seconds": [1.0, 0, 0, 0, 90, 0, 0, 10, *[0] * 12],
}
RESPONDER: Stats = {
    "ready": 1,
    "snapshot_progress_rows": {"users": 250_000},
    "snapshot_estimated_rows": {"users": 1_000_000},
}


async def told(telemetry: ServiceProcess, nats_url: str, slot: str) -> None:
    """Telemetry knows a publisher and a responder."""
    client = await nats.connect(nats_url)

    async def tell() -> None:
        # Until it is heard: telemetry is connected a moment before it listens.
        while True:
            for name, stats in (("publisher", PUBLISHER), ("snapshot-responder", RESPONDER)):
                await client.publish(
                    subjects.stats(slot, name), participation.encode_stats(stats, {})
                )
            await asyncio.sleep(0.2)

    telling = asyncio.create_task(tell())
    await status_when(
        telemetry, lambda status: {"publisher", "snapshot-responder"} <= status["services"].keys()
    )
    telling.cancel()
    await asyncio.wait({telling})
    await client.close()


async def test_one_screen_has_the_stream_the_slot_the_snapshots_the_tables_and_the_errors(
    database: Database, nats_server: EmbeddedNats, names: Names
) -> None:
    await make_slot(database, names)
    settings = environment(database, nats_server.url, names)
    async with service(settings, "telemetry") as telemetry:
        await telemetry.logs("slot_visible")
        await told(telemetry, nats_server.url, names.slot)
        shown = await command(settings, "top", "--once", "--url", await telemetry.url())
    assert shown.code == 0, shown
    for words in (
        names.slot,
        "5,000 in all",
        "not read",
        "reserved",
        "250,000",
        "1,000,000",
        "4,990",
        "gap",
    ):
        assert words in shown.out, (words, shown.out)


async def test_a_live_view_ends_with_q_and_leaves_the_terminal_as_it_was(
    database: Database, nats_server: EmbeddedNats, names: Names
) -> None:
    settings = environment(database, nats_server.url, names)
    async with service(settings, "telemetry") as telemetry:
        await telemetry.logs("reports_heard")
        await told(telemetry, nats_server.url, names.slot)
        ours, its = pty.openpty()
        before = termios.tcgetattr(its)
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("headrace"),
            *("top", "--interval", "0.2", "--url", await telemetry.url()),
            stdin=its,
            stdout=its,
            stderr=its,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        )
        seen = ""
        async with asyncio.timeout(60):
            while seen.count("events/s") < 3:
                seen += (await asyncio.to_thread(os.read, ours, 65536)).decode(errors="replace")
        os.write(ours, b"q")
        async with asyncio.timeout(60):
            while "\x1b[?1049l" not in seen:
                seen += (await asyncio.to_thread(os.read, ours, 65536)).decode(errors="replace")
            assert await process.wait() == 0
        left = termios.tcgetattr(its)
        os.close(its)
        os.close(ours)
    assert "\x1b[?1049h" in seen, "a separate screen"
    assert left == before


async def test_top_without_telemetry_says_what_to_do() -> None:
    shown = await command({}, "top", "--url", "http://127.0.0.1:1")
    assert shown.code == 1
    assert "Start it (`headrace telemetry`)" in shown.err


def test_a_publisher_that_began_anew_has_no_negative_rate() -> None:
    past = Past()
    for at, events in enumerate((1000, 1100, 5)):
        body = {
            "cdc_events_published": events,
            "wal_lag_bytes": 0,
            "services": {"publisher": {"figures": {}}},
        }
        past.add(float(at), body)
    assert list(past.rates) == [100.0, 0.0]
    assert spark(past.rates) == "█▁"
