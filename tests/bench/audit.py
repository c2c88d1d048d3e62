"""Measures the audit trail: the speed of writing a backlog, the speed and delay of following the
line, and the memory.

The stream contains the backlogs before the writer starts: single-row transactions, and transactions
of 1,000 rows. The limit is a COPY of the same rows into a table with the same indexes, by
PostgreSQL. Then everything runs at the same time, from single-row autocommit inserts to rows of the
trail, one commit at a time on an idle line, and one huge transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import nats
from nats.js.errors import NotFoundError

from headrace.testing.suite import Suite
from tests.bench.machine import Machine, cpu_s, rss_max_mib, rss_mib
from tests.bench.result import Figure, within

TABLE = "audited"
TIMEOUT_S = 540.0
BACKLOG_PER_S, LIVE_PER_S = 30_000, 11_500
# With Zemi, a machine like that of the figures takes this long from commit to row.
ZEMI_MS = 1.2
IDLE_COMMITS = 200
SERVICES = ("wal-reader", "publisher", "audit-writer")
_LOOK_S = 0.2
_SETUP = f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, n int, name text, amount numeric, at timestamptz)"
_COLUMNS = "'name of row ' || g, g * 1.25, timestamptz '2026-01-01' + g * interval '1 second'"
_ROWS = f"INSERT INTO {TABLE} SELECT g, g % 1000, {_COLUMNS} FROM generate_series({{first}}, {{last}}) g"
_EACH = f"""
DO $$ BEGIN FOR g IN {{first}}..{{last}} LOOP
    INSERT INTO {TABLE} SELECT g, g % 1000, {_COLUMNS}; COMMIT;
END LOOP; END $$
"""


@dataclass(slots=True)
class Trail:
    """A line with its own slot and audit table, on servers that others use before and after it."""

    machine: Machine
    suite: Suite
    name: str

    @property
    def table(self) -> str:
        return f"audit_{self.name}.changes"

    async def rows(self) -> int:
        """How many changes are in the trail."""
        return int(await self.machine.database.fetchval(f"SELECT count(*) FROM {self.table}"))

    async def reaches(self, rows: int) -> None:
        """Wait until the trail has so many."""
        began = time.monotonic()
        while await self.rows() < rows:
            assert time.monotonic() - began < TIMEOUT_S, self.suite.log("audit-writer")[-2000:]
            await asyncio.sleep(_LOOK_S)

    async def writes(self) -> None:
        """Start the audit-writer, and wait until it follows."""
        await self.suite.start("audit-writer")
        await self.suite.logged("audit-writer", "audit_follows", 60)

    async def pids(self, *services: str) -> dict[str, int]:
        """Of these services, the servers, and of the audit-writer's own backend."""
        backend = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'headrace audit-writer'"
        )
        found = {name: self.suite.pid(name) for name in services}
        return found | {
            "postgres (trail)": await self.machine.database.fetchval(backend),
            "nats-server": self.machine.nats.pid,
        }


async def measure(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """All of them, each on a stream that holds nothing else."""
    return [
        *await _backlog(machine, "single", rows, [_EACH.format(first=1, last=rows)], environment),
        *await _backlog(machine, "thousands", rows, _by_thousands(rows), environment),
        *await _live(machine, rows // 2, environment),
        *await _idle(machine, environment),
        *await _huge(machine, rows, environment),
    ]


def _by_thousands(rows: int) -> list[str]:
    return [
        _ROWS.format(first=first, last=min(first + 999, rows)) for first in range(1, rows + 1, 1000)
    ]


@contextlib.asynccontextmanager
async def _line(machine: Machine, name: str, environment: dict[str, str]) -> AsyncIterator[Trail]:
    """wal-reader and publisher with an empty table; all of it gone afterwards."""
    database, slot = machine.database, f"audited_{name}"
    await database.execute(
        f"DROP TABLE IF EXISTS {TABLE}; DROP PUBLICATION IF EXISTS {TABLE}; {_SETUP}"
    )
    await database.execute(f"CREATE PUBLICATION {TABLE} FOR TABLE {TABLE}")
    more = {
        "HEADRACE_PUB": TABLE,
        "HEADRACE_AUDIT_SCHEMA": f"audit_{name}",
        "HEADRACE_CDC_BYTES_MAX": str(1 << 33),
    }
    folder = machine.folder / slot
    folder.mkdir()
    async with Suite(machine.environment(slot, **more, **environment), folder) as suite:
        await suite.logged("publisher", "epoch_joined", 60)
        yield Trail(machine, suite, name)
        for service in ("audit-writer", "wal-reader", "publisher"):
            await suite.stop(service)
    await machine.drop_slot(slot)
    client = await nats.connect(machine.nats.url)
    await client.jetstream().delete_stream("CDC")
    await client.close()


async def _run(machine: Machine, statements: list[str]) -> None:
    async with machine.database.acquire() as session:
        # The inserts are not what is measured.
        await session.execute("SET synchronous_commit = off")
        for statement in statements:
            await session.execute(statement)


async def _backlog(
    machine: Machine, name: str, rows: int, statements: list[str], environment: dict[str, str]
) -> list[Figure]:
    """The stream is full, then the audit-writer comes."""
    async with _line(machine, name, environment) as trail:
        await _run(machine, statements)
        await _delivered(machine, rows)
        await trail.writes()
        # From the moment it follows: what it takes to start is no part of what a change costs.
        began, done = time.monotonic(), await trail.rows()
        pids = await trail.pids("audit-writer")
        before = {one: cpu_s(pid) for one, pid in pids.items()}
        await trail.reaches(rows)
        seconds = time.monotonic() - began
        cpu = {one: (cpu_s(pid) - before[one]) / (rows - done) * 1e6 for one, pid in pids.items()}
        speed, peak = (rows - done) / seconds, rss_max_mib(pids["audit-writer"])
    limit = rows / await _copied(machine, trail.table)
    title = f"audit, backlog, {'single-row transactions' if name == 'single' else '1,000-row transactions'}"
    return [_figure(title, speed, BACKLOG_PER_S, cpu, {"audit-writer": peak}, limit)]


def _figure(
    title: str,
    speed: float,
    least: int,
    cpu: dict[str, float],
    rss: dict[str, float],
    limit: float | None = None,
) -> Figure:
    return Figure(
        title,
        speed,
        "changes/s",
        limit,
        "COPY of the same rows" if limit else "",
        speed / limit if limit else None,
        f"≥ {least:,}/s",
        speed >= least,
        cpu,
        rss,
    )


async def _copied(machine: Machine, table: str) -> float:
    """Seconds that PostgreSQL takes to COPY the trail's rows into a table like it."""
    file = machine.postgres.pgdata / "audit-bench.copy"
    database = machine.database
    await database.execute(
        f"CREATE TABLE {table}_again (LIKE {table} INCLUDING ALL); COPY {table} TO '{file}'"
    )
    began = time.monotonic()
    await database.execute(f"COPY {table}_again FROM '{file}'")
    seconds = time.monotonic() - began
    await database.execute(f"DROP TABLE {table}_again")
    file.unlink()
    return seconds


async def _live(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """From single-row autocommit inserts to rows of the trail, with everything running."""
    async with _line(machine, "live", environment) as trail:
        await trail.writes()
        pids = await trail.pids(*SERVICES) | {"walsender": await machine.walsender("audited_live")}
        before = {one: cpu_s(pid) for one, pid in pids.items()}
        began = time.monotonic()
        await _run(machine, [_EACH.format(first=1, last=rows)])
        inserted = time.monotonic() - began
        await trail.reaches(rows)
        seconds = time.monotonic() - began
        cpu = {one: (cpu_s(pid) - before[one]) / rows * 1e6 for one, pid in pids.items()}
    made = _figure(
        "audit, end to end, single-row autocommit",
        rows / seconds,
        LIVE_PER_S,
        cpu,
        {},
        rows / inserted,
    )
    return [replace(made, limit_name="the inserts meanwhile")]


async def _idle(machine: Machine, environment: dict[str, str]) -> list[Figure]:
    """One commit at a time: how long until its row can be read."""
    async with _line(machine, "idle", environment) as trail:
        await trail.writes()
        samples = []
        async with machine.database.acquire() as session:
            seen = await session.prepare(
                f"SELECT count(*) FROM {trail.table} WHERE primary_key = $1"
            )
            for number in range(IDLE_COMMITS):
                await session.execute(_ROWS.format(first=number, last=number))
                began = time.monotonic()
                while not await seen.fetchval(str(number)):
                    assert time.monotonic() - began < TIMEOUT_S
                samples.append((time.monotonic() - began) * 1000)
    return [
        within(
            "audit, commit to row, idle, p50",
            statistics.median(samples),
            "ms",
            ZEMI_MS,
            "Zemi elsewhere",
            5.0,
        )
    ]


async def _huge(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """One transaction of them all: memory in the second half of its way, compared with the first."""
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in SERVICES}
    async with _line(machine, "huge", environment) as trail:
        await trail.writes()
        pids = await trail.pids(*SERVICES)

        async def look() -> None:
            began = time.monotonic()
            while True:
                for name in SERVICES:
                    series[name].append(
                        (round(time.monotonic() - began, 1), round(rss_mib(pids[name]), 1))
                    )
                await asyncio.sleep(_LOOK_S)

        before = {one: cpu_s(pid) for one, pid in pids.items()}
        await machine.database.execute(_ROWS.format(first=1, last=rows))
        looking = asyncio.create_task(look(), name="memory")
        began = time.monotonic()
        await trail.reaches(rows)
        seconds = time.monotonic() - began
        looking.cancel()
        cpu = {one: (cpu_s(pid) - before[one]) / rows * 1e6 for one, pid in pids.items()}
        peaks = {name: rss_max_mib(pids[name]) for name in SERVICES}
    title = f"audit, one transaction of {rows:,} rows"
    grown = [_half(title, name, series[name]) for name in SERVICES]
    return [
        Figure(title, rows / seconds, "changes/s", cpu_us=cpu, rss_mib=peaks, rss_series=series),
        *grown,
    ]


def _half(title: str, name: str, samples: list[tuple[float, float]]) -> Figure:
    middle = len(samples) // 2
    first, second = (
        max(value for _, value in part) for part in (samples[:middle], samples[middle:])
    )
    return within(f"{title}: {name}, second half", second, "MiB", first, "first half", 1.1)


async def _delivered(machine: Machine, rows: int) -> None:
    """Wait until the stream holds them all."""
    client = await nats.connect(machine.nats.url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                with contextlib.suppress(NotFoundError):
                    info = await client.jetstream().stream_info(
                        "CDC", subjects_filter=f"cdc.{TABLE}.insert"
                    )
                    if sum((info.state.subjects or {}).values()) >= rows:
                        return
                await asyncio.sleep(_LOOK_S)
    finally:
        await client.close()
