"""A user's mistake ends a service with one clear line and the remedy; a service waits for problems
that may be temporary.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.ports import free_port
from headrace.testing.database import Database, fresh_database
from headrace.testing.names import Names
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite

EXIT_ERROR = 1
EXIT_S = 60.0
NATS_USERS = """
authorization { users: [
  {user: admin, password: a}
  {user: mute, password: m, permissions: {publish: ["headrace.>", "_INBOX.>"], subscribe: [">"]}}
] }
"""


@pytest.fixture
def settings(database: Database, server: EmbeddedNats, names: Names) -> dict[str, str]:
    return {
        **database.environment(server.url),
        **names.settings,
        "HEADRACE_NATS_RECONNECT_WAIT_S": "0.1",
        "HEADRACE_PROGRESS_INTERVAL_S": "0.1",
    }


async def refused(
    settings: dict[str, str], folder: Path, *words: str, service: str = "wal-reader"
) -> None:
    """The service ends on its own, with one line that has these words."""
    async with Suite(settings, folder, services=("publisher", "wal-reader")) as suite:
        assert await suite.exit_code(service, EXIT_S) == EXIT_ERROR
        failures = [
            line for line in suite.log(service).splitlines() if "event=service_failed" in line
        ]
        assert len(failures) == 1, suite.log(service)
        assert [word for word in words if word not in failures[0]] == [], failures[0]
        assert "Traceback" not in suite.log(service)


def said_in(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.log"))


async def test_a_missing_publication_is_refused_with_the_remedy(
    settings: dict[str, str], tmp_path: Path
) -> None:
    await refused(
        settings, tmp_path, "does not exist", "headrace init", "CREATE PUBLICATION", "--pub"
    )


@pytest.mark.parametrize("two_phase", [True, False])
async def test_a_slot_with_two_phase_or_of_another_database_is_refused_with_the_remedy(
    database: Database, settings: dict[str, str], names: Names, tmp_path: Path, two_phase: bool
) -> None:
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    async with fresh_database(database.server, names.other("neighbour")) as neighbour:
        await (database if two_phase else neighbour).execute(
            "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, $2)",
            names.slot,
            two_phase,
        )
        words = ("two_phase", "pg_drop_replication_slot") if two_phase else (neighbour.name,)
        await refused(settings, tmp_path, *words, "--slot")
        slot = "SELECT plugin FROM pg_replication_slots WHERE slot_name = $1"
        assert await database.fetchval(slot, names.slot) == "pgoutput", "it is still there"


@pytest.mark.parametrize("pg_version", [16], indirect=True)
async def test_a_publication_that_is_younger_than_the_slots_changes_is_refused_with_the_remedy(
    database: Database, settings: dict[str, str], names: Names, tmp_path: Path
) -> None:
    made = f"CREATE PUBLICATION {names.publication} FOR ALL TABLES"
    await database.execute(f"CREATE TABLE t (id int PRIMARY KEY); {made}")
    await database.fetchval("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", names.slot)
    # The first change is decoded before PostgreSQL 16 finds no publication at the second.
    await database.execute("INSERT INTO t VALUES (1)")
    await database.execute(f"DROP PUBLICATION {names.publication}")
    await database.execute("INSERT INTO t VALUES (2)")
    await database.execute(made)
    await refused(settings, tmp_path, "does not exist", "drop the slot")


async def test_a_role_without_replication_is_refused_with_the_remedy(
    database: Database, settings: dict[str, str], names: Names, role: str, tmp_path: Path
) -> None:
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    await refused({**settings, "POSTGRES_BRIDGE_USER": role}, tmp_path, "REPLICATION")


async def test_a_wrong_password_is_refused_with_the_setting_and_never_shown(
    own_postgres: OwnPostgres, server: EmbeddedNats, tmp_path: Path
) -> None:
    postgres = await own_postgres(settings={"password_encryption": "scram-sha-256"})
    connection = await asyncpg.connect(postgres.dsn())
    await connection.execute("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'right'")
    (postgres.pgdata / "pg_hba.conf").write_text(
        "host all headrace all trust\nhost all reader all scram-sha-256\n"
    )
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()
    settings = {
        **postgres.environment(),
        "PG_DB": "postgres",
        "NATS_URL": server.url,
        "POSTGRES_BRIDGE_USER": "reader",
        "POSTGRES_BRIDGE_PASSWORD": "swordfish",
    }
    await refused(settings, tmp_path, "password authentication failed", "POSTGRES_BRIDGE_PASSWORD")
    assert "swordfish" not in said_in(tmp_path)


async def test_wal_level_replica_is_refused_with_the_remedy(
    own_postgres: OwnPostgres, server: EmbeddedNats, tmp_path: Path
) -> None:
    postgres = await own_postgres(settings={"wal_level": "replica"})
    connection = await asyncpg.connect(postgres.dsn())
    await connection.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    await connection.close()
    settings = {**postgres.environment(), "PG_DB": "postgres", "NATS_URL": server.url}
    await refused(settings, tmp_path, "wal_level", "wal_level = logical", "restart PostgreSQL")


async def with_nats_user(
    own_nats: OwnNats, settings: dict[str, str], user: str, password: str
) -> dict[str, str]:
    """Settings for a user of a server that checks users."""
    server = await own_nats(config=NATS_USERS)
    named = {"NATS_BRIDGE_USER": user, "NATS_BRIDGE_PASSWORD": password}
    return {**settings, "NATS_URL": server.url, **named}


async def test_a_nats_user_without_rights_on_the_stream_is_told_what_an_administrator_must_run(
    database: Database, own_nats: OwnNats, settings: dict[str, str], tmp_path: Path
) -> None:
    as_mute = await with_nats_user(own_nats, settings, "mute", "m")
    await refused(as_mute, tmp_path, "stream CDC", "nats stream add CDC", service="publisher")


async def test_wrong_nats_credentials_are_refused_with_the_setting(
    own_nats: OwnNats, settings: dict[str, str], tmp_path: Path
) -> None:
    wrong = await with_nats_user(own_nats, settings, "admin", "wrong")
    await refused(
        wrong, tmp_path, "refuses these credentials", "NATS_BRIDGE_PASSWORD", service="publisher"
    )


async def test_a_setting_that_can_not_be_used_ends_the_process_before_it_connects(
    settings: dict[str, str], tmp_path: Path
) -> None:
    async with Suite({**settings, "PG_PORT": "many"}, tmp_path, services=("wal-reader",)) as suite:
        assert await suite.exit_code("wal-reader", EXIT_S) == EXIT_ERROR
        assert (
            suite.log("wal-reader")
            == "headrace: PG_PORT='many' is not valid. Set PG_PORT to a whole number.\n"
        )


async def test_servers_that_are_down_are_waited_for_by_name_and_found_when_they_come(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres = await own_postgres()
    connection = await asyncpg.connect(postgres.dsn())
    await connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    await connection.close()
    port = free_port()
    await postgres.stop()
    settings = {
        **postgres.environment(),
        "PG_DB": "postgres",
        "NATS_URL": f"nats://127.0.0.1:{port}",
    }
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", f"NATS at nats://127.0.0.1:{port} can't be reached")
        nats = await own_nats(port=port)
        await suite.logged(
            "wal-reader", f"PostgreSQL at 127.0.0.1:{postgres.port} is not available now"
        )
        await postgres.start()
        await suite.logged("publisher", "epoch_joined", timeout_s=30)
        connection = await asyncpg.connect(postgres.dsn())
        await connection.execute("INSERT INTO t VALUES (1)")
        await connection.close()
        async with asyncio.timeout(20):
            while not [e for e in await stored(nats.url) if e.payload["operation"] == "INSERT"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_sigterm_confirms_what_was_delivered_and_a_restart_repeats_nothing(
    database: Database, settings: dict[str, str], names: Names, tmp_path: Path
) -> None:
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t"
    )
    url = settings["NATS_URL"]
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await database.execute("INSERT INTO t SELECT generate_series(1, 20000)")
        written = await database.fetchval("SELECT pg_current_wal_lsn()")
        started = asyncio.get_running_loop().time()
        assert await suite.stop("wal-reader") == 0
        assert await suite.stop("publisher") == 0
        assert asyncio.get_running_loop().time() - started < 10
        delivered = [e for e in await stored(url) if e.payload["operation"] == "INSERT"]
        query = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1"
        confirmed = await database.fetchval(query, names.slot)
        assert (len(delivered) < 20_000) or confirmed >= written
        # The rest, not read before the stop, comes now, and nothing twice.
        await database.execute("INSERT INTO t SELECT generate_series(20001, 20010)")
        await suite.start("wal-reader")
        await suite.start("publisher")
        async with asyncio.timeout(30):
            while (  # noqa: ASYNC110
                len(found := [e for e in await stored(url) if e.payload["operation"] == "INSERT"])
                < 20_010
            ):
                await asyncio.sleep(0.1)
    assert [event.payload["data"]["id"] for event in found] == list(range(1, 20_011))
