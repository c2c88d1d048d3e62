"""NATS is unavailable while writers continue: the source retains the changes, no process grows, and
every status shows the problem.

It takes seconds in CI; HEADRACE_OUTAGE_S makes it minutes. The figures are printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator

import nats
import pytest
from nats.errors import Error as NatsError

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Oracle, stored
from headrace.testing.plugin import OwnNats
from headrace.testing.process import ServiceProcess, rss_mib, service
from tests.support.own_source import WITH_TEXT, OwnSource

OUTAGE_S = float(os.environ.get("HEADRACE_OUTAGE_S", "8"))
ROWS_PER_S, ROW_BYTES, AT_ONCE = 1000, 500, 100
# A few times the data in flight.
GROWTH_MIB = 40.0
LAG_BYTES_MIN = 1 << 20
WAIT_S = 90.0 + OUTAGE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * OUTAGE_S + 300)]


class Writer:
    """Writes this many rows per second, no matter whether they are delivered."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rows = 0
        self.ended = False

    async def run(self) -> None:
        began, pause_s = time.monotonic(), AT_ONCE / ROWS_PER_S
        # Never cut off in a write: it may be committed all the same, and not be counted.
        while not self.ended:
            await self.write()
            await asyncio.sleep(max(0.0, began + self.rows / AT_ONCE * pause_s - time.monotonic()))

    async def write(self) -> None:
        await self._database.execute(
            "INSERT INTO t SELECT g, repeat('x', $3) FROM generate_series($1::int, $2::int) g",
            self.rows,
            self.rows + AT_ONCE - 1,
            ROW_BYTES,
        )
        self.rows += AT_ONCE


@contextlib.asynccontextmanager
async def running(writer: Writer) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.run(), name="writer")
    try:
        yield
    finally:
        writer.ended = True
        await task


async def test_a_nats_that_is_away_while_writers_go_on_costs_time_and_no_memory(
    own_source: OwnSource, own_nats: OwnNats
) -> None:
    database, server = await own_source(WITH_TEXT), await own_nats()
    oracle = await Oracle.begun(database)
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    environment |= {
        "HEADRACE_SLOT_INTERVAL_S": "0.5",
        "HEADRACE_WAL_WARNING_BYTES": str(LAG_BYTES_MIN),
    }
    writer = Writer(database)
    async with (
        service(environment, "wal-reader") as reader,
        service(environment, "publisher") as publisher,
        service(environment, "telemetry") as telemetry,
    ):
        await publisher.logs("epoch_joined")
        await writer.write()
        await rows_in(server, writer.rows)
        services = {"wal-reader": reader, "publisher": publisher, "telemetry": telemetry}
        before = {name: rss_mib(process.pid) for name, process in services.items()}
        held = dict(before)
        await server.kill()
        # Only the writes to a server that is down, not those that started before.
        async with running(writer):
            lag = await _outage(services, held)
            assert lag > LAG_BYTES_MIN, "the lag was not in sight"
            await server.start()
            back, due = time.monotonic(), writer.rows
            await rows_in(server, due)
            caught_up_s = time.monotonic() - back
        await rows_in(server, writer.rows)
        for name, process in services.items():
            held[name] = max(held[name], rss_mib(process.pid))
        await asyncio.gather(*(process.readiness(200, WAIT_S) for process in services.values()))
        print(
            f"{OUTAGE_S:.0f} s without NATS, {due} rows written meanwhile, a lag of "
            f"{lag / 1e6:.1f} MB;"
        )
        print(
            f"caught up {caught_up_s:.1f} s after it was back, {due / caught_up_s:.0f} rows/s, "
            "while more was written;"
        )
        print(
            "; ".join(
                f"{name} {before[name]:.0f} MiB before, {held[name]:.0f} at most"
                for name in services
            )
        )
        found = [
            event.change
            for event in await stored(server.url)
            if event.payload["operation"] == "INSERT"
        ]
        assert found == await oracle.changes()
        for name in services:
            assert held[name] - before[name] < GROWTH_MIB, (name, before, held)


async def _outage(services: dict[str, ServiceProcess], held: dict[str, float]) -> int:
    """Wait until everything says what is amiss, and for the time of the outage; the lag that
    telemetry showed.
    """
    began, lag = time.monotonic(), 0
    for name in ("wal-reader", "publisher"):
        said = await services[name].readiness(503, WAIT_S)
        assert said["reasons"], said
    while time.monotonic() - began < OUTAGE_S or (
        lag <= LAG_BYTES_MIN and time.monotonic() - began < WAIT_S
    ):
        lag = json.loads((await services["telemetry"].get("/status"))[1])["wal_lag_bytes"]
        for name, process in services.items():
            held[name] = max(held[name], rss_mib(process.pid))
        await asyncio.sleep(0.5)
    for name in ("wal-reader", "publisher"):
        assert (await services[name].get("/livez"))[0] == 200, "to be away is no reason to end"
    return int(lag)


async def rows_in(server: EmbeddedNats, count: int) -> None:
    """Wait until the stream has so many rows."""
    client = await nats.connect(server.url, reconnect_time_wait=0.1, max_reconnect_attempts=-1)
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(NatsError, TimeoutError):
                    info = await client.jetstream().stream_info(
                        "CDC", subjects_filter="cdc.t.insert"
                    )
                    if (info.state.subjects or {}).get("cdc.t.insert", 0) >= count:
                        return
                await asyncio.sleep(0.1)
    finally:
        await client.close()
