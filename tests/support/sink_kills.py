"""A line with one sink whose process is killed at failpoints, while rows are written."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.embedded.process import tied
from headrace.testing.database import Database
from headrace.testing.oracle import Change, Oracle
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import HEADRACE, Suite
from tests.support.exactly_once import environment, prepare, write

# `./taskw test:sinks` kills more often.
KILLS = int(os.environ.get("HEADRACE_SINK_KILLS", "6"))
ROWS = 4000
# A session that starts, reads and reaches its failpoint.
KILL_TIMEOUT_S = 90.0
SETTLE_TIMEOUT_S = 180.0
# Around a sink's calls. Targets have more within them.
POINTS = ("sink.before_write", "sink.written", "sink.before_commit", "sink.committed")


@dataclass
class SinkLine:
    """PostgreSQL, NATS, and the services between them, which a test has for itself."""

    database: Database
    oracle: Oracle
    environment: dict[str, str]
    folder: Path
    _runs: int = field(default=0)

    @contextlib.asynccontextmanager
    async def sink(
        self, plan: dict[str, Any], failpoint: str = ""
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run `headrace sink`; killed at the end of the block. The keys of `plan` are those of
        headrace.toml; its `environment` has the secrets.
        """
        self._runs += 1
        config = self.folder / "headrace.toml"
        config.write_text(_toml(plan))
        own = {"HEADRACE_FAILPOINT": failpoint} if failpoint else {}
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PG", "HEADRACE_", "NATS"))
        }
        log = self.folder / f"sink-{self._runs}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *tied([HEADRACE, "sink", plan["name"], "--config", config], signal.SIGKILL),
                env={
                    **inherited,
                    **self.environment,
                    "HEADRACE_HTTP_PORT": "0",
                    **plan.get("environment", {}),
                    **own,
                },
                stdout=output,
                stderr=output,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def output(self) -> str:
        """The output of the last sink's process."""
        return (self.folder / f"sink-{self._runs}.log").read_text()

    async def killed(
        self, plan: dict[str, Any], points: Sequence[str], seed: int, once: Sequence[str] = ()
    ) -> None:
        """Run the sink until it is killed at a failpoint, `KILLS` times: at each of `once`, which
        it does not reach again, then at the others in turn.
        """
        chance = random.Random(seed)
        in_turn = itertools.chain(once, itertools.cycle(points))
        for name in itertools.islice(in_turn, max(KILLS, len(once) + len(points))):
            point = f"{name}:{chance.randint(1, 4)}"
            async with self.sink(plan, point) as process:
                try:
                    async with asyncio.timeout(KILL_TIMEOUT_S):
                        code = await process.wait()
                except TimeoutError:
                    pytest.fail(f"{point} was not reached: {self.output()}")
            assert code == -signal.SIGKILL, f"{point}: {self.output()}"

    async def delivered_after_kills(
        self,
        plan: dict[str, Any],
        points: Sequence[str],
        count: Callable[[], Awaitable[int]],
        seed: int = 7,
    ) -> list[Change]:
        """Write rows, kill the sink at each point meanwhile, then let it deliver the rest; `count`
        returns how many changes the target has. Returns what PostgreSQL committed.
        """
        await self.killed_while_writing(plan, points, seed)
        return await self.delivered(plan, count)

    async def killed_while_writing(
        self,
        plan: dict[str, Any],
        points: Sequence[str],
        seed: int = 7,
        once: Sequence[str] = (),
    ) -> None:
        """Write rows, and kill the sink at each point meanwhile."""
        enough = asyncio.Event()
        server = self.database.server
        rows = write(server, ROWS, seed, first_id=100_000, enough=enough)
        writer = asyncio.create_task(rows, name="writer")
        try:
            await self.killed(plan, points, seed, once)
        finally:
            enough.set()
            await writer

    async def delivered(
        self, plan: dict[str, Any], count: Callable[[], Awaitable[int]]
    ) -> list[Change]:
        """Let the sink deliver everything; returns what PostgreSQL committed."""
        committed = await self.oracle.changes()
        async with self.sink(plan):
            try:
                async with asyncio.timeout(SETTLE_TIMEOUT_S):
                    while await count() < len(committed):  # noqa: ASYNC110  # another process
                        await asyncio.sleep(0.3)
            except TimeoutError:
                pytest.fail(f"{await count()} of {len(committed)}: {self.output()}")
            # A doubled change would come soon after.
            await asyncio.sleep(0.5)
        return committed


@pytest.fixture
async def line(
    request: pytest.FixtureRequest, own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> AsyncIterator[SinkLine]:
    """The services, with a database that records what is committed; the parameter is the
    delivery mode.
    """
    postgres, nats = await own_postgres(), await own_nats()
    database, oracle = await prepare(postgres)
    delivery = getattr(request, "param", "event")
    settings = environment(postgres, nats, delivery)
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        yield SinkLine(database, oracle, settings, tmp_path)
    await database.close()


def _toml(plan: Mapping[str, Any]) -> str:
    """The configuration of one sink. JSON's texts, numbers and lists are TOML's too."""
    keys = {"destination": "{schema}.{table}", **plan}
    options = keys.pop("options", {})
    keys.pop("environment", None)
    batch = f"{{events = {keys.pop('events_max', 200)}, wait_ms = 50}}"
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    more = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    return "\n".join(["[[sink]]", *lines, f"batch = {batch}", "[sink.options]", *more, ""])
