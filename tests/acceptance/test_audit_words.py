"""`headrace audit up` with Bemi's and Zemi's variables: its errors name these variables, and TABLES
accepts the documented forms.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from headrace.cli.audit.environment import in_their_words
from headrace.postgres.connection import explained
from headrace.settings import load
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.up import Up
from tests.support.audit_trail import bemi_variables


async def last_words(folder: Path, **environment: str) -> str:
    async with Up(folder, "--once", command=("audit", "up"), **environment) as up:
        assert await up.ends() == 1, up.output
    return up.output.splitlines()[-1]


@pytest.mark.slow
async def test_an_error_names_the_variables_that_were_set(
    database: Database, names: Names, tmp_path: Path
) -> None:
    given = bemi_variables(database, names)
    away = await last_words(tmp_path, **{**given, "DB_PORT": "9"})
    assert "Start it, or set DB_HOST and DB_PORT" in away
    assert "PG_" not in away
    unknown = await last_words(tmp_path, **{**given, "DB_NAME": "nosuch"})
    assert "Set DB_NAME to a database that exists." in unknown
    table = await last_words(tmp_path, **given, TABLES="nosuch")
    assert "TABLES=nosuch: there is no such table." in table


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "Set DB_HOST, DB_USER, DB_SSL_ROOT_CERT."),
        ({"DB_NAME": "x", "PG_HOST": "y"}, "Set DB_HOST, DB_USER, DB_SSL_ROOT_CERT."),
        ({"PG_HOST": "y"}, "Set PG_HOST, POSTGRES_BRIDGE_USER, PGSSLROOTCERT."),
    ],
)
def test_the_words_are_those_of_the_variables_in_use(environ: dict[str, str], words: str) -> None:
    assert in_their_words("Set PG_HOST, POSTGRES_BRIDGE_USER, PGSSLROOTCERT.", environ) == words


def test_a_certificate_that_is_refused_is_not_taken_for_a_server_that_is_down() -> None:
    refused = explained(
        None, "SSL error: certificate verify failed", load({"PG_HOST": "db"}).postgres
    )
    assert "PGSSLROOTCERT" in refused.remedy
    assert refused.retry, "a new certificate may come"
    assert (
        "Start it" in explained(None, "Connection refused", load({"PG_HOST": "db"}).postgres).remedy
    )


@pytest.mark.slow
async def test_a_stop_is_obeyed_before_everything_is_ready(
    database: Database, names: Names, tmp_path: Path
) -> None:
    """While the destination takes connections and does not answer; what was created is removed."""
    silent = socket.create_server(("127.0.0.1", 0))
    silent.setblocking(False)
    to = {"DEST_DB_HOST": "127.0.0.1", "DEST_DB_PORT": str(silent.getsockname()[1])}
    async with Up(tmp_path, command=("audit", "up"), **bemi_variables(database, names), **to) as up:
        async with asyncio.timeout(90):
            connected, _ = await asyncio.get_running_loop().sock_accept(silent)
        assert await database.fetchval(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", names.slot
        )
        up.process.send_signal(signal.SIGINT)
        assert await up.ends() == 0, up.output
    assert "is written to" not in up.output
    assert not await database.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", names.slot
    )
    connected.close()
    silent.close()


@pytest.mark.slow
async def test_tables_by_a_pattern_are_audited_and_no_others(
    database: Database, names: Names, tmp_path: Path
) -> None:
    await database.execute("CREATE SCHEMA app; CREATE TABLE app.kept (id int PRIMARY KEY)")
    await database.execute("CREATE TABLE left_out (id int PRIMARY KEY)")
    async with Up(
        tmp_path, command=("audit", "up"), **bemi_variables(database, names), TABLES="app.*"
    ) as up:
        await up.says("is written to")
        await database.execute(
            "CREATE TABLE app.later (id int PRIMARY KEY); INSERT INTO left_out VALUES (1)"
        )
        await database.execute("INSERT INTO app.kept VALUES (1); INSERT INTO app.later VALUES (1)")
        async with asyncio.timeout(60):
            while await database.fetchval("SELECT count(*) FROM changes") < 2:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)
        tables = await database.fetch('SELECT "table" FROM changes ORDER BY position')
        assert [row["table"] for row in tables] == ["kept", "later"]
        up.process.send_signal(signal.SIGTERM)
        assert await up.ends() == 0, up.output
