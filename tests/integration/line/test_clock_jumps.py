"""Wall clocks that jump by an hour, or run ten times too fast, lose and duplicate nothing.

Only one process sees its moved clock; PostgreSQL's record, through a second slot, shows what was
committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from headrace.testing.clock import can_move_clocks, move_clock
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Oracle, Stored, stored
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite
from tests.support.own_source import KEYS_ONLY, OwnSource

pytestmark = pytest.mark.skipif(
    not can_move_clocks(),
    reason="clocks can't be moved: that needs x86-64 Linux and the right to trace",
)

HOUR_S = 3600
WAIT_S = 60.0
CLOCK = "import time\nwhile True: print(int(time.time()), time.monotonic(), flush=True); time.sleep(0.05)"


def test_a_moved_clock_is_believed_by_its_process_alone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", CLOCK], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        # Before its first line it may still be this interpreter's copy, about to be replaced.
        process.stdout.readline()
        for offset_s in (0, HOUR_S, -HOUR_S, 0):
            move_clock(process.pid, offset_s)
            moved_at, monotonic = time.monotonic(), "0"
            while float(monotonic) <= moved_at:
                wall, monotonic = process.stdout.readline().split()
            assert abs(int(wall) - offset_s - time.time()) < 30
            assert abs(float(monotonic) - time.monotonic()) < 30
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_clocks_that_jump_and_drift_under_load_cost_no_process_and_double_nothing(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database, server = await own_source(KEYS_ONLY), await own_nats()
    oracle = await Oracle.begun(database)
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    async with Suite(environment, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        writer = Writer(database)
        writing = asyncio.create_task(writer.run(), name="writer")
        pids = {service: suite.pid(service) for service in ("wal-reader", "publisher")} | {
            "nats-server": server.pid
        }
        for pid in pids.values():
            for offset_s in (HOUR_S, -HOUR_S, 0):
                move_clock(pid, offset_s)
                await writer.some_more()
        for step in range(15):
            for pid in pids.values():
                move_clock(pid, step)
            await asyncio.sleep(0.1)
        # Those that come next find their clocks an hour behind what their predecessors and the
        # server believed.
        for pid in pids.values():
            move_clock(pid, HOUR_S)
        await writer.some_more()
        assert suite.running("wal-reader")
        assert suite.running("publisher")
        for service in ("publisher", "wal-reader"):
            await suite.kill(service)
            await suite.start(service)
            await writer.some_more()
        await server.restart()
        await writer.some_more()
        writer.enough.set()
        await writing
        found = await _delivered(server.url, writer.rows)
        assert [event.change for event in found] == await oracle.changes()
        assert "service_crashed" not in suite.log("publisher") + suite.log("wal-reader")


class Writer:
    """A hundred rows at a time, until it is stopped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rows = 0
        self.enough = asyncio.Event()

    async def run(self) -> None:
        while not self.enough.is_set():
            first, self.rows = self.rows, self.rows + 100
            await self._database.execute(
                "INSERT INTO t SELECT generate_series($1::int, $2::int)", first, first + 99
            )
            await asyncio.sleep(0.01)

    async def some_more(self) -> None:
        until = self.rows + 500
        async with asyncio.timeout(WAIT_S):
            while self.rows < until:  # noqa: ASYNC110  # the rows are what counts
                await asyncio.sleep(0.01)


async def _delivered(url: str, count: int) -> list[Stored]:
    found: list[Stored] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            with contextlib.suppress(NatsError, OSError):
                found = [
                    event for event in await stored(url) if event.payload["operation"] == "INSERT"
                ]
            await asyncio.sleep(0.2)
    return found
