"""How fast a backlog of single-row inserts is drained, held against pg_recvlogical on the same backlog.

Both read copies of one slot that was made before the inserts, in turns, so that what else the machine does hits both.
The clock runs from the moment PostgreSQL is asked to stream until JetStream has stored the last event.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import nats
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from tests.bench.machine import PUBLICATION, Machine, cpu_s, rss_max_mib
from tests.bench.result import Figure, against

from headrace.contract import events
from headrace.testing.suite import Suite

TARGETS = {"event": 0.65, "batch": 0.85, "transaction": 0.45}
ROWS_PER_TRANSACTION = 1000
TEMPLATE = "bench_template"
_TABLE = "bench_rows"
_DRAIN_TIMEOUT_S = 300
_INSERT = f"""
INSERT INTO {_TABLE}
SELECT g, g % 1000, 'name of row ' || g, g * 1.25, timestamptz '2026-01-01' + g * interval '1 second'
FROM generate_series($1::bigint, $2::bigint) g
"""


async def make(machine: Machine, rows: int) -> str:
    """Write the backlog behind a slot; the LSN where it ends."""
    database = machine.database
    await database.execute(
        f"CREATE TABLE {_TABLE} (id bigint PRIMARY KEY, n int, name text, amount numeric, at timestamptz)"
    )
    await database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    await database.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", TEMPLATE)
    for first in range(1, rows + 1, ROWS_PER_TRANSACTION):
        await database.execute(_INSERT, first, first + ROWS_PER_TRANSACTION - 1)
    return str(await database.fetchval("SELECT pg_current_wal_lsn()::text"))


async def measure(machine: Machine, rows: int, modes: list[str], environment: dict[str, str]) -> list[Figure]:
    """A figure for each way of delivery."""
    end = await make(machine, rows)
    # A first reading warms the page cache for everyone.
    await _limit(machine, end)
    limits = [await _limit(machine, end)]
    drained = []
    for mode in modes:
        drained.append(await _drain(machine, rows, mode, environment))
        limits.append(await _limit(machine, end))
    figures = []
    for mode, (seconds, figure), before, after in zip(modes, drained, limits[:-1], limits[1:], strict=True):
        limit_s = (before + after) / 2
        name = f"drain, {mode}"
        made = against(name, rows / seconds, "events/s", rows / limit_s, "pg_recvlogical", TARGETS[mode])
        figures.append(replace(made, cpu_us=figure.cpu_us, rss_mib=figure.rss_mib))
    return figures


async def _limit(machine: Machine, end: str) -> float:
    slot = "bench_limit"
    await _copy_slot(machine, slot)
    arguments = ["-d", machine.postgres.dsn(), "--slot", slot, "--start", "--no-loop", "--endpos", end]
    options = ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}", "-f", "/dev/null"]
    seconds = await machine.run("pg_recvlogical", *arguments, *options)
    await machine.drop_slot(slot)
    return seconds


async def _copy_slot(machine: Machine, name: str) -> None:
    await machine.database.execute("SELECT pg_copy_logical_replication_slot($1, $2)", TEMPLATE, name)


async def _drain(machine: Machine, rows: int, mode: str, environment: dict[str, str]) -> tuple[float, Figure]:
    slot = f"bench_{mode}"
    await _copy_slot(machine, slot)
    folder = machine.folder / slot
    folder.mkdir()
    client = await nats.connect(machine.nats.url)
    more = {"HEADRACE_DELIVERY": mode, "HEADRACE_CDC_BYTES_MAX": str(1 << 35), **environment}
    async with Suite(machine.environment(slot, **more), folder, ["publisher"]) as suite:
        await suite.logged("publisher", "lease_acquired")
        before = {"publisher": cpu_s(suite.pid("publisher")), "nats-server": cpu_s(machine.nats.pid)}
        await suite.start("wal-reader")
        await suite.logged("wal-reader", "epoch_opened")
        # What a process takes to start is no part of what an event costs.
        before["wal-reader"] = cpu_s(suite.pid("wal-reader"))
        began = _logged_at(suite.log("wal-reader"), "epoch_opened")
        ended = await _last_stored(client.jetstream(), rows, mode)
        pids = {
            "wal-reader": suite.pid("wal-reader"),
            "publisher": suite.pid("publisher"),
            "nats-server": machine.nats.pid,
            "walsender": await machine.walsender(),
        }
        cpu = {name: cpu_s(pid) - before.get(name, 0.0) for name, pid in pids.items()}
        rss = {name: rss_max_mib(pids[name]) for name in ("wal-reader", "publisher")}
        for service in ("wal-reader", "publisher"):
            await suite.stop(service)
    await client.jetstream().delete_stream("CDC")
    await client.close()
    await machine.drop_slot(slot)
    per_event = {name: seconds / rows * 1e6 for name, seconds in cpu.items()}
    return ended - began, Figure(mode, 0, "", cpu_us=per_event, rss_mib=rss)


def _logged_at(log: str, event: str) -> float:
    line = next(line for line in log.splitlines() if f"event={event}" in line)
    stamp = line.split("time=", 1)[1].split(" ", 1)[0]
    return datetime.fromisoformat(stamp).timestamp()


async def _last_stored(js: JetStreamContext, rows: int, mode: str) -> float:
    """Wait until the last event is in the stream; when it was stored."""
    subject = f"cdc.{_TABLE}.{'batch' if mode == 'batch' else 'insert'}"
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    while time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        try:
            message = await js.get_last_msg("CDC", subject)
        except NotFoundError:
            continue
        payload: Any = events.decode(message.data or b"")
        last = payload[-1] if isinstance(payload, list) else payload
        if last["data"]["id"] == rows:
            await _complete(js, rows, mode)
            assert message.time is not None
            return message.time.timestamp()
    raise TimeoutError(f"the backlog was not drained in {_DRAIN_TIMEOUT_S} s")


async def _complete(js: JetStreamContext, rows: int, mode: str) -> None:
    """Whether each event is a message of its own, and none is missing: the rows and one schema event."""
    messages = (await js.stream_info("CDC")).state.messages
    assert mode == "batch" or messages == rows + 1, f"{messages} messages for {rows} rows"
