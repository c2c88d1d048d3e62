"""Several slots as several suites, into one stream: one alone, and two at the same time."""

from __future__ import annotations

from dataclasses import replace

from tests.bench import draining
from tests.bench.draining import Backlog
from tests.bench.machine import Machine
from tests.bench.result import Figure, beside

_ROWS_PER_TRANSACTION = 1000


async def measure(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """Events a second of two suites together, beside one suite alone."""
    backlogs = [await _make(machine, f"suite{number}", rows // 2) for number in (1, 2)]
    (alone,) = await draining.drain(machine, backlogs[:1], "event", environment)
    both = await draining.drain(machine, backlogs, "event", environment)
    for backlog in backlogs:
        await draining.forget(machine, backlog)
    speed = sum(backlog.events for backlog in backlogs) / max(one.seconds for one in both)
    made = beside("two suites at once", speed, "events/s", backlogs[0].events / alone.seconds, "one suite")
    return [replace(made, cpu_us=both[0].cpu_us, rss_mib=both[0].rss_max_mib)]


async def _make(machine: Machine, name: str, rows: int) -> Backlog:
    table = f"bench_{name}"
    await draining.prepare(machine, name, f"CREATE TABLE {table} (id bigint PRIMARY KEY, n int, name text)", table)
    await machine.database.execute(
        f"DO $do$ BEGIN FOR i IN 1..{rows} BY {_ROWS_PER_TRANSACTION} LOOP INSERT INTO {table} "
        f"SELECT g, g % 10, 'name ' || g FROM generate_series(i, i + {_ROWS_PER_TRANSACTION} - 1) g; "
        "COMMIT; END LOOP; END $do$"
    )
    return await draining.ended(machine, name, rows)
