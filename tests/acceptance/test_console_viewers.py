"""Eight viewers of one console: each counts every event, all of them share one consumer, and the
console's memory stays small. HEADRACE_CONSOLE_SECONDS is the length of the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from headrace.testing.line import Line
from headrace.testing.servers import SessionServers
from tests.support.console_api import Console, frames_of, running_console
from tests.support.console_line import described_line

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
VIEWERS = 8
RATE = 5_000
MEMORY_MAX = 150 << 20
WAIT_S = 120


@dataclass
class World:
    line: Line
    console: Console

    @property
    def memory(self) -> int:
        """The memory of the console's process now."""
        status = Path(f"/proc/{self.line.suite.pid('console')}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@dataclass
class Viewer:
    """Counts as a tab does."""

    shown: int = 0
    not_shown: int = 0
    missed: int = 0
    following: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, console: Console) -> None:
        url = f"{console.base}/api/v1/live?topics=events&table=watched&op=INSERT"
        async with console.http.get(url) as answer:
            async for name, body in frames_of(answer):
                if name == "events":
                    self.following.set()
                    self.shown += int(body["shown"])
                    self.not_shown += int(body["not_shown"])
                    self.missed += int(body["missed"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with described_line(session_servers, tmp_path_factory.mktemp("line")) as line:
        await line.execute("CREATE TABLE watched (id bigserial PRIMARY KEY, body text)")
        async with running_console(line.suite) as console:
            yield World(line, console)


@contextlib.asynccontextmanager
async def viewers(world: World, number: int) -> AsyncIterator[list[Viewer]]:
    """Tabs that get events."""
    found = [Viewer() for _ in range(number)]
    tasks = [asyncio.create_task(one.follow(world.console)) for one in found]
    try:
        async with asyncio.timeout(WAIT_S):
            while not all(one.following.is_set() for one in found):
                await world.line.execute("UPDATE line_marker SET n = 0")
                await asyncio.sleep(0.2)
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def insert(world: World, rows: int) -> None:
    await world.line.execute(
        f"INSERT INTO watched (body) SELECT repeat('x', 100) FROM generate_series(1, {rows})"
    )


async def test_eight_viewers_count_every_event_over_one_consumer(world: World) -> None:
    seconds = float(os.environ.get("HEADRACE_CONSOLE_SECONDS", "4"))
    written = 0
    async with viewers(world, VIEWERS) as found:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            await insert(world, RATE // 10)
            written += RATE // 10
            await asyncio.sleep(max(0.0, written / RATE - (time.monotonic() - began)))
        async with asyncio.timeout(WAIT_S):
            while any(one.shown + one.not_shown < written for one in found):  # noqa: ASYNC110  # a tab gives no event
                await asyncio.sleep(0.1)
        counts = {(one.shown + one.not_shown, one.missed) for one in found}
        used = world.memory
        client = await nats.connect(world.line.nats_url)
        try:
            names = [one.name for one in await client.jetstream().consumers_info("CDC")]
        finally:
            await client.close()
    print(f"{written} events, {VIEWERS} viewers: the console uses {used >> 20} MiB")
    assert counts == {(written, 0)}
    # The others are the test's own.
    assert len([name for name in names if re.fullmatch(r"[0-9a-f]{22}", name)]) == 1, names
    assert used <= MEMORY_MAX
