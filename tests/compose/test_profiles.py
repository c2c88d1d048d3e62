"""Every profile of `compose.yaml` whose images packages can make, all at the same time.

The profile `logs` is missing here: no package registry has Loki and Alloy.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import psycopg
import pytest

from tests.compose.conftest import PATIENCE_S, Checkout, commands_with

PROFILES = ("archive", "audit", "backup", "console", "lake", "mirror", "sinks", "sql")
ROWS = 500
PYTHON = "/usr/bin/python3"
# The mirror may not have the table yet.
MIRRORED = (
    "import sqlite3; c = sqlite3.connect('file:/mirror/mirror.db?mode=ro', uri=True);"
    "there = [*c.execute('SELECT 1 FROM sqlite_master WHERE name = ?', ('profiled',))];"
    "print(*(r[0] for r in c.execute('SELECT id FROM profiled ORDER BY id')) if there else ())"
)
IN_FILES = (
    "import io, json, pathlib, zstandard\n"
    "for file in sorted(pathlib.Path('/sinks/files').rglob('*.ndjson.zst')):\n"
    "    raw = zstandard.ZstdDecompressor().stream_reader(file.open('rb'), read_across_frames=True)\n"
    "    for event in map(json.loads, io.TextIOWrapper(raw)):\n"
    "        if event.get('table') == 'profiled' and event.get('operation') == 'INSERT':\n"
    "            print(event['data']['id'])"
)


@pytest.fixture(scope="module")
def started(checkout: Checkout, page: list[str]) -> str:
    """The output of Compose while it starts all of them."""
    if not (checkout.folder / ".env").exists():
        checkout.shell(commands_with(page, "env.sh"))
    with (checkout.folder / ".env").open("a") as env:
        env.write("HEADRACE_ARCHIVE_URL=file:///archive\nHEADRACE_AUDIT=true\n")
    chosen = [word for profile in PROFILES for word in ("--profile", profile)]
    print(f"\n$ docker compose {' '.join(chosen)} up --detach --wait", flush=True)
    return checkout.compose(*chosen, "up", "--detach", "--wait", errors=True)


@pytest.fixture(scope="module")
def rows(checkout: Checkout, started: str) -> list[int]:
    """The keys of a table that everything must have."""
    sql = (
        "CREATE TABLE profiled (id int PRIMARY KEY);"
        f" INSERT INTO profiled SELECT generate_series(1, {ROWS})"
    )
    checkout.compose("exec", "postgres", "psql", "-U", "postgres", "headrace", "-c", sql)
    return [*range(1, ROWS + 1)]


def test_every_service_is_healthy_and_no_image_of_the_project_was_pulled(
    checkout: Checkout, started: str
) -> None:
    states = {name: each["State"] for name, each in checkout.containers().items()}
    ended = {name: state["ExitCode"] for name, state in states.items() if "Health" not in state}
    assert ended == {"init": 0, "backup-init": 0}
    health = {
        name: state["Health"]["Status"] for name, state in states.items() if "Health" in state
    }
    assert set(health.values()) == {"healthy"}, health
    assert {"archiver", "lake-writer", "sql-server", "sink", "wal-archiver"} <= health.keys()
    assert "pull" not in started.lower()


def ids_in(checkout: Checkout, service: str, program: str) -> list[int]:
    return [int(word) for word in checkout.compose("exec", service, PYTHON, "-c", program).split()]


def test_the_trail_the_mirror_and_the_files_of_a_sink_have_every_row_once(
    checkout: Checkout, rows: list[int]
) -> None:
    trail = (
        "SELECT string_agg(after ->> 'id', ' ' ORDER BY (after ->> 'id')::int)"
        " FROM headrace_audit.changes WHERE \"table\" = 'profiled'"
    )
    psql = ("exec", "postgres", "psql", "-U", "postgres", "headrace", "-Atc", trail)
    checkout.wait_until(
        "the trail has every row", lambda: checkout.compose(*psql).split() == [*map(str, rows)]
    )
    checkout.wait_until(
        "the mirror has every row", lambda: ids_in(checkout, "mirror", MIRRORED) == rows
    )
    checkout.wait_until(
        "the files have every row", lambda: ids_in(checkout, "sink", IN_FILES) == rows
    )


def test_sql_over_the_lake_has_every_row(
    checkout: Checkout, page: list[str], rows: list[int]
) -> None:
    (command,) = [
        line for line in commands_with(page, "sql users add").splitlines() if "add" in line
    ]
    password = checkout.shell(command).split()[-1]

    def has_every_row() -> bool:
        with psycopg.connect(
            f"host=127.0.0.1 port=5440 dbname=lake user=ann password={password}", autocommit=True
        ) as client:
            try:
                found = client.execute("SELECT id FROM profiled ORDER BY id").fetchall()
            except psycopg.errors.UndefinedTable:
                return False
        return [row[0] for row in found] == rows

    checkout.wait_until("the lake has every row", has_every_row)


async def asked(checkout: Checkout, path: str) -> dict[str, Any]:
    """The console's answer to somebody with its token."""
    headers = {"Authorization": f"Bearer {checkout.password('HEADRACE_CONSOLE_TOKEN')}"}
    limit = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=limit) as http,
        http.get(f"http://127.0.0.1:9087/api/v1/{path}") as answer,
    ):
        text = await answer.text()
        assert answer.status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found


async def test_the_console_shows_the_lake_and_the_backups(
    checkout: Checkout, page: list[str], rows: list[int]
) -> None:
    # After the test above, the lake has the table.
    tables = await asked(checkout, "lake/tables")
    assert "public.profiled" in {item["table"] for item in tables["items"]}, tables
    assert (await asked(checkout, "lake"))["cuts"]
    checkout.shell("docker compose run --rm base-backup")
    assert len((await asked(checkout, "backups"))["items"]) == 1
