"""`headrace verify` tells a person in one line what kept it from an answer, and never calls unknown
equal.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.process import command

HEADRACE = Path(sys.executable).with_name("headrace")
UNDER_WAY = {
    "schema": "public",
    "name": "users",
    "phase": "wanted",
    "live": None,
    "run": None,
    "why": "new",
}


def mirror_in_its_bootstrap(path: Path) -> None:
    marks = {"mirror": json.dumps({"format": 1, "id": "x"}), "table users": json.dumps(UNDER_WAY)}
    with sqlite3.connect(path, timeout=30) as file:
        file.execute("CREATE TABLE headrace_mirror (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        file.executemany("INSERT INTO headrace_mirror VALUES (?, ?)", marks.items())
    file.close()


@pytest.mark.parametrize("there", [False, True], ids=["no file", "no mirror in it"])
async def test_what_is_no_mirror_is_told_in_one_line_and_not_made(
    nats_server: EmbeddedNats, tmp_path: Path, *, there: bool
) -> None:
    path = tmp_path / "users.db"
    if there:
        sqlite3.connect(path, timeout=30).execute("CREATE TABLE users (id int)").connection.close()
    found = await command({"NATS_URL": nats_server.url}, "verify", "--to", f"sqlite:///{path}")
    assert (found.code, found.out) == (1, "")
    assert found.err.startswith(f"headrace: SQLite file {path} ")
    assert "`headrace mirror" in found.err
    assert found.err.count("\n") == 1
    assert path.exists() == there


async def test_a_database_without_a_mirror_is_told_too(
    nats_server: EmbeddedNats, database: Database
) -> None:
    environment = {**database.server.environment(), "NATS_URL": nats_server.url}
    to = f"postgresql://{environment['PGUSER']}@{environment['PGHOST']}:{environment['PGPORT']}/{database.name}"
    found = await command(environment, "verify", "--to", to)
    assert found.code == 1
    assert found.err.startswith("headrace: the database contains no mirror. ")


async def test_a_verify_that_is_interrupted_ends_soon_and_calls_nothing_equal(
    nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    path = tmp_path / "users.db"
    mirror_in_its_bootstrap(path)
    environment = {**os.environ, "NATS_URL": nats_server.url, "HEADRACE_LOG_LEVEL": "debug"}
    process = await asyncio.create_subprocess_exec(
        HEADRACE,
        "verify",
        "--to",
        f"sqlite:///{path}",
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"nats_connected" not in await process.stderr.readline():
                assert process.returncode is None
            process.send_signal(signal.SIGINT)
            told = (await process.stderr.read()).decode()
            assert await process.wait() == 1
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "shutdown_waits" not in told
