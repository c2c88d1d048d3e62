"""Spark's processes are killed while they copy and while they apply: the lake loses and doubles
nothing.

A task that is repeated, or a job, writes its files a second time; only those of its last attempt
are in a cut.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.testing.responder import child_pids, jvm_of
from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake
from tests.support.archiving import Archiving, archived
from tests.support.hastened import hastened
from tests.support.lake import lake_environment, reached, same_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

LINE = ("wal-reader", "publisher", "archiver")
SERVICE = "lake-writer"
# A JVM may take half a minute to start, and starts several times.
PATIENCE_S = 400.0
SMALL = hastened(
    {
        "headrace.lake_writer.spark_engine.SURVEYED_ROWS_MIN": 20,
        "headrace.lake_writer.spark_engine.PART_ROWS": 2000,
    }
)
COPIED = "INSERT INTO orders SELECT g, g % 7, repeat('x', 300) FROM generate_series(1, 60000) g"
BACKLOG = (
    "UPDATE orders SET n = n + 1 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 10 = 7",
    "UPDATE orders SET id = id + 1000000 WHERE id % 100 = 1",
    "INSERT INTO orders SELECT g, 0, 'new' FROM generate_series(60001, 70000) g",
)


def the_jvm(pid: int) -> int:
    jvm = jvm_of(pid)
    assert jvm is not None, "no JVM runs"
    return jvm


def the_driver(pid: int) -> int:
    (driver,) = [
        child
        for child in child_pids(pid)
        if b"headrace.spark.driver" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return driver


def data_files(lake: Path) -> int:
    return len(list(lake.rglob("*.parquet")))


async def killed_in_the_middle(
    suite: Suite, lake: Path, victim: Callable[[int], int], files_before: int
) -> None:
    """Kill a process when some of the job's files exist."""
    async with asyncio.timeout(PATIENCE_S):
        while data_files(lake) <= files_before:  # noqa: ASYNC110  # a folder gives no event
            await asyncio.sleep(0.02)
    losses = suite.log(SERVICE).count("event=spark_lost")
    os.kill(victim(suite.pid(SERVICE)), signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while suite.log(SERVICE).count("event=spark_lost") == losses:  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("victim", [the_jvm, the_driver])
async def test_a_killed_driver_or_jvm_loses_and_doubles_nothing(
    archiving: Archiving, tmp_path: Path, victim: Callable[[int], int]
) -> None:
    database = archiving.database
    await database.execute(COPIED)
    environment = lake_environment(
        archiving,
        tmp_path,
        HEADRACE_LAKE_ENGINE="spark",
        HEADRACE_SNAPSHOT_RANGE_BYTES=str(256 * 1024),
        HEADRACE_SPARK_MASTER="local[1,4]",
    )
    folder = tmp_path / "lake"
    lake = ForeignLake(folder)
    async with (
        Suite(environment, tmp_path, LINE),
        Suite(environment, tmp_path, (SERVICE,), program=SMALL) as suite,
    ):
        await killed_in_the_middle(suite, folder, victim, 0)
        await reached(lake, database, suite, PATIENCE_S)
        assert await same_rows(lake, database) == []

        await suite.stop(SERVICE)
        for statement in BACKLOG:
            await database.execute(statement)
        await archived(archiving.url, await archiving.oracle.changes())
        before = data_files(folder)
        await suite.start(SERVICE)
        await killed_in_the_middle(suite, folder, victim, before)
        await reached(lake, database, suite, PATIENCE_S)
        assert await same_rows(lake, database) == []


@pytest.mark.parametrize("point", ["lake_task.after_copy", "lake_task.after_apply"])
async def test_a_worker_that_is_killed_after_it_wrote_its_files_writes_them_again(
    archiving: Archiving, tmp_path: Path, point: str
) -> None:
    database = archiving.database
    await database.execute(COPIED)
    once = tmp_path / "killed"
    environment = lake_environment(
        archiving,
        tmp_path,
        HEADRACE_LAKE_ENGINE="spark",
        HEADRACE_SNAPSHOT_RANGE_BYTES=str(1024 * 1024),
        HEADRACE_FAILPOINT=point,
        HEADRACE_FAILPOINT_ONCE=str(once),
    )
    lake = ForeignLake(tmp_path / "lake")
    async with (
        Suite(environment, tmp_path, LINE),
        Suite(environment, tmp_path, (SERVICE,), program=SMALL) as suite,
    ):
        await reached(lake, database, suite, PATIENCE_S)
        for statement in BACKLOG:
            await database.execute(statement)
        await reached(lake, database, suite, PATIENCE_S)
        assert once.exists(), "no worker was killed"
        assert await same_rows(lake, database) == []


async def test_a_lake_writer_that_is_killed_before_it_takes_a_batch_takes_it_again(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    await database.execute(COPIED)
    environment = lake_environment(archiving, tmp_path, HEADRACE_LAKE_ENGINE="spark")
    lake = ForeignLake(tmp_path / "lake")
    async with (
        Suite(environment, tmp_path, LINE),
        Suite(environment, tmp_path, (), program=SMALL) as suite,
    ):
        await suite.start(SERVICE, HEADRACE_FAILPOINT="lake.after_batch")
        await suite.logged(SERVICE, "event=cut", PATIENCE_S)
        for statement in BACKLOG:
            await database.execute(statement)
        assert await suite.exit_code(SERVICE, PATIENCE_S) == -signal.SIGKILL
        await suite.start(SERVICE)
        await reached(lake, database, suite, PATIENCE_S)
        assert await same_rows(lake, database) == []
