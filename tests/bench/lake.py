"""Measures the lake: a backlog, changes of a large table, one huge transaction, the time from a
commit to a foreign reader, and memory; with each engine.

The lake-writer reads the archive through a folder of links. A step's files are archived first and
linked together, so only the lake is at work while it is measured, with a session that runs already.
A foreign reader (the catalog's rows, and DuckDB) says when a cut shows the step. The limits are in
`lake_limits`.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

from headrace.archive import WalReader
from headrace.testing.suite import Suite
from tests.bench import lake_limits
from tests.bench.lake_limits import Limits
from tests.bench.machine import Family, Machine
from tests.bench.result import Figure, against, plain, within
from tests.oracle.lake import ForeignLake
from tests.support.linked_archive import LinkedArchive

TABLE = "measured"
SLOT = "lake"
ENGINES = ("inline", "spark")
LINE = ("wal-reader", "publisher", "archiver")
SERVICE = "lake-writer"
TIMEOUT_S = 900.0
# The session of Spark starts with them, and its first job is slower than others.
WARM_ROWS = 60_000
CHANGES = (100, 10_000, 100_000)
MEMORY_MIB = 400
LIVE_TRANSACTIONS_PER_S = 100
_SETUP = f"""
CREATE TABLE {TABLE} (id bigint PRIMARY KEY, n int, name text, amount numeric(12,2), at timestamptz);
CREATE TABLE seen (id int PRIMARY KEY, number bigint);
INSERT INTO seen VALUES (1, 0);
"""
ROWS = f"""
INSERT INTO {TABLE} SELECT g, g % 1000, 'name of row ' || g, g * 1.25,
    timestamptz '2026-01-01' + g * interval '1 second' FROM generate_series({{first}}, {{last}}) g
"""
_LIVE = f"""
INSERT INTO {TABLE} SELECT $1::bigint * 10 + g, g, 'live row ' || g, g, now() FROM generate_series(1, 4) g;
"""
_LIVE_UPDATE = f"UPDATE {TABLE} SET n = n + 1 WHERE id = ANY($1::bigint[])"
_LOOK_S = 0.02


async def measure(
    machine: Machine, rows: int, seconds: float, environment: dict[str, str]
) -> list[Figure]:
    """Both engines, each with its own lake; `seconds` for the time from commit to reader."""
    figures = []
    for engine in ENGINES:
        figures += await _engine(machine, engine, rows, seconds, environment)
    return [*figures, *await asyncio.to_thread(lake_limits.scans, machine.folder, rows)]


@dataclass(slots=True)
class _Line:
    """A source, its archive, and a lake of which the lake-writer sees what is linked."""

    machine: Machine
    suite: Suite
    engine: str
    links: LinkedArchive
    lake: ForeignLake
    settings: dict[str, str]

    @property
    def name(self) -> str:
        """As figures have it."""
        return f"lake, {self.engine}"

    async def start(self, **settings: str) -> None:
        """Start the lake-writer, and wait for a cut."""
        await self.suite.start(SERVICE, **self.settings, **settings)
        await self.shows(0)

    async def lsn(self) -> int:
        """The end of the source's log."""
        emitted = "SELECT pg_logical_emit_message(true, 'bench', '') - '0/0'"
        return int(await self.machine.database.fetchval(emitted))

    async def archived(self) -> int:
        """Wait until the archive has everything; the LSN."""
        lsn = await self.lsn()
        url = f"file://{self.links.archive}"
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                files = await asyncio.to_thread(lambda: list(WalReader(url).files()))
                if files and files[-1].info.end_lsn >= lsn:
                    return lsn
                await asyncio.sleep(0.2)

    async def shows(self, lsn: int) -> None:
        """Wait for a cut at this LSN or later."""
        async with asyncio.timeout(TIMEOUT_S):
            while (cut := self.lake.cut()) is None or cut.lsn < lsn:
                assert self.suite.running(SERVICE), self.suite.log(SERVICE)[-3000:]
                if not lsn:
                    self.links.link()
                await asyncio.sleep(_LOOK_S)

    async def run(self, *statements: str) -> _Step:
        """The lake's part of statements, once they are archived."""
        for statement in statements:
            await self.machine.database.execute(statement)
        lsn = await self.archived()
        family = Family(self.suite.pid(SERVICE), SERVICE)
        family.forget()
        began = time.monotonic()
        self.links.link()
        await self.shows(lsn)
        seconds = time.monotonic() - began
        return _Step(seconds, family.cpu_s(), family.rss_max_mib())


@dataclass(frozen=True, slots=True)
class _Step:
    """The cost of a step."""

    seconds: float
    cpu_s: dict[str, float]
    rss_mib: dict[str, float]

    def costs(self, figure: Figure, rows: int, **others: float) -> Figure:
        """A figure with the processor time for each row, also that of others."""
        spent = {**self.cpu_s, **others}
        cpu = {name: seconds / rows * 1e6 for name, seconds in spent.items()}
        return replace(figure, cpu_us=cpu, rss_mib=self.rss_mib)


@contextlib.asynccontextmanager
async def _line(machine: Machine, engine: str, more: dict[str, str]) -> AsyncIterator[_Line]:
    database, slot = machine.database, f"{SLOT}_{engine}"
    await database.execute(f"DROP TABLE IF EXISTS {TABLE}, seen; {_SETUP}")
    await database.execute(f"DROP PUBLICATION IF EXISTS {SLOT}")
    await database.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE {TABLE}, seen")
    folder = machine.folder / slot
    folder.mkdir()
    links = LinkedArchive(folder / "archive", folder / "linked")
    links.link()
    lake = folder / "lake"
    settings = {
        "HEADRACE_PUB": SLOT,
        "HEADRACE_ARCHIVE_URL": f"file://{links.archive}",
        "HEADRACE_ARCHIVE_REQUIRED": "true",
        "HEADRACE_CDC_BYTES_MAX": str(1 << 34),
        "HEADRACE_LAKE_URL": f"file://{lake}",
        "HEADRACE_LAKE_ENGINE": engine,
        "HEADRACE_SPARK_IDLE_S": "3600",
        **more,
    }
    seen = {"HEADRACE_ARCHIVE_URL": links.url}
    async with Suite(machine.environment(slot, **settings), folder, LINE) as suite:
        await suite.logged("publisher", "epoch_joined", 60)
        yield _Line(machine, suite, engine, links, ForeignLake(lake), seen)
    await machine.drop_slot(slot)


async def _engine(
    machine: Machine, engine: str, rows: int, seconds: float, environment: dict[str, str]
) -> list[Figure]:
    async with _line(machine, engine, environment) as line:
        await line.start()
        await line.run(ROWS.format(first=1, last=WARM_ROWS), f"UPDATE {TABLE} SET n = 0")
        await line.run(f"TRUNCATE {TABLE}")
        backlog = await line.run(*_thousands(rows))
        steps = {}
        for count in CHANGES:
            share = max(1, rows // count)
            where = f"id % {share} = 0 AND id <= {count * share}"
            steps[count] = await line.run(f"UPDATE {TABLE} SET n = n + 1 WHERE {where}")
        huge = await line.run(f"UPDATE {TABLE} SET n = n + 1 WHERE id <= {rows}")
        more = await line.run(ROWS.format(first=rows + 1, last=2 * rows))
        await line.suite.stop(SERVICE, 60)
        figures = await _live(line, rows, seconds)
        await line.suite.stop(SERVICE, 60)
        for service in LINE:
            await line.suite.stop(service)
        limits = await asyncio.to_thread(
            lake_limits.measure, line.lake, machine.folder, rows, CHANGES
        )
    return [
        _backlog(line, backlog, rows, limits),
        *_changes(line, steps, rows, limits),
        *_huge(line, rows, {"updates": huge, "insertions": more}),
        _memory(line, [backlog, *steps.values(), huge, more]),
        *figures,
    ]


def _backlog(line: _Line, step: _Step, rows: int, limits: Limits) -> Figure:
    alone = limits.write
    figure = against(
        f"{line.name}: backlog of insertions",
        rows / step.seconds,
        "rows/s",
        limits.rows / alone.seconds,
        "pyarrow, rows in memory",
        0.4,
    )
    return step.costs(figure, rows, pyarrow=alone.cpu_s / limits.rows * rows)


def _changes(line: _Line, steps: dict[int, _Step], rows: int, limits: Limits) -> Iterator[Figure]:
    others = {"PyIceberg overwrite": (limits.overwrite, 0.5)}
    if limits.ducklake is not None:
        others["DuckLake"] = limits.ducklake, 1.0
    for count, step in steps.items():
        for name, (costs, most) in others.items():
            title = f"{line.name}: {count:,} of {rows:,} rows changed"
            figure = within(title, step.seconds, "s", costs[count].seconds, name, most)
            yield step.costs(figure, count, **{name: costs[count].cpu_s})


def _huge(line: _Line, rows: int, steps: dict[str, _Step]) -> Iterator[Figure]:
    for title, step in steps.items():
        name = f"{line.name}: one transaction of {rows:,} {title}"
        yield step.costs(plain(name, rows / step.seconds, "rows/s"), rows)


def _memory(line: _Line, steps: list[_Step]) -> Figure:
    peak = max(step.rss_mib[SERVICE] for step in steps)
    return plain(f"{line.name}: peak memory of the lake-writer", peak, "MiB", MEMORY_MIB)


def _thousands(rows: int) -> list[str]:
    return [
        ROWS.format(first=first, last=min(first + 999, rows)) for first in range(1, rows + 1, 1000)
    ]


async def _live(line: _Line, rows: int, seconds: float) -> list[Figure]:
    """1,000 changes a second through the whole line, with the settings that it has by default."""
    await line.suite.start(SERVICE)
    await line.suite.logged(SERVICE, "event=lease_acquired")
    await line.shows(await line.lsn())
    # The first job of Spark's session is slower than others.
    await _load(line, rows, 10, 3 * rows)
    await line.shows(await line.lsn())
    families = [Family(line.suite.pid(name), name) for name in (*LINE, SERVICE)]
    for family in families:
        family.forget()
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read(line, last), name="bench-reader")
    committed = await _load(line, rows, seconds, 4 * rows)
    last.set_result(max(committed))
    delays = sorted(_delays(committed, await asyncio.wait_for(reading, TIMEOUT_S)))
    changes = len(committed) * 10
    cpu = {
        kind: seconds / changes * 1e6
        for family in families
        for kind, seconds in family.cpu_s().items()
    }
    median = statistics.median(delays)
    late = delays[int(len(delays) * 0.99)]
    name = f"{line.name}: commit to reader"
    first = plain(f"{name}, {changes / seconds:,.0f} changes/s, p50", median, "s", 2.5)
    rss = families[-1].rss_max_mib()
    return [replace(first, cpu_us=cpu, rss_mib=rss), plain(f"{name}, p99", late, "s", 5.0)]


async def _load(line: _Line, rows: int, seconds: float, start: int) -> dict[int, float]:
    """Commit transactions of ten changes in time; the time of each one's commit by its number."""
    committed: dict[int, float] = {}
    began = time.monotonic()
    async with line.machine.database.acquire() as session:
        number = start
        while (now := time.monotonic()) - began < seconds:
            due = began + (number - start) / LIVE_TRANSACTIONS_PER_S
            if due > now:
                await asyncio.sleep(due - now)
            number += 1
            async with session.transaction():
                await session.execute(_LIVE, number)
                ids = [(number * 7919 + each * 104_729) % rows + 1 for each in range(5)]
                await session.execute(_LIVE_UPDATE, ids)
                await session.execute("UPDATE seen SET number = $1 WHERE id = 1", number)
            committed[number] = time.monotonic()
    return committed


async def _read(line: _Line, last: asyncio.Future[int]) -> list[tuple[float, int]]:
    """The numbers that a foreign reader sees, and when, until it sees the last one."""
    found: list[tuple[float, int]] = []
    location = ""
    while not last.done() or not found or found[-1][1] < last.result():
        current = await asyncio.to_thread(lambda: line.lake.locations()["public.seen"])
        if current != location:
            location = current
            rows = await asyncio.to_thread(line.lake.rows, "public.seen", "number", location)
            found.append((time.monotonic(), rows[0][0]))
        await asyncio.sleep(_LOOK_S)
    return found


def _delays(committed: dict[int, float], seen: list[tuple[float, int]]) -> list[float]:
    """From each commit to the first reading that shows it or a later one."""
    delays = []
    readings = iter(seen)
    at, number = next(readings)
    for wanted, since in sorted(committed.items()):
        while number < wanted:
            at, number = next(readings)
        delays.append(at - since)
    return delays
