"""`headrace audit up` with only Zemi's variables, and the commands that read the trail it writes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.embedded.ports import free_port
from headrace.embedded.process import tied
from headrace.testing.database import Database
from headrace.testing.process import command

_FOREIGN = ("PG", "HEADRACE_", "NATS", "DB_", "DEST_", "POSTGRES_")


class Running:
    """The command, and the trail it writes."""

    def __init__(self, database: Database, environment: Mapping[str, str]) -> None:
        self.database = database
        self.environment = environment

    async def audit(self, *arguments: str) -> str:
        """What `headrace audit …` prints."""
        outcome = await command(self.environment, "audit", *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    async def log(self, *arguments: str) -> list[dict[str, object]]:
        return [
            json.loads(line)
            for line in (await self.audit("log", "--json", *arguments)).splitlines()
        ]

    async def until(self, rows: int) -> None:
        deadline = time.monotonic() + 60
        while await self.database.fetchval("SELECT count(*) FROM changes") < rows:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


@async_fixture
async def running(database: Database, tmp_path: Path) -> AsyncIterator[Running]:
    """`headrace audit up` on this database, stopped in order at the end; then its slot is gone."""
    slot = f"slot_{database.name}"
    environment = {
        "DB_HOST": "127.0.0.1",
        "DB_PORT": str(database.port),
        "DB_NAME": database.name,
        "DB_USER": database.user,
        "DB_PASSWORD": "postgres",
        "SLOT_NAME": slot,
        "PUBLICATION_NAME": "trail",
        "LOG_LEVEL": "warn",
        "CLEANUP_ON_SHUTDOWN": "true",
        "HEALTH_PORT": str(free_port()),
        "HEADRACE_AUDIT_PORT": str(free_port()),
        "METRICS_PORT": str(free_port()),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    process = await asyncio.create_subprocess_exec(
        *tied([Path(sys.executable).with_name("headrace"), "audit", "up"], signal.SIGTERM),
        env={**inherited, **environment},
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    told = b""
    async with asyncio.timeout(180):
        while b"is written to" not in told:
            line = await process.stdout.readline()
            assert line, told.decode()
            told += line
    yield Running(database, environment)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        rest, _ = await process.communicate()
    assert process.returncode == 0, rest.decode()
    assert (
        await database.fetchval(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", slot
        )
        == 0
    )
    assert await database.fetchval("SELECT count(*) FROM pg_publication") == 0


@pytest.mark.slow
async def test_one_command_with_zemis_variables_keeps_a_trail_that_the_commands_read_and_undo(
    running: Running,
) -> None:
    execute = running.database.execute
    await execute(
        "CREATE TABLE users (id bigint PRIMARY KEY, name text, age int, tags text[], doc jsonb)"
    )
    await execute(
        "INSERT INTO users VALUES (42, 'Ann', 30, '{a,\"b c\"}', '{\"x\": 1.5}'), (43, 'Bob', 40, "
        "NULL, NULL)"
    )
    await running.until(2)
    before = await running.database.fetchval("SELECT max(committed_at) FROM changes")
    await execute(
        "BEGIN; SELECT pg_logical_emit_message(true, '_bemi', '{\"user_id\": 7}');"
        "UPDATE users SET name = 'O''Brien', age = 31 WHERE id = 42; UPDATE users SET id = 44 "
        "WHERE id = 43; COMMIT"
    )
    await execute("DELETE FROM users WHERE id = 42")
    await running.until(5)

    page = f"http://127.0.0.1:{running.environment['HEADRACE_AUDIT_PORT']}/audit"
    async with aiohttp.ClientSession() as http, http.get(page) as answer:
        assert answer.status == 200

    assert [one["operation"] for one in await running.log("--table", "users", "--key", "42")] == [
        "DELETE",
        "UPDATE",
        "CREATE",
    ]
    of_user = await running.log("--context", "user_id=7")
    assert [one["primary_key"] for one in of_user] == ["44", "42"]
    assert "O'Brien" in await running.audit("show", str(of_user[1]["id"]))
    assert '+ name: "O\'Brien"' in await running.audit("diff", str(of_user[1]["id"]))
    # A new row has no old values and a deleted one no new ones: they are not unknown.
    made, deleted = (await running.log("--table", "users", "--key", "42"))[::-2]
    assert "\n- " not in await running.audit("diff", str(made["id"]))
    assert "\n+ " not in await running.audit("diff", str(deleted["id"]))
    slip = await command(running.environment, "audit", "show", "42")
    assert (slip.code, slip.err.startswith("headrace: '42' is not a change's id. ")) == (1, True)
    was = json.loads(
        await running.audit("at", before.isoformat(), "--table", "users", "--key", "42")
    )
    assert was == {"id": 42, "name": "Ann", "age": 30, "tags": '{a,"b c"}', "doc": {"x": 1.5}}
    gone = await command(
        running.environment, "audit", "at", "0s", "--table", "users", "--key", "42"
    )
    assert (gone.code, "did not exist" in gone.err) == (1, True)
    assert "users" in await running.audit("stats")

    # The delete first, then everything of that context: the rows are as they were at the beginning.
    deleted = (await running.log("--operation", "delete"))[0]
    assert "INSERT INTO" in await running.audit("revert", "--id", str(deleted["id"]))
    await running.audit("revert", "--id", str(deleted["id"]), "--apply")
    await running.audit("revert", "--context", "user_id=7", "--apply")
    rows = await running.database.fetch("SELECT id, name, age, tags, doc FROM users ORDER BY id")
    assert [tuple(row) for row in rows] == [
        (42, "Ann", 30, ["a", "b c"], '{"x": 1.5}'),
        (43, "Bob", 40, None, None),
    ]
    await running.until(8)
    assert (await running.log())[0]["context"] != {}
    assert await running.database.fetchval('SELECT count(DISTINCT "table") FROM changes') == 1

    await the_example_shows_its_context(running)
    await both_ports_answer(running)


async def the_example_shows_its_context(running: Running) -> None:
    example = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__).parents[2] / "examples/python/audit_context.py",
        running.database.dsn,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await example.communicate()
    assert "UPDATE: shipped, by bob in POST /shipments" in out.decode()


async def both_ports_answer(running: Running) -> None:
    async with aiohttp.ClientSession() as http:
        for port, path, words in (
            ("HEALTH_PORT", "/any", "ok"),
            ("METRICS_PORT", "/metrics", "headrace_audit_rows"),
        ):
            async with http.get(f"http://127.0.0.1:{running.environment[port]}{path}") as answer:
                assert (answer.status, words in await answer.text()) == (200, True)
