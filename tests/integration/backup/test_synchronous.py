"""With the synchronous mode no acknowledged commit is lost with the primary's disk."""

from __future__ import annotations

import asyncio

import asyncpg

from tests.support.time_machine import DATABASE, TimeMachine, digests


async def test_every_acknowledged_commit_survives_the_primarys_folder(machine: TimeMachine) -> None:
    await machine.execute("CREATE TABLE t (n int PRIMARY KEY)")
    await machine.begin(HEADRACE_BACKUP_SYNCHRONOUS="true", HEADRACE_BACKUP_CHUNK_INTERVAL_S="5")
    await machine.backup()
    await machine.execute("ALTER SYSTEM SET synchronous_standby_names = 'headrace_backup'")
    await machine.execute("SELECT pg_reload_conf()")
    waits = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'headrace_backup'"
    async with asyncio.timeout(60):
        while await machine.value(waits) != "sync":  # noqa: ASYNC110  # a view gives no event
            await asyncio.sleep(0.05)
    acknowledged: list[int] = []
    enough = asyncio.Event()

    async def write(client: int) -> None:
        session = await asyncpg.connect(machine.server.dsn(DATABASE))
        try:
            for number in range(client, 100_000, 4):
                await session.execute("INSERT INTO t VALUES ($1)", number)
                acknowledged.append(number)
                if len(acknowledged) >= 60:
                    enough.set()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            session.terminate()

    writers = [asyncio.create_task(write(client), name=f"writer {client}") for client in range(4)]
    await asyncio.wait_for(enough.wait(), 120)
    # Both at the same moment: nothing of the server is left to receive.
    await machine.suite.kill("wal-archiver")
    await machine.server.kill()
    await asyncio.gather(*writers)
    folder = await machine.restore()
    async with machine.serving(folder) as server:
        session = await asyncpg.connect(server.dsn(DATABASE))
        kept = {row["n"] for row in await session.fetch("SELECT n FROM t")}
        await session.close()
        assert (await digests(server.dsn(DATABASE)))["public.t"].endswith(f" {len(kept)}")
    assert set(acknowledged) <= kept
    assert len(kept - set(acknowledged)) <= 4
