"""Time limits that an administrator sets for a role or a database don't end what has to last:
copies and streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.embedded.nats import EmbeddedNats
from headrace.postgres.replication import Keepalive, ReplicationConnection
from headrace.settings import Settings, load
from headrace.snapshot_responder import task
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import held_snapshot
from headrace.testing.database import Database
from headrace.verify.source import in_snapshot

LIMIT_S = 0.3
SINCE_17 = ("transaction_timeout",)
LIMITS = ("idle_in_transaction_session_timeout", "idle_session_timeout", "lock_timeout", *SINCE_17)
ROWS = 40_000
both_versions = pytest.mark.parametrize("pg_version", [16, 18], indirect=True)


@async_fixture
async def settings(
    database: Database, nats_server: EmbeddedNats, pg_version: int
) -> AsyncIterator[Settings]:
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION headrace FOR TABLE t"
    )
    for name in LIMITS:
        if pg_version >= 17 or name not in SINCE_17:
            await database.execute(f"ALTER DATABASE \"{database.name}\" SET {name} = '{LIMIT_S}s'")
    yield load(
        {
            "PG_HOST": "127.0.0.1",
            "PG_PORT": str(database.port),
            "PG_DB": database.name,
            "POSTGRES_BRIDGE_USER": database.user,
            "NATS_URL": nats_server.url,
        }
    )


async def unlimited(database: Database) -> Any:
    """A writer's connection, which the limits don't end."""
    connection = await database.connect()
    await connection.fetch(
        "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = ANY($1)", LIMITS
    )
    return connection


async def outlast() -> None:
    await asyncio.sleep(LIMIT_S * 3)


@both_versions
async def test_a_snapshot_is_held_for_longer_than_the_servers_limits(settings: Settings) -> None:
    async with held_snapshot(settings, SnapshotRequest("t", "public", "t")) as held:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(LIMIT_S * 3):
                await held.lost.wait()
        plan: Any = SimpleNamespace(exported=held.exported)
        async with task._connected(plan, settings) as (session, _):
            await outlast()
            assert await session.fetchval("SELECT count(*) FROM public.t") == 0


@both_versions
async def test_a_comparison_takes_longer_than_the_servers_limits(
    settings: Settings, database: Database
) -> None:
    await database.execute(
        f"INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, {ROWS}) n"
    )
    found = 0
    async with (
        held_snapshot(settings, SnapshotRequest("t", "public", "t")) as held,
        in_snapshot(settings, held) as session,
        session.cursor() as cursor,
        cursor.copy("COPY public.t TO STDOUT") as copy,
    ):
        async for _ in copy.rows():
            if not found:
                await outlast()
            found += 1
    assert found == ROWS


@both_versions
async def test_a_transaction_that_takes_longer_than_the_servers_limits_is_streamed_to_its_end(
    settings: Settings, database: Database
) -> None:
    slot = f"{database.name}_limits"
    stream = await ReplicationConnection.open(settings.postgres, "limits")
    await stream.create_slot(slot, failover=False)
    large = await unlimited(database)
    await large.execute(
        f"INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, {ROWS}) n"
    )
    await stream.start(slot, "headrace")
    try:
        kinds: list[bytes] = []
        while b"C" not in kinds[-1:]:
            messages = await stream.read(10)
            assert messages
            if not kinds:
                # The walsender stands in the middle of the transaction until somebody reads on.
                await outlast()
            kinds += [message[1][:1] for message in messages if not isinstance(message, Keepalive)]
        assert kinds.count(b"I") == ROWS
    finally:
        stream.close()


async def test_a_slot_is_made_however_long_it_waits_for_an_older_transaction(
    settings: Settings, database: Database
) -> None:
    older = await unlimited(database)
    await older.execute("BEGIN; INSERT INTO t VALUES (1)")
    stream = await ReplicationConnection.open(settings.postgres, "limits")
    try:
        made = asyncio.create_task(stream.create_slot(f"{database.name}_waits", failover=False))
        done, _ = await asyncio.wait({made}, timeout=LIMIT_S * 3)
        assert not done
        await older.execute("COMMIT")
        await asyncio.wait_for(made, 10)
    finally:
        stream.close()
