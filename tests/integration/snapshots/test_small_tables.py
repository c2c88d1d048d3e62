"""Copies of small tables while no Spark is running: the same tasks in a process without it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.client import Client

from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import chunk_subject, table_token
from headrace.settings import Settings, SnapshotSettings, SnapshotSpark
from headrace.snapshot_responder.chunk_permits import Throttle
from headrace.snapshot_responder.drivers import Drivers
from headrace.snapshot_responder.snapshot import Snapshot
from headrace.spark.driver_process import SparkTaskError, SparkUnusableError
from headrace.spark.request import SnapshotRequest
from headrace.testing.database import Database
from tests.support.snapshot_source import make_table

REQUEST = SnapshotRequest("t", "public", "t")
MakeDrivers = Callable[..., Drivers]


@pytest_asyncio.fixture
async def drivers(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeDrivers]:
    await make_table(database)
    # Tasks take credentials from their own environment.
    for name, value in {
        "PG_HOST": settings.postgres.host,
        "PG_PORT": settings.postgres.port,
        "PG_DB": settings.postgres.database,
        "POSTGRES_BRIDGE_USER": settings.postgres.user,
        "NATS_URL": settings.nats.url,
    }.items():
        monkeypatch.setenv(name, str(value))
    made: list[Drivers] = []

    def make(spark: SnapshotSpark, **more: Any) -> Drivers:
        chosen = SnapshotSettings(spark=spark, chunk_rows_max=2000, **more)
        made.append(Drivers.of(replace(settings, snapshot=chosen)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def snapshot(
    drivers: Drivers, client: Client, name: str, throttle: int | None = None, table: str = "t"
) -> Snapshot:
    request = replace(REQUEST, token=table_token("public", table), table=table)
    return Snapshot(drivers.settings, client, drivers, request, name, Throttle(throttle))


async def chunks(client: Client, made: Snapshot) -> list[dict[str, Any]]:
    subjects = (
        chunk_subject(made.request.token, made.snapshot_id, number)
        for number in range(len(made.numbers))
    )
    found = [await client.jsm().get_last_msg("INIT", subject, direct=True) for subject in subjects]
    return [decode(message.data or b"") for message in found]


async def ids(client: Client, made: Snapshot) -> list[int]:
    return sorted(row["id"] for chunk in await chunks(client, made) for row in chunk["data"])


async def test_a_small_table_is_copied_without_starting_spark(
    drivers: MakeDrivers, client: Client
) -> None:
    made = drivers(SnapshotSpark.LARGE)
    first = snapshot(made, client, "snap-1")
    assert await first.run() == 20000
    assert first.driver is made.local
    assert (first.tasks, first.tasks_done) == (1, 1)
    assert await ids(client, first) == list(range(1, 20001))
    # The process is used again.
    pid = made.local.pid
    assert await snapshot(made, client, "snap-2").run() == 20000
    assert made.local.pid == pid
    assert made.spark.state == "stopped"


async def test_an_error_that_would_last_fails_a_small_copy_and_starts_no_spark(
    drivers: MakeDrivers, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SNAPSHOT_COPY_TIMEOUT_S", "0.001")
    made = drivers(SnapshotSpark.LARGE)
    with pytest.raises(SparkTaskError, match="HEADRACE_SNAPSHOT_COPY_TIMEOUT_S"):
        await snapshot(made, client, "snap-1").run()
    assert made.spark.state == "stopped"


@pytest.mark.spark
async def test_spark_ends_the_copy_of_a_killed_process_and_copies_as_it_did(
    drivers: MakeDrivers, client: Client
) -> None:
    made = drivers(SnapshotSpark.LARGE)
    before = snapshot(made, client, "snap-1")
    await before.run()
    killed = snapshot(made, client, "snap-2", throttle=700_000)
    running = asyncio.create_task(killed.run())
    while len(killed.numbers) < 3:  # noqa: ASYNC110  # no event tells the middle of a copy
        await asyncio.sleep(0.01)
    assert made.local.pid is not None
    os.kill(made.local.pid, signal.SIGKILL)
    assert await running == 20000
    assert killed.driver is made.spark
    assert await ids(client, killed) == list(range(1, 20001))
    # Spark is running now, so it takes the next one.
    after = snapshot(made, client, "snap-3")
    await after.run()
    assert after.driver is made.spark
    assert await contents(client, after) == await contents(client, before)


async def contents(client: Client, made: Snapshot) -> list[dict[str, Any]]:
    own = {"snapshot_id", "lsn"}
    return [
        {key: value for key, value in chunk.items() if key not in own}
        for chunk in await chunks(client, made)
    ]


@pytest.mark.parametrize("chosen", list(SnapshotSpark))
async def test_spark_starts_when_the_setting_says_so(
    drivers: MakeDrivers, client: Client, chosen: SnapshotSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = drivers(chosen)
    asked = asyncio.Event()
    monkeypatch.setattr(made.spark, "started", starting(asked))
    if chosen is SnapshotSpark.ALWAYS:
        assert await made.started(REQUEST) is made.spark
        assert made.local.state == "stopped"
    else:
        await snapshot(made, client, "snap-1").run()
        # After the copy, and not before: both would compete for the processors.
        await asyncio.sleep(0)
    assert asked.is_set() is (chosen is not SnapshotSpark.LARGE)


async def test_a_spark_that_cannot_start_is_tried_once_in_the_background(
    drivers: MakeDrivers, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = drivers(SnapshotSpark.AUTO)
    tries = 0

    async def refused() -> None:
        nonlocal tries
        tries += 1
        raise SparkUnusableError("pyspark is not installed")

    monkeypatch.setattr(made.spark, "started", refused)
    for number in range(3):
        await snapshot(made, client, f"snap-{number}").run()
        await asyncio.sleep(0)
    assert tries == 1


def starting(asked: asyncio.Event) -> Callable[[], Coroutine[Any, Any, None]]:
    async def started() -> None:
        asked.set()

    return started


@pytest.mark.parametrize(
    "chosen", [{"range_bytes": 64 * 1024}, {"spark_remote": "sc://127.0.0.1:1"}]
)
async def test_a_larger_table_and_a_connect_server_always_use_spark(
    drivers: MakeDrivers, client: Client, chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = drivers(SnapshotSpark.LARGE, **chosen)
    asked = asyncio.Event()
    monkeypatch.setattr(made.spark, "started", starting(asked))
    assert await made.started(REQUEST) is made.spark
    assert asked.is_set()
    assert made.local.state == "stopped"
