"""A standby that sees only the store follows the primary, and can take over."""

from __future__ import annotations

import asyncio
import contextlib
import json
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
        await became(lambda: bool(list((machine.store / "standbys").glob("*.json"))))
        [noted] = json.loads((await machine.run("backup", "status", "--json")).out)["standbys"]
        assert noted["from"] == "store"
        assert noted["name"].endswith("-standby")
        await machine.server.kill()
        await machine.run("standby", "promote", str(folder))
        assert value(server, "INSERT INTO t VALUES (0) RETURNING 1") == 1
        assert value(server, "SELECT count(*) FROM t") == 5001
        assert not (folder / "standby.signal").exists()


async def test_a_standby_from_the_primary_takes_over_and_spares_the_old_store(
    machine: TimeMachine,
) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    await machine.stored()
    folder = machine.room / "standby"
    made = await machine.run("standby", "create", str(folder), "--from", "primary")
    assert f"headrace standby promote {folder}" in made.out
    refused = await machine.run("standby", "create", str(folder), "--from", "primary", code=1)
    assert "is not an empty folder" in refused.err
    async with standby(folder, machine.server.version) as server:
        await machine.execute("INSERT INTO t SELECT generate_series(1, 5000)")
        await became(lambda: value(server, "SELECT count(*) FROM t") == 5000)
        said = json.loads((await machine.run("backup", "status", "--json")).out)
        [lag] = said["standbys"]
        assert lag["from"] == "primary"
        assert lag["name"].startswith("headrace_standby_")
        assert lag["lag_s"] < 60
        await machine.suite.stop("wal-archiver")
        before = {path: path.read_bytes() for path in machine.store.rglob("*") if path.is_file()}
        await machine.server.kill()
        done = await machine.run("standby", "promote", str(folder))
        assert f"HEADRACE_BACKUP_URL={machine.store.as_uri()}-2" in done.out
        assert value(server, "INSERT INTO t VALUES (0) RETURNING 1") == 1
        # Its backups have another name, and the old store refuses it.
        given = {**server.environment(DATABASE), "PG_DB": DATABASE}
        refused = await machine.run("backup", "init", code=1, **given)
        assert "was restored from" in refused.err
        new = f"{machine.store.as_uri()}-2"
        await machine.run("backup", "init", code=0, **given, HEADRACE_BACKUP_URL=new)
        assert {path: path.read_bytes() for path in before} == before
        again = await machine.run("standby", "promote", str(folder), code=1)
        assert "is not the folder of a standby" in again.err
