"""More is written than can be delivered: memory stays flat, the lag is in sight, and all of it comes in the end.

The way to NATS is made slow, so that it holds on any machine; the writer doesn't wait.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Oracle, Stored, stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.proxy import Proxy
from headrace.testing.suite import Suite

pytestmark = pytest.mark.slow

ROWS, ROW_BYTES, BURST = 31_000, 2_000, 5_000
# Written in all: some sixty MiB. What a service may hold more than before: what is in flight, a few times over.
GROWTH_MIB = 40.0
WAIT_S = 200.0


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} is gone")


async def test_writes_beyond_what_can_be_delivered_cost_time_and_no_memory(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION headrace FOR TABLE t")
    oracle = Oracle(database, "oracle", "headrace")
    await oracle.begin()
    async with Proxy(lambda: server.port) as to_nats:
        environment = {
            **SETTINGS,
            **postgres.environment(),
            "PG_DB": "postgres",
            "NATS_URL": f"nats://127.0.0.1:{to_nats.port}",
        }
        async with Suite(environment, tmp_path) as suite:
            await suite.logged("publisher", "epoch_joined")
            await _write(database, 0, 1000)
            await _delivered(server.url, 1000)
            services = ("wal-reader", "publisher")
            before = {service: rss_mib(suite.pid(service)) for service in services}
            # 64 KiB at a time, and no more than twenty of them a second in one direction.
            to_nats.delay_s = 0.05
            lag, held = 0, dict(before)
            for first in range(1000, ROWS, BURST):
                await _write(database, first, min(BURST, ROWS - first))
                lag = max(lag, await _lag_bytes(database))
                for service in services:
                    held[service] = max(held[service], rss_mib(suite.pid(service)))
            assert lag > 10 << 20, "the writer was not faster than the line"
            to_nats.delay_s = 0.0
            found = await _delivered(server.url, ROWS)
            for service in services:
                held[service] = max(held[service], rss_mib(suite.pid(service)))
                assert held[service] - before[service] < GROWTH_MIB, (before, held)
            assert [event.change for event in found] == await oracle.changes()
            assert suite.running("wal-reader")
            assert suite.running("publisher")
    await database.close()


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


async def _delivered(url: str, count: int) -> list[Stored]:
    """Every row, once the stream has so many."""
    client = await nats.connect(url)
    try:
        async with asyncio.timeout(WAIT_S):
            while await _rows(client) < count:  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.5)
    finally:
        await client.close()
    return [event for event in await stored(url) if event.payload["operation"] == "INSERT"]


async def _rows(client: Client) -> int:
    try:
        info = await client.jetstream().stream_info("CDC", subjects_filter="cdc.t.insert")
    except (NatsError, TimeoutError):
        return 0
    return (info.state.subjects or {}).get("cdc.t.insert", 0)
