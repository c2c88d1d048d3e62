"""More is written than can be delivered: memory stays flat, the lag is visible, and everything is
delivered in the end.

The connection to NATS is slowed down, so that the test works on any machine; the writer doesn't
wait. HEADRACE_OVERLOAD_S makes it minutes. The figures are printed.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Oracle, stored
from headrace.testing.plugin import OwnNats
from headrace.testing.process import rss_mib
from headrace.testing.proxy import Proxy
from headrace.testing.suite import Suite
from tests.support.own_source import WITH_TEXT, OwnSource

# As fast as PostgreSQL takes it; or for so long, with pauses between the bursts, which is still too
# fast for the line.
SECONDS, PAUSE_S = float(os.environ.get("HEADRACE_OVERLOAD_S", "0")), 5.0
ROW_BYTES, BURST = 2_000, 5_000
# Written in all: some sixty MiB, or two a second.
ROWS = 1000 + BURST * (int(SECONDS / PAUSE_S) or 6)
# A service may grow by a few times the data in flight; after that, it must not grow.
GROWTH_MIB, FLAT_MIB = 64.0, 12
WAIT_S = 200.0 + SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 4 * SECONDS)]


async def test_writes_beyond_what_can_be_delivered_cost_time_and_no_memory(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database, server = await own_source(WITH_TEXT), await own_nats()
    oracle = await Oracle.begun(database)
    async with Proxy(lambda: server.port) as to_nats:
        environment = {
            **SETTINGS,
            **database.environment(f"nats://127.0.0.1:{to_nats.port}"),
        }
        async with Suite(environment, tmp_path) as suite:
            await suite.logged("publisher", "epoch_joined")
            await _write(database, 0, 1000)
            await _delivered(server.url, 1000)
            services = ("wal-reader", "publisher")
            before = {service: rss_mib(suite.pid(service)) for service in services}
            # 64 KiB at a time, and no more than twenty of them a second in one direction.
            to_nats.delay_s = 0.05
            lag, held, began = 0, dict(before), time.monotonic()
            course: list[int] = []
            for first in range(1000, ROWS, BURST):
                await _write(database, first, min(BURST, ROWS - first))
                lag = max(lag, await _lag_bytes(database))
                for service in services:
                    held[service] = max(held[service], rss_mib(suite.pid(service)))
                course.append(round(held["publisher"]))
                if SECONDS:
                    await asyncio.sleep(
                        max(0.0, began + first / BURST * PAUSE_S - time.monotonic())
                    )
            assert lag > 10 << 20, "the writer was not faster than the line"
            assert not SECONDS or course[-1] - course[len(course) // 2] < FLAT_MIB, course
            print(
                f"{time.monotonic() - began:.0f} s, {ROWS} rows of {ROW_BYTES} B, {lag / 1e6:.0f} "
                "MB behind at most;"
            )
            left, healed = ROWS - await _count(server.url), time.monotonic()
            to_nats.delay_s = 0.0
            await _delivered(server.url, ROWS)
            took_s = time.monotonic() - healed
            print(
                f"{left} rows left, delivered in {took_s:.1f} s ({left / took_s:.0f} rows/s) once "
                "the line was quick;"
            )
            for service in services:
                held[service] = max(held[service], rss_mib(suite.pid(service)))
                print(f"{service}: {before[service]:.0f} MiB before, {held[service]:.0f} at most")
                assert held[service] - before[service] < GROWTH_MIB, (before, held)
            found = [
                event
                for event in await stored(server.url)
                if event.payload["operation"] == "INSERT"
            ]
            assert [event.change for event in found] == await oracle.changes()
            assert suite.running("wal-reader")
            assert suite.running("publisher")


async def _write(database: Database, first: int, count: int) -> None:
    await database.execute(
        "INSERT INTO t SELECT g, repeat('x', $3) FROM generate_series($1::int, $2::int) g",
        first,
        first + count - 1,
        ROW_BYTES,
    )


async def _lag_bytes(database: Database) -> int:
    query = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'headrace'"
    return int(await database.fetchval(query))


async def _delivered(url: str, count: int) -> None:
    """Wait until the stream has so many rows."""
    client = await nats.connect(url)
    try:
        async with asyncio.timeout(WAIT_S):
            while await _rows(client) < count:  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.5)
    finally:
        await client.close()


async def _count(url: str) -> int:
    client = await nats.connect(url)
    try:
        return await _rows(client)
    finally:
        await client.close()


async def _rows(client: Client) -> int:
    try:
        info = await client.jetstream().stream_info("CDC", subjects_filter="cdc.t.insert")
    except (NatsError, TimeoutError):
        return 0
    return (info.state.subjects or {}).get("cdc.t.insert", 0)
