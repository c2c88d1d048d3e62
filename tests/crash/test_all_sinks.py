"""Several sinks of one database together: each has everything though all are killed in turn, and one
that is away holds back neither the others nor the source.

`HEADRACE_ALL_SINKS_SECONDS` is the time of the kills; `./taskw test:sinks:all` takes 30 minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import web

from headrace.testing.database import Database
from headrace.testing.kafka import KafkaServer
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.oracle import Change
from headrace.testing.rabbitmq import RabbitServer
from headrace.testing.suite import Suite
from headrace.testing.valkey import ValkeyServer
from tests.support.all_sinks import Keeper, Row, Targets, source_rows
from tests.support.database_copies import KINDS, copy_on
from tests.support.sink_kills import SinkLine
from tests.support.sinks import changes_of
from tests.support.webhook_receiver import Receiver, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400)]
SECONDS = float(os.environ.get("HEADRACE_ALL_SINKS_SECONDS", "20"))
SEED = int(os.environ.get("HEADRACE_ALL_SINKS_SEED", "7"))
PATIENCE_S = 300.0
MARKERS = 5
# Rows that the slowest sink may be behind while there is load.
BEHIND_MAX = 1000
TABLE = "busy"
T = TypeVar("T")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    runner = await serve(made)
    yield made
    await runner.cleanup()


@pytest.fixture
def servers(
    own_valkey: ValkeyServer,
    own_kafka: KafkaServer,
    own_rabbitmq: RabbitServer,
    own_opensearch: OpenSearchServer,
) -> tuple[ValkeyServer, KafkaServer, RabbitServer, OpenSearchServer]:
    """Each of them belongs to one test."""
    return own_valkey, own_kafka, own_rabbitmq, own_opensearch


async def until(fulfilled: Callable[[], Awaitable[bool]], what: str) -> float:
    """Wait; returns how long that took."""
    began = time.monotonic()
    while not await fulfilled():
        assert time.monotonic() < began + PATIENCE_S, what
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def becomes(read: Callable[[], Awaitable[T]], fits: Callable[[T], bool], what: str) -> None:
    """Wait as long as the answer changes: a slow target may be far behind after the load."""
    before: T | None = None
    deadline = 0.0
    while True:
        began = time.monotonic()
        found = await read()
        if fits(found):
            return
        now = time.monotonic()
        if found != before:
            before, deadline = found, now + PATIENCE_S
        assert now < deadline, what
        # The webhook's receiver works in this process, too: most of the time is for it.
        await asyncio.sleep(max(0.2, 3 * (now - began)))


async def equals(targets: Targets, name: str, wanted: set[Row], committed: list[Change]) -> None:
    """Wait until a target has the source's rows and, if it has every change, all of them."""
    await becomes(
        lambda: targets.rows(name, TABLE), lambda found: found == wanted, f"the rows of {name}"
    )
    if name not in targets.with_events:
        return

    async def changes() -> list[Change]:
        return changes_of(await targets.events(name))

    # A row that comes and goes in one transaction leaves no row, and arrives in its own time.
    await becomes(changes, lambda found: found == committed, f"the changes of {name}")


async def load(
    database: Database, chance: random.Random, seconds: float, receiver: Receiver
) -> int:
    """Rows that come, change and go, in transactions of one to a hundred, and changes of the
    table's columns in between. Returns the number of schema changes. It waits for the webhook, the
    slowest sink, if that is far behind: how much there is to deliver does not depend on the machine.
    """
    await database.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, n int, note text)")
    end = time.monotonic() + seconds
    first = shapes = 0
    extra = False
    while time.monotonic() < end:
        size = chance.choice((1, 1, 2, 10, 100))
        await database.execute(
            f"INSERT INTO {TABLE} (id, n, note) SELECT g, g % 7, 'note ' || g "
            f"FROM generate_series({first}, {first + size - 1}) g;"
            f"UPDATE {TABLE} SET n = n + 1 WHERE id % 37 = {first % 37} AND id > {first - 400};"
            f"DELETE FROM {TABLE} WHERE id % 41 = {first % 41} AND id > {first - 400}"
        )
        first += size
        await becomes(
            lambda: newest(receiver), within(first - BEHIND_MAX), f"the webhook lacks {first}"
        )
        if chance.random() < 0.05:
            shapes += 1
            if extra:
                await database.execute(f"ALTER TABLE {TABLE} DROP COLUMN extra")
            else:
                await database.execute(f"ALTER TABLE {TABLE} ADD COLUMN extra int")
                await database.execute(f"UPDATE {TABLE} SET extra = id WHERE id > {first - 50}")
            extra = not extra
        await asyncio.sleep(chance.uniform(0.05, 0.4))
    return shapes


def within(least: int) -> Callable[[int], bool]:
    return lambda found: found >= least


async def newest(receiver: Receiver) -> int:
    """The highest number among the last rows that the webhook has delivered."""
    rows = (body.get("data", {}) for body, _ in receiver.accepted[-BEHIND_MAX:])
    return max((int(row["id"]) for row in rows if "id" in row), default=0)


async def test_every_target_equals_the_source_though_each_sink_is_killed_in_turn(
    line: SinkLine,
    servers: tuple[ValkeyServer, KafkaServer, RabbitServer, OpenSearchServer],
    receiver: Receiver,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    folder = tmp_path / "changes"
    folder.mkdir()
    # New copies of small tables need no Spark.
    settings = {**line.environment, "HEADRACE_SNAPSHOT_SPARK": "large"}
    async with contextlib.AsyncExitStack() as stack:
        suite = Suite(settings, tmp_path, ("schema-publisher", "snapshot-responder"))
        await stack.enter_async_context(suite)
        server = line.database.server
        copies = [
            await stack.enter_async_context(copy_on(kind, server, tmp_path, request))
            for kind in KINDS
        ]
        await fed_and_killed(line, Targets(folder, receiver, *servers, copies), tmp_path)


async def fed_and_killed(line: SinkLine, targets: Targets, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(targets.configuration())
    keeper = Keeper(line.environment, config, targets.names)
    chance = random.Random(SEED)
    async with keeper.keeping():
        writing = asyncio.create_task(
            load(line.database, chance, SECONDS, targets.receiver), name="load"
        )
        await keeper.kill_in_turn(writing.done, random.Random(SEED))
        shapes = await writing
        wanted = await source_rows(line.database, TABLE)
        committed = await line.oracle.changes()
        for name in targets.names:
            await equals(targets, name, wanted, committed)
    print(f"{len(committed)} changes, {shapes} changes of columns, kills: {keeper.kills}")
    assert all(keeper.kills.get(name) for name in targets.names), keeper.kills


async def marker(line: SinkLine, targets: Targets, number: int, names: list[str]) -> list[float]:
    """Commit a row; returns how long it took until each target had it, and until the slot's
    position was confirmed behind it.
    """
    await line.database.execute(f"INSERT INTO orders VALUES ({number}, 0, 'marker')")
    end = await line.database.fetchval("SELECT pg_current_wal_lsn()::text")

    async def is_confirmed() -> bool:
        return bool(
            await line.database.fetchval(
                f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots "
                "WHERE slot_name = 'headrace'"
            )
        )

    def has(name: str) -> Callable[[], Awaitable[bool]]:
        async def found() -> bool:
            return any(("id", str(number)) in row for row in await targets.rows(name, "orders"))

        return found

    waits = [until(has(name), f"{name} lacks {number}") for name in names]
    return await asyncio.gather(*waits, until(is_confirmed, f"the slot stays before {end}"))


async def test_a_sink_that_is_away_holds_back_neither_the_others_nor_the_slot(
    line: SinkLine, own_valkey: ValkeyServer, receiver: Receiver, tmp_path: Path
) -> None:
    folder = tmp_path / "changes"
    folder.mkdir()
    targets = Targets(folder, receiver, own_valkey)
    config = tmp_path / "headrace.toml"
    config.write_text(targets.configuration())
    keeper = Keeper(line.environment, config, targets.names)
    others = ["files", "valkey"]
    numbers = iter(range(1, 1_000_000))
    measured: dict[str, list[list[float]]] = {}

    async def measure(state: str) -> None:
        measured[state] = [
            await marker(line, targets, next(numbers), others) for _ in range(MARKERS)
        ]

    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    async with keeper.keeping():
        await marker(line, targets, next(numbers), [*others, "webhook"])
        await measure("all present")
        for state in ("killed", "hanging", "refusing"):
            before = next(numbers)
            if state == "killed":
                keeper.away.add("webhook")
                keeper.kill("webhook")
            else:
                receiver.answers = [{"hanging": hang, "refusing": refuse}[state]] * 10_000
            await marker(line, targets, before, others)
            await measure(state)
            accepted = {str(body.get("data", {}).get("id")) for body, _ in receiver.accepted}
            assert str(before) not in accepted, "it was away"
            receiver.answers = []
            keeper.away.clear()
            if state == "hanging":
                # Otherwise its answer would be awaited until the limit.
                keeper.kill("webhook")
            await marker(line, targets, next(numbers), [*others, "webhook"])
    for state, found in measured.items():
        for name, waits in zip([*others, "slot"], zip(*found, strict=True), strict=True):
            median, most = statistics.median(waits) * 1000, max(waits) * 1000
            print(f"{state:12} {name:7} median {median:6.0f} ms  most {most:6.0f} ms")
