"""Snapshots on a Spark Connect server: `SPARK_REMOTE` is enough, and the responder starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from headrace.embedded.postgres import SUPERUSER
from headrace.jetstream.provisioning import ensure
from headrace.settings import (
    Settings,
    SnapshotSettings,
)
from headrace.snapshot_responder.chunk_permits import Throttle
from headrace.snapshot_responder.drivers import TASK, Drivers
from headrace.snapshot_responder.snapshot import Snapshot
from headrace.spark.driver_process import SparkJobError
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import held_snapshot
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats
from headrace.testing.responder import jvm_of
from headrace.testing.spark_connect import connect_server
from tests.support.snapshot_source import make_table, settings_between
from tests.support.spark_classes import java_options

pytest.importorskip("grpc", reason="needs pyspark[connect]")
pytestmark = [pytest.mark.spark, pytest.mark.slow]

REQUEST = SnapshotRequest("t", "public", "t")


@pytest_asyncio.fixture
async def settings(database: Database, own_nats: OwnNats) -> Settings:
    await make_table(database)
    return replace(
        settings_between(database, await own_nats()),
        snapshot=SnapshotSettings(range_bytes=1024 * 1024, chunk_rows_max=2000),
    )


@pytest.fixture
def remote(settings: Settings, tmp_path: Path) -> Iterator[str]:
    """A Connect server whose workers reach the test's own PostgreSQL and NATS; its URL."""
    environment = {
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(settings.postgres.port),
        "PG_DB": str(settings.postgres.database),
        "POSTGRES_BRIDGE_USER": SUPERUSER,
        "NATS_URL": str(settings.nats.url),
    }
    with connect_server(tmp_path, environment, java_options()) as url:
        yield url


async def test_a_snapshot_runs_on_spark_connect_and_its_failures_are_told(
    settings: Settings, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", remote)
    client = await nats.connect(str(settings.nats.url))
    await ensure(client.jetstream(), settings.streams)
    drivers = Drivers.of(
        replace(settings, snapshot=replace(settings.snapshot, spark_remote=remote))
    )
    driver = drivers.spark
    try:
        # Slow enough for Spark to tell how far it is, which it does every other second.
        first = Snapshot(settings, client, drivers, REQUEST, "snap-1", Throttle(700_000))
        assert await first.run() == 20000
        assert 0 < first.tasks_done <= first.tasks
        assert driver.pid is not None
        assert jvm_of(driver.pid) is None
        snapshot = Snapshot(settings, client, drivers, REQUEST, "snap-2")
        async with held_snapshot(settings, REQUEST) as held:
            plan = snapshot._plan(held)
        with pytest.raises(SparkJobError, match=r"snapshot .+ does not exist"):
            await driver.run("gone", SparkWork(TASK, plan.pack(), len(plan.tasks), "gone"))
    finally:
        await drivers.close()
        await client.close()
