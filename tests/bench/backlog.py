"""How fast a backlog of single-row inserts is drained, in each way of delivery, held against
pg_recvlogical.
"""

from __future__ import annotations

from dataclasses import replace

from tests.bench import draining
from tests.bench.draining import Backlog
from tests.bench.machine import Machine
from tests.bench.result import Figure, against

TARGETS = {"event": 0.65, "batch": 0.85, "transaction": 0.45}
ROWS_PER_TRANSACTION = 1000
_TABLE = "bench_rows"
_SETUP = f"CREATE TABLE {_TABLE} (id bigint PRIMARY KEY, n int, name text, amount numeric, at timestamptz)"
_INSERT = f"""
INSERT INTO {_TABLE}
SELECT g, g % 1000, 'name of row ' || g, g * 1.25, timestamptz '2026-01-01' + g * interval '1 second'
FROM generate_series($1::bigint, $2::bigint) g
"""


async def make(machine: Machine, rows: int) -> Backlog:
    """Write the backlog behind a slot."""
    await draining.prepare(machine, "rows", _SETUP, _TABLE)
    for first in range(1, rows + 1, ROWS_PER_TRANSACTION):
        await machine.database.execute(_INSERT, first, first + ROWS_PER_TRANSACTION - 1)
    return await draining.ended(machine, "rows", rows)


async def measure(
    machine: Machine, rows: int, modes: list[str], environment: dict[str, str]
) -> list[Figure]:
    """A figure for each way of delivery."""
    backlog = await make(machine, rows)
    # A first reading warms the page cache for everyone.
    await draining.limit_s(machine, backlog)
    before = await draining.limit_s(machine, backlog)
    figures = []
    for mode in modes:
        (drained,) = await draining.drain(machine, [backlog], mode, environment)
        after = await draining.limit_s(machine, backlog)
        limit_s, before = (before + after) / 2, after
        speed = backlog.events / drained.seconds
        made = against(
            f"drain, {mode}",
            speed,
            "events/s",
            backlog.events / limit_s,
            "pg_recvlogical",
            TARGETS[mode],
        )
        figures.append(
            replace(
                made,
                cpu_us=drained.cpu_us,
                rss_mib=drained.rss_max_mib,
                rss_series=drained.rss_series,
            )
        )
    await draining.forget(machine, backlog)
    return figures
