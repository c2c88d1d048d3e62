"""`/standbyz` tells a standby that could take over from a process that could not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.plugin import OwnNats
from headrace.testing.process import ServiceProcess, service
from headrace.testing.suite import Suite

TIMEOUT_S = 60.0
pytestmark = pytest.mark.slow


async def test_a_standby_passes_its_probe_only_if_it_could_take_over(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR TABLE t"
    )
    settings = {**SETTINGS, **database.environment((await own_nats()).url)}
    settings |= {"HEADRACE_SLOT": f"slot_{database.name}", "HEADRACE_HTTP_PORT": "0"}
    async with Suite(settings, tmp_path) as active:
        await active.logged("publisher", "epoch_joined")
        for name in ("wal-reader", "publisher"):
            async with service(settings, name) as standby:
                await answers(standby, 200, "standing by")
                assert (await standby.get("/readyz"))[0] == 503
        stranger = {**settings, "POSTGRES_BRIDGE_USER": "stranger"}
        async with service(stranger, "publisher") as broken:
            await answers(broken, 503, "could not take over")
            assert "stranger" in (await broken.get("/standbyz"))[1]


async def answers(process: ServiceProcess, status: int, reason: str) -> None:
    """Wait for the probe's answer; it never has this reason with another status."""
    async with asyncio.timeout(TIMEOUT_S):
        while reason not in (answer := await process.get("/standbyz"))[1]:  # noqa: ASYNC110  # a port gives no event
            await asyncio.sleep(0.1)
    assert answer[0] == status
