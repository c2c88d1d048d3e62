"""Two of everything: if one is killed, the other takes over within seconds, and nothing is lost or
duplicated.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from nats.errors import Error as NatsError

from headrace.embedded.account import unprivileged_account
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_install import postgres_binaries
from headrace.testing.clusters import leader_of, nats_cluster
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Oracle, Stored, stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.proxy import Proxy
from headrace.testing.servers import SessionServers
from headrace.testing.suite import Suite

pytestmark = pytest.mark.slow
WAIT_S = 90.0
# On a machine that does nothing else it takes two to four.
TAKEOVER_S = 30.0


async def delivered(url: str, count: int, timeout_s: float = WAIT_S) -> list[Stored]:
    """Every row of the stream, once there are so many."""
    found: list[Stored] = []
    async with asyncio.timeout(timeout_s):
        while len(found) < count:
            with contextlib.suppress(NatsError, OSError):
                found = [
                    e for e in await stored(url) if e.payload["operation"] in ("INSERT", "GAP")
                ]
            await asyncio.sleep(0.2)
    return found


async def prepare(database: Database) -> Oracle:
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR TABLE t"
    )
    return await Oracle.begun(database)


async def insert(database: Database, first: int, count: int) -> None:
    await database.execute(
        "INSERT INTO t SELECT g FROM generate_series($1::int, $2::int) g", first, first + count - 1
    )


async def test_a_standby_takes_over_within_seconds_when_the_active_one_is_killed(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    oracle = await prepare(database)
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    (tmp_path / "standby").mkdir()
    standby = Suite(environment, tmp_path / "standby", services=())
    async with Suite(environment, tmp_path) as active, standby:
        await active.logged("publisher", "epoch_joined")
        for service in ("wal-reader", "publisher"):
            await standby.start(service)
            await standby.logged(service, "standing by")
        rows = 0
        for service in ("wal-reader", "publisher"):
            await insert(database, rows, 1000)
            await active.kill(service)
            began = time.monotonic()
            await insert(database, rows + 1000, 10)
            rows += 2000
            await delivered(server.url, rows // 2000 * 1010, TAKEOVER_S)
            print(f"{service}: taken over in {time.monotonic() - began:.1f} s")
        found = await delivered(server.url, 2020)
        assert [event.change for event in found] == await oracle.changes()
    await database.close()


@pytest.fixture
async def pair(
    session_servers: SessionServers, own_postgres: OwnPostgres
) -> AsyncIterator[tuple[EmbeddedPostgres, ...]]:
    """A primary, and a physical standby that keeps the primary's failover slots."""
    primary = await own_postgres(version=18)
    database = Database(primary, "postgres")
    await database.execute("SELECT pg_create_physical_replication_slot('standby')")
    standby = session_servers.new_postgres(18)
    standby.folder.mkdir(parents=True, exist_ok=True)
    account = unprivileged_account()
    pgdata = standby.pgdata
    command = [
        str(postgres_binaries(18, account) / "pg_basebackup"),
        *(
            "-D",
            str(pgdata),
            "-d",
            f"host=127.0.0.1 port={primary.port} user=headrace",
            "-X",
            "stream",
            "-c",
            "fast",
        ),
    ]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    standby.settings |= {
        "primary_conninfo": f"host=127.0.0.1 port={primary.port} user=headrace dbname=postgres",
        "primary_slot_name": "standby",
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
    }
    (pgdata / "standby.signal").touch()
    if account is not None:
        for path in (pgdata, *pgdata.rglob("*")):
            account.own(path)
    await standby.start()
    await database.close()
    try:
        yield primary, standby
    finally:
        session_servers.discard(standby)


async def test_a_failover_slot_survives_the_primary_and_the_line_goes_on_at_the_promoted_standby(
    pair: tuple[EmbeddedPostgres, EmbeddedPostgres], own_nats: OwnNats, tmp_path: Path
) -> None:
    primary, standby = pair
    server = await own_nats()
    database = Database(primary, "postgres")
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR TABLE t"
    )
    serving = primary
    async with Proxy(lambda: serving.port) as address:
        environment = {
            **SETTINGS,
            **primary.environment(),
            "PG_DB": "postgres",
            "PGPORT": str(address.port),
            "NATS_URL": server.url,
            "HEADRACE_SLOT_FAILOVER": "true",
        }
        async with Suite(environment, tmp_path) as suite:
            await suite.logged("publisher", "epoch_joined")
            await insert(database, 0, 1000)
            await delivered(server.url, 1000)
            await _slot_is_synced(standby, database)
            # Only the standby got this from the primary: it has to come from there.
            await suite.kill("wal-reader")
            await insert(database, 1000, 500)
            await _replayed(standby, await database.fetchval("SELECT pg_current_wal_lsn()::text"))
            await primary.kill()
            await suite.start("wal-reader")
            promoted = Database(standby, "postgres")
            assert await promoted.fetchval("SELECT pg_promote()")
            serving = standby
            await insert(promoted, 2000, 500)
            found = await delivered(server.url, 2000)
            assert [event.payload["data"]["id"] for event in found] == [
                *range(1500),
                *range(2000, 2500),
            ]
            await promoted.close()
    await database.close()


async def _slot_is_synced(standby: EmbeddedPostgres, primary: Database) -> None:
    """Wait until the standby has the slot, ready to be used after a promotion."""
    async with asyncio.timeout(WAIT_S):
        while True:
            # A slot is synced as it moves; a running transaction's record is what moves it on an
            # idle server.
            await primary.execute("SELECT pg_log_standby_snapshot()")
            connection = await asyncpg.connect(standby.dsn())
            ready = await connection.fetchval(
                "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = "
                "'headrace'"
            )
            await connection.close()
            if ready:
                return
            await asyncio.sleep(0.5)


async def _replayed(standby: EmbeddedPostgres, lsn: str) -> None:
    connection = await asyncpg.connect(standby.dsn())
    try:
        async with asyncio.timeout(WAIT_S):
            while not await connection.fetchval(  # noqa: ASYNC110
                f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn"
            ):
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


@pytest.fixture
async def cluster(session_servers: SessionServers) -> AsyncIterator[list[EmbeddedNats]]:
    async with nats_cluster(session_servers) as servers:
        yield servers


async def test_with_three_replicas_leaders_are_killed_under_load_one_loses_its_disk_and_nothing_is_lost(
    own_postgres: OwnPostgres, cluster: list[EmbeddedNats], tmp_path: Path
) -> None:
    postgres = await own_postgres()
    database = Database(postgres, "postgres")
    oracle = await prepare(database)
    urls = ",".join(server.url for server in cluster)
    environment = {
        **SETTINGS,
        **database.environment(urls),
        "HEADRACE_REPLICAS": "3",
        "HEADRACE_ACK_TIMEOUT_S": "5",
        "HEADRACE_LEASE_TTL_S": "3",
    }
    async with Suite(environment, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined", timeout_s=WAIT_S)
        for round_ in range(2):
            writing = asyncio.create_task(_trickle(database, round_ * 3000, 3000))
            await asyncio.sleep(0.5)
            leader = await leader_of(cluster, "CDC")
            await leader.kill()
            await writing
            others = [server for server in cluster if server is not leader]
            await delivered(others[0].url, (round_ + 1) * 3000)
            if round_:
                # Its disk is gone with it: the two others have everything.
                shutil.rmtree(leader.folder / "jetstream")
            await leader.start()
            await leader_of(cluster, "CDC")
        await insert(database, 100_000, 10)
        found = await delivered(cluster[0].url, 6010)
        assert [event.change for event in found] == await oracle.changes()
        assert suite.running("wal-reader")
    await database.close()


async def _trickle(database: Database, first: int, count: int) -> None:
    for start in range(first, first + count, 50):
        await insert(database, start, 50)
        await asyncio.sleep(0.03)
