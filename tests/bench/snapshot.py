"""How fast a table is copied into JetStream, held against psql's COPY on one connection."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.contract.events import decode
from headrace.testing.suite import Suite
from tests.bench.machine import PUBLICATION, Machine, cpu_s, family_cpu_s, rss_max_mib
from tests.bench.result import Figure, against, plain

LEAST = 0.9
SLOT = "bench_snapshot"
_TABLE = "bench_table"
_TIMEOUT_S = 180
COLUMNS = """
id bigint PRIMARY KEY, n int, price numeric, name text, at timestamptz, flag boolean, data jsonb, weight float8
"""
ROWS = """
SELECT g, g % 1000, g * 1.25, 'name of row ' || g, timestamptz '2026-01-01' + g * interval '1 second', g % 2 = 0,
       jsonb_build_object('k', g, 'tag', 'v' || g % 10), g / 7.0
FROM generate_series({first}, {last}::bigint) g
"""


async def measure(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """Rows per second once Spark is up; the start of Spark is measured separately."""
    database = machine.database
    await database.execute(f"CREATE TABLE {_TABLE} ({COLUMNS})")
    await database.execute(f"INSERT INTO {_TABLE} {ROWS.format(first=1, last=rows)}")
    await database.execute("VACUUM ANALYZE " + _TABLE)
    await database.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")
    await database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {_TABLE}")
    folder = machine.folder / "snapshot"
    folder.mkdir()
    await _copy(machine)
    before = await _copy(machine)
    async with Suite(
        machine.environment(SLOT, **environment), folder, ["snapshot-responder"]
    ) as suite:
        client = await nats.connect(machine.nats.url)
        cold = await await_snapshot(client, _TABLE, rows, _TIMEOUT_S)
        began = _cpu_s(machine, suite)
        warm = await await_snapshot(client, _TABLE, rows, _TIMEOUT_S)
        cpu_us = {
            name: (total - began.get(name, 0.0)) / rows * 1e6
            for name, total in _cpu_s(machine, suite).items()
        }
        after = await _copy(machine)
        rss = rss_max_mib(suite.pid("snapshot-responder"))
        await client.close()
        await suite.stop("snapshot-responder")
    made = against(
        "snapshot", rows / warm, "rows/s", rows / ((before + after) / 2), "psql COPY", LEAST
    )
    return [
        replace(made, cpu_us=cpu_us),
        plain("snapshot, Spark not running yet", rows / cold, "rows/s"),
        plain("snapshot-responder", rss, "MiB", 64),
    ]


def _cpu_s(machine: Machine, suite: Suite) -> dict[str, float]:
    """Of every process that has a part in a snapshot."""
    ours = family_cpu_s(suite.pid("snapshot-responder"))
    java = ours.pop("java", 0.0)
    return {
        "PostgreSQL": sum(family_cpu_s(machine.postgres.pid).values()),
        "responder and workers": sum(ours.values()),
        "Spark's JVM": java,
        "nats-server": cpu_s(machine.nats.pid),
    }


async def _copy(machine: Machine) -> float:
    return await machine.run("psql", machine.postgres.dsn(), "-qc", f"COPY {_TABLE} TO STDOUT CSV")


async def await_snapshot(client: Client, table: str, rows: int, timeout_s: float) -> float:
    """Ask for a snapshot; the seconds from the request to its meta message."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()
    began = loop.time()

    async def take(message: Msg) -> None:
        meta = decode(message.data)
        if done.done():
            return
        if meta.get("row_count") == rows:
            done.set_result(loop.time() - began)
        else:
            done.set_exception(RuntimeError(str(meta)))

    subscriptions = [
        await client.subscribe(f"init.{kind}.{table}", cb=take) for kind in ("meta", "error")
    ]
    async with asyncio.timeout(timeout_s):
        while not done.done():
            try:
                await client.request(f"snapshot.request.{table}", b"", timeout=5)
                break
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                await asyncio.sleep(0.1)
        seconds = await done
    for subscription in subscriptions:
        await subscription.unsubscribe()
    return seconds
