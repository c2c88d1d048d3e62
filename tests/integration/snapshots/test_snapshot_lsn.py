"""The LSN of a snapshot is exact, with any transactions in progress: it shows exactly the rows of
the transactions that committed before it. No Spark here: the held snapshot is read on a second
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest

from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.pgoutput.decoder import decode as decode_change
from headrace.pgoutput.messages import Begin, Insert
from headrace.postgres.facts import PublishedTable
from headrace.settings import PostgresSettings, Settings, SourceSettings
from headrace.spark import source
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import SnapshotHeldUpError, held_snapshot
from headrace.testing.plugin import OwnPostgres

SNAPSHOTS = 20
REQUEST = SnapshotRequest("busy", "public", "busy")
WAITS = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND $1 = ANY(pg_blocking_pids(pid))"
ROLLED_BACK = """DO $$ BEGIN
    FOR number IN 1..2000 LOOP
        BEGIN INSERT INTO busy VALUES (1000 + number); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END;
    END LOOP;
END $$"""
LEVELS = ("on", "off", "local", "remote_write", "remote_apply")


@dataclass
class World:
    postgres: EmbeddedPostgres
    sql: asyncpg.Connection
    settings: Settings
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.postgres.dsn())

    async def snapshot(self) -> tuple[int, set[int]]:
        """Its LSN, and its rows as a task would see them."""
        reader = await self.connect()
        try:
            async with held_snapshot(self.settings, REQUEST) as held:
                await reader.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await reader.execute(f"SET TRANSACTION SNAPSHOT '{held.exported}'")
                return held.lsn, {row["id"] for row in await reader.fetch("SELECT id FROM busy")}
        finally:
            await reader.close()

    async def commits(self) -> dict[int, int]:
        """Of each row that was ever committed, where: as another slot decodes it."""
        changes = await self.sql.fetch(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('judge', NULL, NULL, "
            "'proto_version', '1', "
            "'publication_names', 'p')"
        )
        found: dict[int, int] = {}
        commit_lsn = 0
        for change in (decode_change(row["data"]) for row in changes):
            if isinstance(change, Begin):
                commit_lsn = change.final_lsn
            elif isinstance(change, Insert):
                value = change.new[0]
                assert isinstance(value, bytes)
                found[int(value)] = commit_lsn
        return found


@pytest.fixture
async def world(own_postgres: OwnPostgres) -> AsyncIterator[World]:
    postgres = await own_postgres(settings={"max_prepared_transactions": "20"})
    sql = await asyncpg.connect(postgres.dsn())
    await sql.execute("CREATE TABLE busy (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE busy")
    await sql.execute("SELECT pg_create_logical_replication_slot('judge', 'pgoutput')")
    settings = Settings(
        postgres=PostgresSettings("127.0.0.1", postgres.port, "postgres", SUPERUSER),
        source=SourceSettings(publication="p"),
    )
    yield World(postgres, sql, settings)
    await sql.close()


async def write(world: World, place: int, level: str) -> None:
    """Transactions of any length, some with parts that were rolled back."""
    connection = await world.connect()
    await connection.execute(f"SET synchronous_commit = {level}")
    number = 10_000_000 * (place + 1)
    while not world.stop.is_set():
        number += 10
        await connection.execute(f"BEGIN; INSERT INTO busy VALUES ({number})")
        await asyncio.sleep(0.02 * place * (number // 10 % 3))
        await connection.execute(
            f"SAVEPOINT a; INSERT INTO busy VALUES ({number + 1}); ROLLBACK TO a"
        )
        await connection.execute(f"SAVEPOINT b; INSERT INTO busy VALUES ({number + 2}); RELEASE b")
        await connection.execute("COMMIT")
    await connection.close()


async def write_in_two_phases(world: World) -> None:
    connection = await world.connect()
    number = 900_000_000
    while not world.stop.is_set():
        number += 10
        await connection.execute(
            f"BEGIN; INSERT INTO busy VALUES ({number}); PREPARE TRANSACTION 'x'"
        )
        await asyncio.sleep(0.005 * (number // 10 % 7))
        end = "ROLLBACK" if number // 10 % 4 == 0 else "COMMIT"
        await connection.execute(f"{end} PREPARED 'x'")
    await connection.close()


async def test_a_snapshot_has_what_committed_before_its_lsn_and_nothing_else(world: World) -> None:
    writers = [
        asyncio.create_task(write(world, place, level)) for place, level in enumerate(LEVELS)
    ]
    writers.append(asyncio.create_task(write_in_two_phases(world)))
    taken = []
    for _ in range(SNAPSHOTS):
        taken.append(await world.snapshot())
        await asyncio.sleep(0.02)
    world.stop.set()
    await asyncio.gather(*writers)
    commits = await world.commits()
    assert {number // 10_000_000 for number in commits} >= {1, 2, 3, 4, 5, 90}, (
        "every kind of writer took part"
    )
    for lsn, ids in taken:
        assert ids == {number for number, commit in commits.items() if commit < lsn}
    # Snapshots of the same rows would show nothing.
    assert len({frozenset(ids) for _, ids in taken}) > SNAPSHOTS // 2


async def test_a_commit_that_waits_for_its_standby_holds_the_snapshot_up_and_is_in_it(
    world: World,
) -> None:
    await world.sql.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    await world.sql.execute("SELECT pg_reload_conf()")
    waiting = await world.connect()
    await waiting.execute("SET synchronous_commit = remote_apply")
    pid = waiting.get_server_pid()
    commit = asyncio.create_task(waiting.execute("INSERT INTO busy VALUES (1)"))
    async with asyncio.timeout(30):
        while not await world.sql.fetchval(WAITS, pid):  # noqa: ASYNC110  # a backend tells nobody
            await asyncio.sleep(0.05)
    patient = world.settings
    world.settings = replace(patient, snapshot=replace(patient.snapshot, slot_wait_s=1.0))
    with pytest.raises(SnapshotHeldUpError, match=f"pid {pid} "):
        await world.snapshot()
    # Its commit record is in the log, and nobody sees it yet.
    assert await world.sql.fetchval("SELECT count(*) FROM busy") == 0
    world.settings = patient
    snapshot = asyncio.create_task(world.snapshot())
    await asyncio.sleep(0.5)
    await world.sql.execute("ALTER SYSTEM RESET synchronous_standby_names")
    await world.sql.execute("SELECT pg_reload_conf()")
    await commit
    lsn, ids = await snapshot
    assert ids == {1}
    assert (await world.commits())[1] < lsn
    await waiting.close()


async def test_a_snapshot_that_would_have_to_name_too_many_transactions_is_taken_when_they_are_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # PostgreSQL logs the running transactions every 15 s, too. If it does so meanwhile, the first
    # attempt waits for the crowd itself.
    for first in range(1, 61, 4):
        lsn, ids = await crowded_snapshot(world, first)
        assert ids == set(range(1, first + 4))
        assert all(commit < lsn for commit in (await world.commits()).values())
        if "snapshot_too_large" in caplog.text:
            return
    pytest.fail("no attempt found too many transactions")


async def crowded_snapshot(world: World, first: int) -> tuple[int, set[int]]:
    """A snapshot while more transactions are open than PostgreSQL can list."""
    async with contextlib.AsyncExitStack() as stack:
        old, middle, crowd = [await world.connect() for _ in range(3)]
        for connection in (old, middle, crowd):
            stack.push_async_callback(connection.close)
        await old.execute(f"BEGIN; INSERT INTO busy VALUES ({first})")
        snapshot = asyncio.create_task(world.snapshot())
        await held_up_by(world, old)
        await middle.execute(f"BEGIN; INSERT INTO busy VALUES ({first + 1})")
        await old.execute("COMMIT")
        await held_up_by(world, middle)
        # More than PostgreSQL has places for, all of them between the oldest that is open and the
        # newest that committed.
        await crowd.execute(f"BEGIN; INSERT INTO busy VALUES ({first + 2}); {ROLLED_BACK}")
        await world.sql.execute(f"INSERT INTO busy VALUES ({first + 3})")
        await middle.execute("COMMIT")
        await held_up_by(world, crowd)
        await crowd.execute("COMMIT")
        return await snapshot


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE busy RENAME TO old; ALTER TABLE other RENAME TO busy",
        "ALTER TABLE busy SET SCHEMA aside; ALTER TABLE s.busy SET SCHEMA public",
        "ALTER TABLE busy RENAME note TO remark",
        "ALTER TABLE busy DROP note; ALTER TABLE busy ADD note text DEFAULT 'later'",
        (
            "ALTER TABLE busy RENAME note TO x; ALTER TABLE busy RENAME extra TO note; "
            "ALTER TABLE busy RENAME x TO extra"
        ),
        "DROP TABLE busy; ALTER TABLE other RENAME TO busy",
        "TRUNCATE busy",
    ],
)
async def test_ddl_between_the_snapshot_and_its_lock_takes_another_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, ddl: str
) -> None:
    await world.sql.execute(
        "ALTER TABLE busy ADD note text, ADD extra text; CREATE SCHEMA aside; CREATE SCHEMA s;"
        "CREATE TABLE other (LIKE busy INCLUDING ALL); CREATE TABLE s.busy (LIKE busy);"
        "INSERT INTO busy VALUES (1, 'note', 'extra'); INSERT INTO other VALUES (2, 'its', 'own');"
        "INSERT INTO s.busy VALUES (3, 'in', 's'); DROP PUBLICATION p;"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    find = source._find_table
    finds = 0

    async def find_and_alter(*arguments: Any) -> PublishedTable:
        nonlocal finds
        finds += 1
        found = await find(*arguments)
        if finds == 1:
            await world.sql.execute(ddl)
        return found

    monkeypatch.setattr(source, "_find_table", find_and_alter)
    reader = await world.connect()
    async with held_snapshot(world.settings, REQUEST) as held:
        names = ", ".join(column.name for column in held.columns)
        await reader.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await reader.execute(f"SET TRANSACTION SNAPSHOT '{held.exported}'")
        taken = await reader.fetch(f"SELECT {names} FROM ONLY {held.storages[0].relation}")
        # Only another snapshot, taken after the DDL, shows the table as it is now.
        assert [dict(row) for row in taken] == [
            dict(row) for row in await world.sql.fetch("SELECT * FROM busy")
        ]
    await reader.close()


async def held_up_by(world: World, connection: asyncpg.Connection) -> None:
    """Wait until the snapshot's slot waits for this connection's transaction."""
    async with asyncio.timeout(30):
        while not await world.sql.fetchval(BLOCKED, connection.get_server_pid()):  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.02)
