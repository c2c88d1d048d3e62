"""How long the services take from exec to ready."""

from __future__ import annotations

import asyncio
import time

from headrace.testing.process import ServiceProcess, service
from tests.bench.machine import Machine, rss_max_mib
from tests.bench.result import Figure, plain

READY_S_MAX = 1.5
SLOT = "bench_start"


async def measure(machine: Machine, environment: dict[str, str]) -> list[Figure]:
    """Both halves of the line started at the same time, as an operator starts them."""
    await machine.database.execute(
        "DROP PUBLICATION IF EXISTS bench; CREATE PUBLICATION bench FOR ALL TABLES"
    )
    settings = machine.environment(SLOT, **environment)
    began = time.monotonic()
    async with (
        service(settings, "publisher") as publisher,
        service(settings, "wal-reader") as reader,
    ):
        ready = await asyncio.gather(_ready(publisher, began), _ready(reader, began))
        rss = {"publisher": rss_max_mib(publisher.pid), "wal-reader": rss_max_mib(reader.pid)}
        await reader.stop()
        await publisher.stop()
    await machine.drop_slot(SLOT)
    figures = [
        plain(f"start, {name}", seconds, "s", READY_S_MAX)
        for name, seconds in zip(rss, ready, strict=True)
    ]
    return [*figures, *(plain(f"idle, {name}", mib, "MiB", 64) for name, mib in rss.items())]


async def _ready(running: ServiceProcess, began: float) -> float:
    await running.readiness(200)
    return time.monotonic() - began
