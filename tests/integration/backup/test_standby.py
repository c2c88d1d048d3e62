"""A standby that sees only the store follows the primary, and can take over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg

from headrace.backup.programs import binaries
from headrace.backup.recovery import RestoredServer
from headrace.backup.restore import place_of
from headrace.embedded.account import unprivileged_account
from headrace.embedded.postgres import SUPERUSER
from headrace.testing.process import service
from tests.support.time_machine import DATABASE, TimeMachine

LAG_S = 60.0


@contextlib.asynccontextmanager
async def standby(folder: Path, version: int) -> AsyncIterator[RestoredServer]:
    account = unprivileged_account()
    server = RestoredServer(place_of(folder, account), binaries(None, version, account), SUPERUSER)
    server.until_promoted = False
    async with server:
        yield server
    server.discard()


def value(server: RestoredServer, query: str) -> Any:
    with psycopg.connect(server.conninfo(DATABASE), autocommit=True) as session:
        row = session.execute(query).fetchone()
        return row[0] if row else None


async def became(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(LAG_S):
        while not await asyncio.to_thread(look):  # noqa: ASYNC110  # another server gives no event
            await asyncio.sleep(0.02)


async def test_a_standby_from_the_bucket_follows_and_takes_over(machine: TimeMachine) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    await machine.backup()
    folder = machine.room / "standby"
    await machine.run("standby", "create", str(folder))
    feeder = service(machine.environment, "standby", "feed", str(folder))
    async with feeder, standby(folder, machine.server.version) as server:
        for number in range(1, 6):
            await machine.execute(f"INSERT INTO t VALUES ({number})")
            expected = number
            await became(lambda: value(server, "SELECT count(*) FROM t") == expected)  # noqa: B023
        await machine.execute("SELECT pg_switch_wal()")
        await machine.execute("INSERT INTO t SELECT generate_series(6, 5000)")
        await became(lambda: value(server, "SELECT count(*) FROM t") == 5000)
        await machine.server.kill()
        assert value(server, "SELECT pg_promote()")
        assert value(server, "INSERT INTO t VALUES (0) RETURNING 1") == 1
        assert value(server, "SELECT count(*) FROM t") == 5001
        assert not (folder / "standby.signal").exists()
