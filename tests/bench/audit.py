"""How fast the audit-writer writes a backlog: `python -m tests.bench.audit`, with its processor time for each change.

Three backlogs lie in the stream before it starts: single-row transactions (autocommit inserts), transactions of 1,000
rows, and one transaction of them all, for which its memory is told too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from dataclasses import dataclass

from tests.bench.machine import Machine, cpu_s, machine, rss_max_mib

from headrace.testing.suite import Suite

TABLE = "audited"
TIMEOUT_S = 540.0
_SETUP = f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, n int, name text, amount numeric, at timestamptz)"
_ROWS = f"""
INSERT INTO {TABLE}
SELECT g, g % 1000, 'name of row ' || g, g * 1.25, timestamptz '2026-01-01' + g * interval '1 second'
FROM generate_series({{first}}, {{last}}) g
"""
_EACH = f"""
DO $$ BEGIN FOR g IN {{first}}..{{last}} LOOP
    INSERT INTO {TABLE} VALUES (g, g % 1000, 'name of row ' || g, g * 1.25, now()); COMMIT;
END LOOP; END $$
"""


@dataclass(frozen=True)
class Written:
    """One backlog, written."""

    name: str
    rows: int
    seconds: float
    writer_us: float
    rss_mib: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows / self.seconds:,.0f} changes/s by the clock, {self.writer_us:.1f} µs of the "
            f"writer's processor time each ({1e6 / self.writer_us:,.0f}/s on a core of its own), "
            f"{self.rss_mib:.0f} MiB at most"
        )


async def _written(name: str, servers: Machine, rows: int, statements: list[str]) -> Written:
    """Fill the stream, then let the audit-writer empty it."""
    database = servers.database
    await database.execute(f"DROP TABLE IF EXISTS {TABLE}; {_SETUP}")
    await database.execute("DROP PUBLICATION IF EXISTS audited")
    await database.execute(f"CREATE PUBLICATION audited FOR TABLE {TABLE}")
    slot = f"audited_{name}"
    environment = servers.environment(slot, HEADRACE_PUB="audited", HEADRACE_AUDIT_TABLE=f"changes_{name}")
    folder = servers.folder / slot
    folder.mkdir()
    async with Suite(environment, folder) as suite:
        await suite.logged("publisher", "epoch_joined", 60)
        for statement in statements:
            await database.execute(statement)
        await _delivered(suite, servers, rows)
        began = time.monotonic()
        await suite.start("audit-writer")
        await suite.logged("audit-writer", "audit_follows", 60)
        pid = suite.pid("audit-writer")
        before = cpu_s(pid)
        while (await database.fetchval(f"SELECT count(*) FROM changes_{name}")) < rows:
            assert time.monotonic() - began < TIMEOUT_S, suite.log("audit-writer")[-2000:]
            await asyncio.sleep(0.5)
        seconds = time.monotonic() - began
        writer_us = (cpu_s(pid) - before) / rows * 1e6
        peak = rss_max_mib(pid)
        for service in ("audit-writer", "wal-reader", "publisher"):
            await suite.stop(service)
    await servers.drop_slot(slot)
    return Written(name, rows, seconds, writer_us, peak)


async def _delivered(suite: Suite, servers: Machine, rows: int) -> None:
    """Wait until the stream holds them all."""
    import nats

    client = await nats.connect(servers.nats.url)
    first = -1
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                info = await client.jetstream().stream_info("CDC", subjects_filter=f"cdc.{TABLE}.insert")
                held = sum((info.state.subjects or {}).values())
                if held >= rows and held != first:
                    return
                await asyncio.sleep(0.2)
    finally:
        await client.close()


async def measure(rows: int) -> list[Written]:
    """All three, each on servers of its own so that no stream holds another's."""
    batches = [_ROWS.format(first=first, last=min(first + 999, rows)) for first in range(1, rows + 1, 1000)]
    found = []
    for name, statements in (
        ("single", [_EACH.format(first=1, last=rows)]),
        ("thousands", batches),
        ("huge", [_ROWS.format(first=1, last=rows)]),
    ):
        async with machine() as servers:
            found.append(await _written(name, servers, rows, statements))
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    asyncio.run(measure(arguments.rows))


if __name__ == "__main__":
    main()
