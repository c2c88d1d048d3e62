"""The log has no hole that isn't reported, even if any process is killed; a listed backup can be restored.

`BACKUP_KILLS` says how often wal-archiver and PostgreSQL are killed (`./taskw test:backup`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from headrace.lsn import parse_lsn
from tests.oracle.wal_names import stored
from tests.support.time_machine import DATABASE, SERVICE, TimeMachine, machine, room

__all__ = ["machine", "room"]

KILLS = int(os.environ.get("BACKUP_KILLS", "6"))
STEPS = (
    "wal_archiver.before_put",
    "wal_archiver.after_put",
    "wal_archiver.before_status",
    "wal_archiver.after_status",
    "wal_archiver.before_remove",
)
DEATH_S = 120.0


@contextlib.asynccontextmanager
async def writing(machine: TimeMachine) -> AsyncIterator[None]:
    """Rows are written all the time, through every restart of the server."""

    over = asyncio.Event()

    async def write() -> None:
        while not over.is_set():
            try:
                session = await asyncpg.connect(machine.server.dsn(DATABASE))
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.1)
                continue
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                while not over.is_set():
                    await session.execute(
                        "INSERT INTO t SELECT n, repeat(md5(random()::text), 8) "
                        "FROM generate_series(1, 50) n"
                    )
                    await asyncio.sleep(0.01)
            session.terminate()

    task = asyncio.create_task(write(), name="writing")
    try:
        yield
    finally:
        over.set()
        await task


async def confirmed(machine: TimeMachine) -> int:
    return parse_lsn(
        await machine.value(
            "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_type = 'physical'"
        )
    )


async def died(machine: TimeMachine, step: str) -> None:
    async with asyncio.timeout(DEATH_S):
        while machine.suite.running(SERVICE):
            if step.endswith("remove"):
                # A segment becomes complete, and its parts are removed.
                await machine.execute("SELECT pg_switch_wal()")
            await asyncio.sleep(2)


@pytest.mark.slow
@pytest.mark.timeout(300 + 40 * KILLS)
async def test_nothing_is_confirmed_that_is_not_stored_without_a_hole(machine: TimeMachine) -> None:
    rng = random.Random(11)
    await machine.execute("CREATE TABLE t (n int, v text)")
    await machine.begin()
    await machine.backup()
    await machine.suite.kill(SERVICE)
    async with writing(machine):
        for kill in range(KILLS):
            step = STEPS[kill % len(STEPS)]
            hits = 1 if step.endswith("remove") else rng.randrange(1, 4)
            await machine.suite.start(SERVICE, HEADRACE_FAILPOINT=f"{step}:{hits}")
            if kill % 4 == 3:
                await machine.server.kill()
                await machine.server.start()
            await died(machine, step)
            log = stored(machine.store / "wal")
            assert [len(own) for own in log.values()] == [1], log
            assert await confirmed(machine) <= log[1][0][1]
            print(f"kill {kill + 1} of {KILLS} at {step}: no hole")
        await machine.suite.start(SERVICE)
        await machine.stored()
    await machine.stored()
    log = stored(machine.store / "wal")
    assert [len(own) for own in log.values()] == [1], log
    assert await machine.restored_digests() == await machine.digests()


async def test_a_backup_that_is_killed_is_not_listed_and_the_next_one_can_be_restored(
    machine: TimeMachine,
) -> None:
    await machine.execute("CREATE TABLE t (n int, v text)")
    await machine.begin()
    async with writing(machine):
        for point in ("backup.after_part", "backup.after_part:2", "backup.before_record"):
            killed = await machine.run(
                "backup",
                "now",
                code=-9,
                HEADRACE_FAILPOINT=point,
                HEADRACE_BACKUP_PART_BYTES="1000000",
            )
            assert "backup 2" not in killed.out
            assert json.loads((await machine.run("backup", "ls", "--json")).out) == []
        await machine.backup()
    [listed] = json.loads((await machine.run("backup", "ls", "--json")).out)
    assert listed["restorable"]
    await machine.stored()
    assert await machine.restored_digests() == await machine.digests()


async def test_a_server_that_is_killed_during_a_backup_leaves_none_listed(
    machine: TimeMachine,
) -> None:
    await machine.execute("CREATE TABLE t (n int, v text)")
    await machine.begin()
    slow = {"HEADRACE_BACKUP_RATE_KIB_S": "4096", "HEADRACE_BACKUP_PART_BYTES": "1000000"}
    taking = asyncio.create_task(machine.run("backup", "now", code=1, **slow), name="backup")
    async with asyncio.timeout(DEATH_S):
        while not list(machine.store.glob("backups/*/base.000001.zst")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await machine.server.kill()
    failed = await taking
    assert "Traceback" not in failed.err
    await machine.server.start()
    assert json.loads((await machine.run("backup", "ls", "--json")).out) == []
    await machine.backup()
    await machine.stored()
    assert await machine.restored_digests() == await machine.digests()


async def test_an_expiry_that_is_killed_leaves_only_backups_that_can_be_restored(
    machine: TimeMachine,
) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    labels = []
    for number in range(3):
        await machine.execute(f"INSERT INTO t VALUES ({number})")
        labels.append(await machine.backup())
    await machine.stored()
    expire = ("backup", "expire", "--keep", "1")
    await machine.run(*expire, code=-9, HEADRACE_FAILPOINT="backup.expired")
    listed = json.loads((await machine.run("backup", "ls", "--json")).out)
    assert [one["label"] for one in listed] == [labels[0], labels[2]]
    assert all(one["restorable"] for one in listed)
    await machine.run(*expire)
    listed = json.loads((await machine.run("backup", "ls", "--json")).out)
    assert [one["label"] for one in listed] == labels[2:]
    await machine.run("backup", "verify")
    assert await machine.restored_digests() == await machine.digests()


async def test_a_hole_is_reported_and_a_new_backup_ends_it(machine: TimeMachine) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    await machine.backup()
    await machine.stored()
    await machine.suite.stop(SERVICE)
    await machine.execute("SELECT pg_drop_replication_slot('headrace_backup')")
    for number in range(6):
        await machine.execute(f"INSERT INTO t VALUES ({number})")
        await machine.execute("SELECT pg_switch_wal()")
        await machine.execute("CHECKPOINT")
    lsn = await machine.value("SELECT pg_current_wal_insert_lsn()::text")
    await machine.begin()
    await machine.suite.logged(SERVICE, "event=log_hole")
    await machine.execute("INSERT INTO t VALUES (100)")
    await machine.stored()
    assert json.loads((await machine.run("backup", "status", "--json")).out)["holes"]
    refused = await machine.run("restore", "--to", str(machine.room / "x"), "--lsn", lsn, code=1)
    assert "without a hole" in refused.err
    await machine.backup()
    then = await machine.digests()
    await machine.stored()
    assert await machine.restored_digests() == then


async def test_the_log_waits_for_a_store_that_cannot_be_written(machine: TimeMachine) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    await machine.backup()
    wal = machine.store / "wal"
    away = machine.store / "elsewhere"
    wal.rename(away)
    wal.write_text("in the way")
    await machine.execute("INSERT INTO t SELECT generate_series(1, 10000)")
    await machine.suite.logged(SERVICE, "part=store")
    before = await confirmed(machine)
    await machine.execute("INSERT INTO t SELECT generate_series(1, 10000)")
    assert await confirmed(machine) == before
    wal.unlink()
    away.rename(wal)
    await machine.stored()
    assert await machine.restored_digests() == await machine.digests()
