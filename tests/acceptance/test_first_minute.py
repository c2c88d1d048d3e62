"""A newcomer's first minute: `headrace up` in an empty folder, as a real process on real servers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import asyncpg
import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.up import Up, ready

# Each starts and stops a whole suite.
pytestmark = pytest.mark.slow

ORDER = ("wal-reader", "publisher", "snapshot-responder", "schema-publisher", "telemetry")


def port_of(server: str, output: str) -> str:
    found = re.search(rf"{server} listens on 127\.0\.0\.1:(\d+)", output)
    assert found, output
    return found[1]


def stopped_at(folder: Path, service: str) -> str:
    lines = (folder / ".headrace/logs" / f"{service}.log").read_text().splitlines()
    return next(line.split()[0] for line in reversed(lines) if "event=service_stopped" in line)


async def test_up_shows_changes_and_a_table_and_a_second_one_goes_on_with_the_data(
    empty_folder: Path,
) -> None:
    async with Up(empty_folder, "--once") as first:
        assert await first.ends() == 0, first.output
    for operation in ("insert", "update", "delete"):
        assert f"cdc.headrace_demo.{operation}" in first.output
    assert '{"id": 1, "name": "lamp", "price": "17.50", "tags": ["new"]}' in first.output
    for what in (
        "PostgreSQL",
        "NATS",
        *ORDER,
        "psql 'postgresql://",
        "nats --server nats://",
        "Ctrl-C",
    ):
        assert what in first.output
    assert "\x1b" not in first.output, "no colours where there is no terminal"
    assert first.survivors() == []

    async with Up(empty_folder, "--once") as second:
        assert await second.ends() == 0, second.output
    assert re.search(r"still contains \d+ messages", second.output)
    assert '"id": 3' in second.output, "the table continues where it was"
    for server in ("PostgreSQL", "nats-server"):
        assert port_of(server, second.output) == port_of(server, first.output)
    assert second.survivors() == []


async def test_ctrl_c_stops_everything_in_order_and_leaves_no_process(running: Up) -> None:
    running.process.send_signal(signal.SIGINT)
    assert await running.ends() == 0, running.output
    assert running.survivors() == []
    times = [stopped_at(running.folder, service) for service in ORDER]
    assert times == sorted(times), "the reader first, what it feeds after it"
    assert running.output.index("services stopped") < running.output.index("nats-server stopped")
    assert running.output.index("nats-server stopped") < running.output.index("PostgreSQL stopped")


async def test_a_second_ctrl_c_kills_what_still_runs_and_says_so(running: Up) -> None:
    row = re.search(r"publisher +http://\S+ +(\d+)", running.output)
    assert row
    # It hears no request to stop.
    os.kill(int(row[1]), signal.SIGSTOP)
    running.process.send_signal(signal.SIGINT)
    await running.says("waiting for publisher to stop; Ctrl-C again kills it")
    running.process.send_signal(signal.SIGINT)
    assert await running.ends() == 0, running.output
    assert "✓ The services were killed\n" in running.output
    assert "in this order" not in running.output
    assert running.survivors() == []


async def test_the_doctor_warns_of_nothing_on_the_servers_of_up(running: Up) -> None:
    command = ". .headrace/env && headrace doctor"
    shell = await asyncio.create_subprocess_shell(
        command, cwd=running.folder, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await shell.communicate()
    assert shell.returncode == 0, said.decode()
    assert re.search(r"^All \d+ checks passed\.$", said.decode(), re.MULTILINE), said.decode()


async def test_a_service_that_is_killed_comes_back_and_a_second_up_is_refused(running: Up) -> None:
    row = re.search(r"publisher +(http://\S+) +(\d+)", running.output)
    assert row
    os.kill(int(row[2]), signal.SIGKILL)
    await running.says(r"publisher ended \(killed by SIGKILL\); restarting it")
    async with Up(running.folder) as other:
        assert await other.ends() == 1
    assert re.fullmatch(r"headrace: headrace up already runs in .*\n", other.output)
    assert str(running.process.pid) in other.output
    await ready(row[1])
    publishers = [line for line in running.survivors() if line.endswith("headrace.cli publisher")]
    assert len(publishers) == 1, "never two of one service"
    assert not publishers[0].startswith(f"{row[2]} ")


async def test_nothing_outlives_an_up_that_is_killed_and_the_next_one_starts(running: Up) -> None:
    running.process.kill()
    assert await running.ends() == -signal.SIGKILL
    await running.leaves_nothing()
    async with Up(running.folder, "--once") as next_one:
        assert await next_one.ends() == 0, next_one.output


async def test_the_psql_command_that_up_shows_connects_and_no_secret_is_shown(running: Up) -> None:
    shown = re.search(r"psql '(postgresql://[^']+)'", running.output)
    assert shown
    connection = await asyncpg.connect(shown[1])
    try:
        assert await connection.fetchval("SELECT count(*) FROM headrace_demo") == 1
    finally:
        await connection.close()
    secret = (running.folder / ".headrace/postgres.password").read_text()
    assert secret not in running.output
    for name in ("postgres.password", "pgpass", "env"):
        assert (running.folder / ".headrace" / name).stat().st_mode & 0o077 == 0, (
            f"{name} is for its owner only"
        )


async def test_the_archive_that_up_keeps_is_found_from_another_terminal(empty_folder: Path) -> None:
    async with Up(empty_folder, "--once", "--archive", f"file://{empty_folder}/archive") as up:
        assert await up.ends() == 0, up.output
    command = ". .headrace/env && headrace archive cat"
    shell = await asyncio.create_subprocess_shell(
        command, cwd=empty_folder, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await shell.communicate()
    assert shell.returncode == 0
    assert b'"lamp"' in said


async def test_servers_that_the_environment_names_are_used_and_none_is_started(
    empty_folder: Path, database: Database, own_nats: OwnNats, names: Names
) -> None:
    nats: EmbeddedNats = await own_nats()
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    environment = {
        **database.environment(nats.url),
        **names.settings,
    }
    async with Up(empty_folder, "--once", **environment) as up:
        assert await up.ends() == 0, up.output
    assert f"127.0.0.1:{database.port}/{database.name}" in up.output
    assert not (empty_folder / ".headrace/postgres").exists()
    assert not (empty_folder / ".headrace/nats").exists()
    assert await database.fetch("SELECT 1 FROM pg_class WHERE relname = 'headrace_demo'") == []
    assert nats.running


async def test_a_server_that_can_not_be_reached_is_one_line_with_the_remedy(
    empty_folder: Path,
) -> None:
    async with Up(
        empty_folder, "--once", NATS_URL="nats://127.0.0.1:9", PG_HOST="127.0.0.1", PG_PORT="9"
    ) as up:
        assert await up.ends() == 1
    last = up.output.splitlines()[-1]
    assert last.startswith("headrace: PostgreSQL at 127.0.0.1:9 is not available now")
    assert "set PG_HOST" in last
    assert "Traceback" not in up.output
