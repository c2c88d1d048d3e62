"""The fixtures give each test its own database, and leave nothing of it on the shared server."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import psycopg
import pytest
from psycopg.pq import PGconn

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.database import Database, fresh_database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnPostgres
from headrace.testing.servers import SessionServers


@pytest.mark.parametrize("pg_version", [16, 18], indirect=True)
async def test_a_test_runs_on_the_version_it_names(database: Database, pg_version: int) -> None:
    assert (await database.fetchval("SHOW server_version")).startswith(str(pg_version))
    assert database.port == database.server.port


async def test_a_test_runs_on_18_unless_it_names_another(
    database: Database, pg_version: int
) -> None:
    assert pg_version == 18
    assert (await database.fetchval("SHOW server_version")).startswith("18")


async def test_a_database_starts_empty_and_takes_statements_and_queries(database: Database) -> None:
    assert await database.fetch("SELECT FROM pg_tables WHERE schemaname = 'public'") == []
    await database.execute("CREATE TABLE a (x int); INSERT INTO a VALUES (1)")
    await database.execute("INSERT INTO a VALUES ($1)", 2)
    other = await database.connect()
    assert await other.fetchval("SELECT sum(x) FROM a") == 3


async def test_a_database_goes_with_its_connections_and_its_slots_in_use(
    postgres_server: EmbeddedPostgres, names: Names
) -> None:
    name = names.other("doomed")
    async with fresh_database(postgres_server, name) as doomed:
        await doomed.execute(
            "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", names.slot
        )
        await doomed.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
        idle = await asyncpg.connect(doomed.dsn)
        walsender = PGconn.connect(f"{doomed.dsn}?replication=database".encode())
        options = f"proto_version '1', publication_names '{names.publication}'"
        walsender.exec_(f"START_REPLICATION SLOT {names.slot} LOGICAL 0/0 ({options})".encode())
        assert await doomed.fetchval(
            "SELECT active FROM pg_replication_slots WHERE slot_name = $1", names.slot
        )
    walsender.finish()
    idle.terminate()
    with psycopg.connect(postgres_server.dsn()) as left:
        assert (
            left.execute(
                "SELECT FROM pg_replication_slots WHERE slot_name = %s", [names.slot]
            ).fetchall()
            == []
        )
        assert left.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchall() == []


async def test_an_own_server_is_not_the_shared_one(
    own_postgres: OwnPostgres, postgres_server: EmbeddedPostgres, nats_server: EmbeddedNats
) -> None:
    own = await own_postgres()
    assert len({own.pid, postgres_server.pid, nats_server.pid}) == 3
    await own.kill()
    assert own.pgdata.is_relative_to(own.folder), "removed with the folder"
    assert postgres_server.running
    assert nats_server.running


@pytest.mark.parametrize("killed", [False, True])
def test_a_discarded_server_leaves_neither_files_nor_shared_memory(
    session_servers: SessionServers, killed: bool
) -> None:
    server = session_servers.new_postgres(18)
    server.start_blocking()
    segment = (server.pgdata / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert segment in _segments()
    if killed:
        server.kill_blocking()
        assert segment in _segments(), "a crash leaves it"
    session_servers.discard(server)
    assert segment not in _segments()
    assert not server.folder.exists()


def _segments() -> set[str]:
    """The ids of the machine's System V shared memory segments."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    return {line.split()[1] for line in lines[1:]}


def test_no_two_tests_have_a_name_in_common() -> None:
    first, second = Names.new(), Names.new()
    pairs = [
        (one.slot, one.publication, one.stream, one.subject, one.bucket) for one in (first, second)
    ]
    assert len({name for pair in pairs for name in pair}) == 10
