"""Measures how long a commit takes to become readable by a JetStream consumer, with the suite and
on the bare path.

On the bare path, pg_recvlogical writes to a pipe, and the output of each commit is published to
JetStream immediately and unchanged, in as many messages as the suite uses. Both run in the same
process as the other's writer, at the same rate, one after the other, and with the same consumer.
The measurement starts at PostgreSQL's commit time, which both contain.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

import asyncpg
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.contract import events
from headrace.testing.suite import Suite
from tests.bench.machine import PUBLICATION, Machine
from tests.bench.result import Figure, within

TRANSACTIONS_PER_S, ROWS = 100, 10
_SETTLE_S = 1.0
_TABLE = "bench_latency"
_COMMIT = b"\nC\x00"
_COMMIT_BYTES = 26
# PostgreSQL counts from the year 2000.
_PG_EPOCH_S = 946_684_800


async def measure(machine: Machine, seconds: float, environment: dict[str, str]) -> list[Figure]:
    """Median and 99th percentile, each compared with the bare path's."""
    await machine.database.execute(
        f"CREATE TABLE {_TABLE} (id bigserial PRIMARY KEY, n int, name text)"
    )
    await machine.database.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")
    await machine.database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {_TABLE}")
    bare = await _sampled(machine, seconds, _bare(machine))
    ours = await _sampled(machine, seconds, _suite(machine, environment))
    return [
        within(f"latency {name}", _at(ours, share), "ms", _at(bare, share), "bare path", most)
        for name, share, most in (("p50", 50, 2.0), ("p99", 99, 4.0))
    ]


def _at(samples: list[float], share: int) -> float:
    return statistics.quantiles(samples, n=100)[share - 1] * 1000


Path = contextlib.AbstractAsyncContextManager[list[float]]


async def _sampled(machine: Machine, seconds: float, path: Path) -> list[float]:
    """Write at a steady rate while the path is up; the latencies it saw."""
    async with path as samples:
        writer = await asyncpg.connect(machine.postgres.dsn())
        await _write(writer, _SETTLE_S)
        samples.clear()
        await _write(writer, seconds)
        await writer.close()
        await asyncio.sleep(_SETTLE_S)
    assert len(samples) > seconds * TRANSACTIONS_PER_S / 2, f"only {len(samples)} commits arrived"
    return samples


async def _write(writer: asyncpg.Connection, seconds: float) -> None:
    rows = f"SELECT g, 'name ' || g FROM generate_series(1, {ROWS}) g"
    insert = await writer.prepare(f"INSERT INTO {_TABLE} (n, name) {rows}")
    began = time.monotonic()
    for number in range(int(seconds * TRANSACTIONS_PER_S)):
        await insert.fetch()
        await asyncio.sleep(max(0, began + (number + 1) / TRANSACTIONS_PER_S - time.monotonic()))


@contextlib.asynccontextmanager
async def _suite(machine: Machine, environment: dict[str, str]) -> AsyncIterator[list[float]]:
    samples: list[float] = []

    async def take(message: Msg) -> None:
        arrived = time.time()
        tx = events.decode(message.data)["tx"]
        if tx["last"]:
            samples.append(arrived - datetime.fromisoformat(tx["ts"]).timestamp())

    folder = machine.folder / "latency"
    folder.mkdir()
    slot = "bench_latency"
    async with Suite(machine.environment(slot, **environment), folder) as suite:
        await suite.logged("publisher", "epoch_joined")
        async with _consumer(machine, "CDC", f"cdc.{_TABLE}.insert", take):
            yield samples
        for service in ("wal-reader", "publisher"):
            await suite.stop(service)
    await machine.drop_slot(slot)


@contextlib.asynccontextmanager
async def _bare(machine: Machine) -> AsyncIterator[list[float]]:
    samples: list[float] = []

    async def take(message: Msg) -> None:
        arrived = time.time()
        if message.data.startswith(_COMMIT[1:]):
            samples.append(arrived - _PG_EPOCH_S - int.from_bytes(message.data[18:26], "big") / 1e6)

    slot = "bench_bare"
    await machine.database.execute(
        "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot
    )
    client = await nats.connect(machine.nats.url)
    await client.jetstream().add_stream(name="BARE", subjects=["bare.>"])
    arguments = ["-d", machine.postgres.dsn(), "--slot", slot, "--start", "--no-loop", "-f", "-"]
    options = ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}"]
    process = await asyncio.create_subprocess_exec(
        machine.binary("pg_recvlogical"), *arguments, *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    relay = asyncio.create_task(_relay(process.stdout, client), name="bare-relay")
    async with _consumer(machine, "BARE", "bare.row", take):
        yield samples
    process.terminate()
    await process.wait()
    await relay
    await client.jetstream().delete_stream("BARE")
    await client.close()
    await machine.drop_slot(slot)


async def _relay(lines: asyncio.StreamReader, client: Client) -> None:
    """Publish each transaction as soon as pg_recvlogical has written all of it: its bytes in parts,
    then its commit.
    """
    data = b""
    while chunk := await lines.read(65536):
        data += chunk
        while (at := data.find(_COMMIT)) >= 0 and len(data) > at + _COMMIT_BYTES:
            size = -(-at // (ROWS - 1))
            for part in range(ROWS - 1):
                await client.publish("bare.row", data[part * size : min(at, (part + 1) * size)])
            await client.publish("bare.row", data[at + 1 : at + 1 + _COMMIT_BYTES])
            data = data[at + 1 + _COMMIT_BYTES :]


@contextlib.asynccontextmanager
async def _consumer(
    machine: Machine, stream: str, subject: str, take: Callable[[Msg], Awaitable[None]]
) -> AsyncIterator[None]:
    client = await nats.connect(machine.nats.url)
    try:
        await client.jetstream().subscribe(subject, stream=stream, cb=take, ordered_consumer=True)
        yield
    finally:
        await client.close()
