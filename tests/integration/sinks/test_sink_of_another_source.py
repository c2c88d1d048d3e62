"""A target that is still there from another PostgreSQL server, under the same slot and sink."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.exactly_once import environment
from tests.support.sinks import SinkProcess, commanded, events_of, sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@asynccontextmanager
async def line(
    own_postgres: OwnPostgres, own_nats: OwnNats, folder: Path, config: Path, segments: int
) -> AsyncIterator[tuple[Database, SinkProcess, dict[str, str]]]:
    """A new database whose log begins this far, a new stream, and the sink."""
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    for _ in range(segments):
        await database.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
    await database.execute(
        "CREATE TABLE shop (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    settings = environment(postgres, server, "event")
    async with Suite(settings, folder) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        if not segments:
            # More than the former stream had.
            await database.execute("INSERT INTO shop SELECT generate_series(101, 120)")
        await suite.logged("publisher", "epoch_joined")
        await asyncio.sleep(2)
        async with sink_process(settings, config, "files") as sink:
            yield database, sink, settings
    await database.close()


EARLY = range(101, 121)


async def inserted(database: Database, target: Path, number: int) -> None:
    await database.execute("INSERT INTO shop VALUES ($1)", number)
    async with asyncio.timeout(60):
        while number not in ids(target):  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.1)


def ids(target: Path) -> list[int]:
    return [one["data"]["id"] for one in events_of(target) if one["operation"] == "INSERT"]


async def test_a_target_of_another_server_is_refused_until_it_is_reset_and_nothing_is_left_out(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    for folder in (target, tmp_path / "first", tmp_path / "second", tmp_path / "third"):
        folder.mkdir()
    config = tmp_path / "headrace.toml"
    config.write_text(
        f'[[sink]]\nname = "files"\nto = "{target.as_uri()}"\nbatch = {{wait_ms = 50}}\n'
    )
    # Its positions are beyond those of the second server.
    async with line(own_postgres, own_nats, tmp_path / "first", config, 8) as (first, sink, _):
        await inserted(first, target, 1)
        # The name of the server is stored with a later commit.
        await asyncio.sleep(2)
        await inserted(first, target, 2)
        assert await sink.stop() == 0
    async with line(own_postgres, own_nats, tmp_path / "second", config, 0) as (second, sink, env):
        await second.execute("INSERT INTO shop VALUES (3)")
        await sink.logged("belongs to the PostgreSQL server")
        assert sink.running
        assert ids(target) == [1, 2]
        await commanded(env, config, "sinks", "reset", "files", "--to", "start")
        await inserted(second, target, 4)
    assert ids(target) == [1, 2, *EARLY, 3, 4]
    async with line(own_postgres, own_nats, tmp_path / "third", config, 0) as (third, sink, _):
        await third.execute("INSERT INTO shop VALUES (5)")
        await sink.logged("belongs to the PostgreSQL server")
