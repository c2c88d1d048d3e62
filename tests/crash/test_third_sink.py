"""A sink that is neither the publisher nor the archiver receives every change exactly once, and
implements only its store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.embedded.process import tied
from headrace.lsn import Position
from headrace.testing.database import Database
from headrace.testing.oracle import Change
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.exactly_once import environment, prepare
from tests.support.slot import until_confirmed

SINK = Path(__file__).with_name("lines_sink.py")
LINES_MAX = 200
WAIT_S = 120


@contextlib.asynccontextmanager
async def running(settings: Mapping[str, str], file: Path) -> AsyncIterator[None]:
    """The sink as a process; killed at the end."""
    shell = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PG", "HEADRACE_", "NATS"))
    }
    with file.with_suffix(".log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *tied([sys.executable, SINK, file], signal.SIGKILL),
            env={**shell, **settings, "HEADRACE_HTTP_PORT": "0"},
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


def lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of the file."""
    found = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in found if line.endswith("\n")]


def rows(file: Path) -> list[Change]:
    return [
        Change(Position(*line["at"]), line["op"], line["table"])
        for line in lines(file)
        if "at" in line
    ]


async def until_rows(file: Path, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while written(file) < count:  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.1)


def written(file: Path) -> int:
    return file.read_bytes().count(b'"at":') if file.exists() else 0


async def write(database: Database, enough: asyncio.Event) -> None:
    """Transactions of several changes, until there are enough."""
    connection = await database.connect()
    first = 0
    while not enough.is_set():
        async with connection.transaction():
            await connection.execute(
                "INSERT INTO orders SELECT g, 0, 'note ' || g FROM generate_series($1::int, $2) g",
                first,
                first + 19,
            )
            await connection.execute("UPDATE orders SET n = n + 1 WHERE id >= $1", first + 10)
            await connection.execute("DELETE FROM orders WHERE id = $1", first)
        first += 20
        await asyncio.sleep(0.01)


def test_a_sink_is_short() -> None:
    assert len(SINK.read_text().splitlines()) < LINES_MAX


@pytest.mark.slow
async def test_a_sink_gets_every_change_exactly_once_whatever_is_killed(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, nats = await own_postgres(), await own_nats()
    database, oracle = await prepare(postgres)
    settings, file = environment(postgres, nats, "event"), tmp_path / "changes.jsonl"
    async with Suite(settings, tmp_path, ["wal-reader"]) as suite:
        async with running(settings, file):
            # From here on the slot has everything.
            await suite.logged("wal-reader", "epoch_opened", timeout_s=60)
        enough = asyncio.Event()
        writer = asyncio.create_task(write(database, enough), name="writer")
        for _ in range(3):
            before = written(file)
            async with running(settings, file):
                await until_rows(file, before + 300)
        await suite.kill("wal-reader")
        await suite.start("wal-reader")
        enough.set()
        await writer
        committed = await oracle.changes()
        async with running(settings, file):
            await until_rows(file, len(committed))
            await until_confirmed(database, timeout_s=WAIT_S)
    assert rows(file) == committed
    await database.close()
    assert not [line for line in lines(file) if "gap" in line]
