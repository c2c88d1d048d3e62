"""Measures how fast a backlog behind a slot is drained, by the suite and by its limit,
pg_recvlogical.

Both read copies of one slot that was created before the changes, alternating, so that other load
affects both. The measurement starts when PostgreSQL is asked to stream, and ends when JetStream has
stored the last event, which is a row of a separate table.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace.testing.suite import Suite
from tests.bench.machine import Machine, cpu_s, rss_max_mib, rss_mib

SERVICES = ("wal-reader", "publisher")
_DRAIN_TIMEOUT_S = 600
_LOOK_S = 0.2
_RUNS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes of one publication, kept by a slot that nobody reads: only copies of it are."""

    name: str
    events: int
    end_lsn: str

    @property
    def publication(self) -> str:
        return f"bench_{self.name}"

    @property
    def template(self) -> str:
        return f"bench_{self.name}_template"

    @property
    def last_table(self) -> str:
        return f"bench_{self.name}_end"


@dataclass(frozen=True, slots=True)
class Drained:
    seconds: float
    # For each event, by process.
    cpu_us: dict[str, float]
    rss_max_mib: dict[str, float]
    # Seconds since the beginning, and what each process held then.
    rss_series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


async def prepare(machine: Machine, name: str, setup: str, tables: str) -> None:
    """Tables, their publication, and the slot that keeps what is written from here on."""
    empty = Backlog(name, 0, "")
    await machine.database.execute(f"CREATE TABLE {empty.last_table} (id int PRIMARY KEY); {setup}")
    await machine.database.execute(
        f"CREATE PUBLICATION {empty.publication} FOR TABLE {tables}, {empty.last_table}"
    )
    await machine.database.execute(
        "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", empty.template
    )


async def ended(machine: Machine, name: str, events: int) -> Backlog:
    """All is written: what is there to drain."""
    await machine.database.execute(f"INSERT INTO {Backlog(name, 0, '').last_table} VALUES (1)")
    end = await machine.database.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    await machine.database.execute("CHECKPOINT")
    return Backlog(name, events + 1, str(end))


async def forget(machine: Machine, backlog: Backlog) -> None:
    """Let PostgreSQL remove the changes."""
    await machine.drop_slot(backlog.template)


async def limit_s(machine: Machine, backlog: Backlog) -> float:
    """The seconds that pg_recvlogical takes."""
    slot = f"bench_{backlog.name}_limit"
    await _copy_slot(machine, backlog, slot)
    arguments = [
        "-d",
        machine.postgres.dsn(),
        "--slot",
        slot,
        "--start",
        "--no-loop",
        "--endpos",
        backlog.end_lsn,
    ]
    options = [
        "-o",
        "proto_version=1",
        "-o",
        f"publication_names={backlog.publication}",
        "-f",
        "/dev/null",
    ]
    seconds = await machine.run("pg_recvlogical", *arguments, *options)
    await machine.drop_slot(slot)
    return seconds


async def _copy_slot(machine: Machine, backlog: Backlog, name: str) -> None:
    await machine.database.execute(
        "SELECT pg_copy_logical_replication_slot($1, $2)", backlog.template, name
    )


async def drain(
    machine: Machine,
    backlogs: list[Backlog],
    mode: str,
    environment: dict[str, str],
    urls: list[str] | None = None,
) -> list[Drained]:
    """Let suites, one for each backlog, drain them at the same time into one stream, or each into that of
    its account.

    The streams are removed afterwards.
    """
    own = urls or [machine.nats.url] * len(backlogs)
    clients = {url: await nats.connect(url) for url in set(own)}
    async with asyncio.TaskGroup() as tasks:
        draining = [
            tasks.create_task(
                _drain(machine, clients[url], one, mode, {**environment, "NATS_URL": url})
            )
            for one, url in zip(backlogs, own, strict=True)
        ]
    if mode != "batch":
        # Each event is a separate message, without a gap.
        events = sum(backlog.events for backlog in backlogs)
        found = sum([await _messages(client.jetstream()) for client in clients.values()])
        assert found == events, f"{found} messages for {events} events"
    for client in clients.values():
        await client.jetstream().delete_stream("CDC")
        await client.close()
    return [task.result() for task in draining]


async def _drain(
    machine: Machine, client: Client, backlog: Backlog, mode: str, environment: dict[str, str]
) -> Drained:
    # Another name each time: a source whose stream was removed tells that as a gap.
    slot = f"bench_{backlog.name}_{mode}_{next(_RUNS)}"
    await _copy_slot(machine, backlog, slot)
    folder = machine.folder / slot
    folder.mkdir()
    more = {
        "HEADRACE_DELIVERY": mode,
        "HEADRACE_CDC_BYTES_MAX": str(1 << 33),
        "HEADRACE_PUB": backlog.publication,
    }
    async with Suite(
        machine.environment(slot, **(more | environment)), folder, ["publisher"]
    ) as suite:
        await suite.logged("publisher", "lease_acquired")
        before = {
            "publisher": cpu_s(suite.pid("publisher")),
            "nats-server": cpu_s(machine.nats.pid),
        }
        await suite.start("wal-reader")
        await suite.logged("wal-reader", "epoch_opened")
        # The start of a process is no part of the cost of an event.
        before["wal-reader"] = cpu_s(suite.pid("wal-reader"))
        began = _logged_at(suite.log("wal-reader"), "epoch_opened")
        pids = {name: suite.pid(name) for name in SERVICES}
        pids |= {"nats-server": machine.nats.pid, "walsender": await machine.walsender(slot)}
        async with _watched(pids) as series:
            end = await _last_stored(client.jetstream(), backlog, mode)
        cpu = {
            name: (cpu_s(pid) - before.get(name, 0.0)) / backlog.events * 1e6
            for name, pid in pids.items()
        }
        rss = {name: rss_max_mib(pids[name]) for name in SERVICES}
        # That server has served other suites before.
        rss["nats-server"] = max(mib for _, mib in series["nats-server"])
        for service in SERVICES:
            await suite.stop(service)
    await machine.drop_slot(slot)
    return Drained(end - began, cpu, rss, series)


@contextlib.asynccontextmanager
async def _watched(pids: dict[str, int]) -> AsyncIterator[dict[str, list[tuple[float, float]]]]:
    """The memory of the processes over time; PostgreSQL's is shared, and says little."""
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in (*SERVICES, "nats-server")}
    began = time.monotonic()

    async def look() -> None:
        while True:
            for name, samples in series.items():
                samples.append((round(time.monotonic() - began, 1), round(rss_mib(pids[name]), 1)))
            await asyncio.sleep(_LOOK_S)

    looking = asyncio.create_task(look(), name="memory")
    try:
        yield series
    finally:
        looking.cancel()


def _logged_at(log: str, event: str) -> float:
    line = next(line for line in log.splitlines() if f"event={event}" in line)
    stamp = line.split("time=", 1)[1].split(" ", 1)[0]
    return datetime.fromisoformat(stamp).timestamp()


async def _last_stored(js: JetStreamContext, backlog: Backlog, mode: str) -> float:
    """Wait until the last event is in the stream; when it was stored."""
    subject = f"cdc.{backlog.last_table}.{'batch' if mode == 'batch' else 'insert'}"
    async with asyncio.timeout(_DRAIN_TIMEOUT_S):
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(NotFoundError):
                message = await js.get_last_msg("CDC", subject)
                break
    assert message.time is not None
    return message.time.timestamp()


async def _messages(js: JetStreamContext) -> int:
    """How many events the stream has, without schema events."""
    subjects = (await js.stream_info("CDC", subjects_filter="cdc.>")).state.subjects or {}
    return sum(number for subject, number in subjects.items() if not subject.endswith(".schema"))
