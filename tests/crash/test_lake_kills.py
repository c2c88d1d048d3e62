"""A lake shows nothing in part, nothing twice, and loses nothing if its writer is killed at any step,
or the object store, the catalog's PostgreSQL or Spark's JVM.

Money moves between ten tables, so their sum is the same at every moment: a foreign reader adds it
up in every cut that it sees. `LAKE_KILLS` says how often something is killed in each test; Spark's
JVM dies a tenth as often, because it starts slowly.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.plugin import OwnPostgres
from headrace.testing.responder import child_pids, jvm_of
from headrace.testing.s3 import S3Server
from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake, QueriedBucket
from tests.support.archiving import Archiving
from tests.support.lake import SERVICES, became_same, eventually, lake_environment
from tests.support.lake_load import SumReader, create_accounts, running, transfers

KILLS = int(os.environ.get("LAKE_KILLS", "6"))
SERVICE = "lake-writer"
STEPS = ("lake.before_write", "lake.before_commit", "lake.after_commit")
# It waits for a cut, which exists every 0.3 s.
DEATH_S = 60.0
# A JVM may take half a minute to start, and starts again.
SPARK_S = 400.0


async def test_every_cut_shows_one_moment_however_often_the_writer_is_killed(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    await create_accounts(database)
    lake = ForeignLake(tmp_path / "lake")
    reader = SumReader(ForeignLake(tmp_path / "lake"))
    rng = random.Random(7)
    environment = lake_environment(archiving, tmp_path)
    async with Suite(environment, tmp_path, SERVICES[:-1]) as suite:
        await suite.start(SERVICE, HEADRACE_FAILPOINT="lake.copied:3")
        async with running(transfers(database, 1), reader.read()):
            await died(suite)
            for kill in range(KILLS):
                step = STEPS[kill % len(STEPS)]
                await suite.start(SERVICE, HEADRACE_FAILPOINT=f"{step}:{rng.randrange(1, 4)}")
                await died(suite)
            await suite.start(SERVICE)
            await more_cuts(reader)
        assert not (wrong := await became_same(lake, database, suite)), wrong
    assert not reader.wrong
    assert len(reader.cuts) > KILLS


@dataclass(frozen=True)
class Bucket:
    """A lake in a bucket with its catalog on a separate PostgreSQL server."""

    s3: S3Server
    postgres: EmbeddedPostgres
    environment: dict[str, str]
    lake: QueriedBucket
    reader: SumReader

    async def outage(self, server: str, suspended: int, seconds: float) -> None:
        """Kill a server while a process is suspended, which then has to do without for a while."""
        async with self.reader.outage():
            if server == "s3":
                await self.s3.kill()
            else:
                await self.postgres.stop("immediate")
            os.kill(suspended, signal.SIGCONT)
            # The length of the outage is part of the fault.
            await asyncio.sleep(seconds)
            if server == "s3":
                await self.s3.start()
            else:
                await self.postgres.start()


@pytest.fixture
async def bucket(
    archiving: Archiving, s3: S3Server, own_postgres: OwnPostgres
) -> AsyncIterator[Bucket]:
    """A lake's servers, all of which a test may kill."""
    await create_accounts(archiving.database)
    postgres = await own_postgres()
    catalog = postgres.dsn()
    environment = archiving.environment(
        **s3.environment(),
        HEADRACE_ARCHIVE_REQUIRED="true",
        HEADRACE_LAKE_URL=s3.url("lake"),
        HEADRACE_LAKE_CATALOG=catalog,
        HEADRACE_LAKE_FLUSH_INTERVAL_S="0.3",
        HEADRACE_LAKE_ENGINE="inline",
    )
    lake, read = (QueriedBucket(catalog, s3.options()) for _ in range(2))
    yield Bucket(s3, postgres, environment, lake, SumReader(read))
    lake.close()
    read.close()


async def test_every_cut_shows_one_moment_however_often_its_servers_are_killed(
    archiving: Archiving, bucket: Bucket, tmp_path: Path
) -> None:
    database, reader = archiving.database, bucket.reader
    rng = random.Random(11)
    async with Suite(bucket.environment, tmp_path, SERVICES[:-1]) as suite:
        async with running(transfers(database, 3), reader.read()):
            for kill in range(KILLS):
                server = ("s3", "postgres")[kill % 2]
                step = STEPS[kill // 2 % len(STEPS)]
                point = f"{step}:{rng.randrange(1, 4)}:stop"
                await suite.start(SERVICE, HEADRACE_FAILPOINT=point)
                await bucket.outage(server, await suspended(suite), rng.uniform(0.0, 2.0))
                await more_cuts(reader, 1)
                await suite.kill(SERVICE)
            await suite.start(SERVICE)
            await more_cuts(reader)
        assert not (wrong := await became_same(bucket.lake, database, suite)), wrong
    assert not reader.wrong
    assert len(reader.cuts) > KILLS


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_every_cut_shows_one_moment_however_often_sparks_jvm_is_killed(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    await create_accounts(database)
    lake = ForeignLake(tmp_path / "lake")
    reader = SumReader(ForeignLake(tmp_path / "lake"))
    environment = lake_environment(archiving, tmp_path, HEADRACE_LAKE_ENGINE="spark")
    points = ("lake_task.after_copy", "lake_task.after_apply", "lake.after_batch", *STEPS)
    async with Suite(environment, tmp_path, SERVICES[:-1]) as suite:
        async with running(transfers(database, 5), reader.read()):
            for kill in range(max(2, KILLS // 10)):
                once = tmp_path / f"stopped-{kill}"
                await suite.start(
                    SERVICE,
                    HEADRACE_FAILPOINT=f"{points[kill % len(points)]}:1:stop",
                    HEADRACE_FAILPOINT_ONCE=str(once),
                )
                stopped = await suspended(suite, SPARK_S)
                jvm = jvm_of(suite.pid(SERVICE))
                assert jvm is not None
                os.kill(jvm, signal.SIGKILL)
                os.kill(stopped, signal.SIGCONT)
                await more_cuts(reader, 2, SPARK_S)
                assert "event=spark_lost" in suite.log(SERVICE)
                await suite.stop(SERVICE, DEATH_S)
            await suite.start(SERVICE)
            await more_cuts(reader, 3, SPARK_S)
        assert not (wrong := await became_same(lake, database, suite)), wrong
    assert not reader.wrong


async def more_cuts(reader: SumReader, count: int = 3, timeout_s: float = DEATH_S) -> None:
    seen = len(reader.cuts)
    await eventually(lambda: len(reader.cuts) >= seen + count or bool(reader.wrong), timeout_s)
    assert not reader.wrong


async def died(suite: Suite) -> None:
    await eventually(lambda: not suite.running(SERVICE))


async def suspended(suite: Suite, timeout_s: float = DEATH_S) -> int:
    """The process of the service that a failpoint has suspended, once it has."""
    pid = suite.pid(SERVICE)

    def found() -> list[int]:
        return [each for each in (pid, *child_pids(pid)) if is_suspended(each)]

    await eventually(lambda: bool(found()), timeout_s)
    return found()[0]


def is_suspended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
