"""Measures whether any process grows while a large table is copied: its memory in the first and in
the second half.

It is a separate part (`--parts snapshot-memory`), because ten million rows take a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from pathlib import Path

import nats

from headrace.testing.responder import child_pids
from headrace.testing.suite import Suite
from tests.bench.machine import PUBLICATION, Machine, spark_kind
from tests.bench.result import Figure, plain, within
from tests.bench.snapshot import COLUMNS, ROWS, await_snapshot

SLOT = "bench_memory"
GROWTH_MOST = 1.15
_TABLE = "bench_large"
_TIMEOUT_S = 3600
_SAMPLE_S = 0.5
_INSERT = 1_000_000


async def measure(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """The most memory of each kind of process, the second half against the first."""
    await _fill(machine, rows)
    folder = machine.folder / "snapshot-memory"
    folder.mkdir()
    async with Suite(
        machine.environment(SLOT, **environment), folder, ["snapshot-responder"]
    ) as suite:
        client = await nats.connect(machine.nats.url)
        pids = {
            "snapshot-responder": suite.pid("snapshot-responder"),
            "nats-server": machine.nats.pid,
        }
        samples: list[dict[str, float]] = []
        sampling = asyncio.create_task(_sample(pids, samples), name="bench-samples")
        seconds = await await_snapshot(client, _TABLE, rows, _TIMEOUT_S)
        sampling.cancel()
        await client.close()
        await suite.stop("snapshot-responder")
    await machine.database.execute(f"DROP TABLE {_TABLE}")
    return [plain(f"snapshot of {rows:,} rows", rows / seconds, "rows/s"), *_figures(samples)]


async def _fill(machine: Machine, rows: int) -> None:
    await machine.database.execute(f"CREATE TABLE {_TABLE} ({COLUMNS})")
    for first in range(0, rows, _INSERT):
        last = min(first + _INSERT, rows)
        await machine.database.execute(
            f"INSERT INTO {_TABLE} {ROWS.format(first=first + 1, last=last)}"
        )
    await machine.database.execute(f"VACUUM ANALYZE {_TABLE}")
    await machine.database.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")
    await machine.database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {_TABLE}")


async def _sample(pids: dict[str, int], samples: list[dict[str, float]]) -> None:
    while True:
        found: dict[str, float] = defaultdict(float)
        for name, pid in pids.items():
            found[name] = _anonymous_mib(pid)
        for pid in child_pids(pids["snapshot-responder"]):
            name = spark_kind(pid)
            found[name] = max(found[name], _anonymous_mib(pid))
        samples.append(dict(found))
        await asyncio.sleep(_SAMPLE_S)


def _anonymous_mib(pid: int) -> float:
    """The memory of the process besides files that it maps, which the kernel may drop."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _figures(samples: list[dict[str, float]]) -> list[Figure]:
    """From when workers run: before that everything grows."""
    working = [sample for sample in samples if sample.get("a Spark worker", 0) > 0]
    # A process that starts does not have its final size yet.
    working = working[len(working) // 10 :]
    half = len(working) // 2
    names = sorted({name for sample in working for name in sample} - {"others"})
    return [
        within(
            f"{name}, second half",
            max(sample.get(name, 0.0) for sample in working[half:]),
            "MiB",
            max(sample.get(name, 0.0) for sample in working[:half]),
            "first half",
            GROWTH_MOST,
        )
        for name in names
    ]
