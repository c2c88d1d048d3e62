"""Sinks with a database as their target, in a running suite: the first copy, a new copy of a table
that they follow, a kill in the middle of either, and the commands of an operator.

No table needs Spark here. The oracle is the source; targets are read by their own clients.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.testing.process import command
from headrace.testing.seeded import WITH_SNAPSHOTS, World, world
from headrace.testing.servers import SessionServers
from tests.support.database_copies import KINDS, DatabaseCopy, database_copy
from tests.support.sinks import SinkProcess, sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

COLUMNS = ("id", "n", "price", "body")
TABLE = "CREATE TABLE {0} (id int PRIMARY KEY, n int, price numeric(9, 2), body text)"
ROWS = "INSERT INTO {0} SELECT g, g, g * 1.5, 'row ' || g FROM generate_series({1}, {2}) g"
KILLED_S = 90.0
COPY_S = 120.0
# By the number of the commit in its process: the table's creation, chunks, and what follows.
POINTS = ("mirror.committed:3", "mirror.before_commit:3", "mirror.committed:4")
JOURNAL_POINTS = ("mariadb.journal:2", "mariadb.journal_step:2")


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    settings = {
        "HEADRACE_SNAPSHOT_SPARK": "large",
        "HEADRACE_CHUNK_ROWS_MAX": "10",
        "HEADRACE_CATALOG_INTERVAL_S": "1",
    }
    folder = tmp_path_factory.mktemp("world")
    async with world(session_servers, folder, "", WITH_SNAPSHOTS, settings) as made:
        yield made


@async_fixture(params=KINDS, loop_scope="module", name="copy")
async def the_copy(
    world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[DatabaseCopy]:
    async with database_copy(request.param, world, tmp_path, request) as made:
        yield made


def configured(folder: Path, name: str, copy: DatabaseCopy, tables: str) -> Path:
    config = folder / "headrace.toml"
    config.write_text(f'[[sink]]\nname = "{name}"\nto = "{copy.to}"\ntables = ["{tables}"]\n')
    return config


async def killed(process: SinkProcess, point: str) -> None:
    code = await process.exit_code(KILLED_S)
    assert code == -signal.SIGKILL, f"{point}: {process.output[-3000:]}"


async def test_a_copy_continues_after_kills_and_a_table_is_replaced_while_it_changes(
    world: World, copy: DatabaseCopy, tmp_path: Path
) -> None:
    table = f"copied_{copy.kind}"
    name = f"copied-{copy.kind}"
    config = configured(tmp_path, name, copy, f"{table}*")
    log = tmp_path / f"sink-{name}.log"
    await world.source.execute(f"{TABLE.format(table)}; {ROWS.format(table, 1, 75)}")
    await world.suite.logged("schema-publisher", table, COPY_S)
    for point in POINTS:
        async with sink_process(world.environment, config, name, HEADRACE_FAILPOINT=point) as one:
            await killed(one, point)
    await world.source.execute(f"UPDATE {table} SET n = -n; {ROWS.format(table, 76, 80)}")
    async with sink_process(world.environment, config, name) as process:
        await copy.equals(world, table, COLUMNS)
        # No process started it again.
        assert log.read_text().count("event=bootstrap_loading") == 1
        # Every row changes without an event, so the table is copied again, while it changes.
        await world.source.execute(f"ALTER TABLE {table} ALTER n TYPE bigint USING n * 1000")
        for number in range(81, 121):
            await world.source.execute(
                f"{ROWS.format(table, number, number)}; "
                f"UPDATE {table} SET body = body || '!' WHERE id % 7 = {number % 7}"
            )
        await process.logged("event=bootstrap_done", COPY_S)
        await copy.equals(world, table, COLUMNS)
    # And killed in the middle of replacing the table.
    await world.source.execute(f"ALTER TABLE {table} ALTER n TYPE int USING n / 500")
    for point in (*POINTS, *(JOURNAL_POINTS if copy.kind == "mariadb" else ())):
        async with sink_process(world.environment, config, name, HEADRACE_FAILPOINT=point) as one:
            # Rows for as many commits as it takes.
            writing = asyncio.create_task(write_until_cancelled(world, table), name="writing")
            try:
                await killed(one, point)
            finally:
                writing.cancel()
    async with sink_process(world.environment, config, name) as process:
        await copy.equals(world, table, COLUMNS)
        assert "row_missing" not in log.read_text()
        assert await process.stop() == 0


async def write_until_cancelled(world: World, table: str) -> None:
    """A change now and then, whose rewrite makes the sink replace its table."""
    factor = 2
    while True:
        await asyncio.sleep(1.0)
        await world.source.execute(f"UPDATE {table} SET price = price + 1 WHERE id % 5 = 0")
        kind = "bigint" if factor == 2 else "int"
        using = "n * 2" if factor == 2 else "n / 2"
        await world.source.execute(f"ALTER TABLE {table} ALTER n TYPE {kind} USING {using}")
        factor = 3 - factor


async def test_an_operator_pauses_resumes_and_resets_a_sink_that_runs(
    world: World, copy: DatabaseCopy, tmp_path: Path
) -> None:
    table = f"operated_{copy.kind}"
    name = f"operated-{copy.kind}"
    config = configured(tmp_path, name, copy, table)

    async def sinks(*words: str, code: int = 0) -> Any:
        done = await command(world.environment, "sinks", *words, "--config", str(config), "--json")
        assert done.code == code, done.err
        return json.loads(done.out) if code == 0 else done.err

    await world.source.execute(f"{TABLE.format(table)}; {ROWS.format(table, 1, 15)}")
    await world.suite.logged("schema-publisher", table, COPY_S)
    (planned,) = await sinks("plan")
    assert (planned["promise"], planned["tables"]) == ("exactly once", [f"public.{table}"])
    (tested,) = await sinks("test", name)
    (created,) = tested["tables"]
    assert (created["source"], created["outcome"]) == (f"public.{table}", "would be created")
    async with sink_process(world.environment, config, name) as process:
        await copy.equals(world, table, COLUMNS)
        (tested,) = await sinks("test", name)
        assert [one["outcome"] for one in tested["tables"]] == ["is followed"]
        assert [one.split()[0] for one in created["columns"]] == list(COLUMNS)
        assert "keeps tables in a database" in await sinks("test", name, "--last", "5", code=1)
        (listed,) = await sinks("ls")
        assert (listed["state"], listed["promise"]) == ("active", "exactly once")
        assert listed["behind"] is not None

        await sinks("pause", name)
        assert (await sinks("ls"))[0]["state"] == "paused"
        await asyncio.sleep(3.0)
        before = await copy.rows(table, COLUMNS)
        await world.source.execute(ROWS.format(table, 16, 20))
        await asyncio.sleep(2.0)
        assert await copy.rows(table, COLUMNS) == before
        await sinks("resume", name)
        await copy.equals(world, table, COLUMNS)

        # Rows that another program has changed are right again after a new copy.
        await asyncio.to_thread(copy.read, f"DELETE FROM {table} WHERE id <= 3")
        assert "which can't begin in the middle" in await sinks(
            "reset", name, "--to", "now", code=1
        )
        await sinks("reset", name, "--to", "snapshot")
        await copy.equals(world, table, COLUMNS)
        await world.source.execute(f"DELETE FROM {table} WHERE id % 2 = 0")
        await copy.equals(world, table, COLUMNS)
        assert process.running
        assert "row_missing" not in process.output
        # While it is paused, too: it copies when it is resumed.
        await sinks("pause", name)
        await sinks("reset", name, "--to", "snapshot")
        await asyncio.to_thread(copy.read, f"DELETE FROM {table} WHERE id <= 9")
        await sinks("resume", name)
        await copy.equals(world, table, COLUMNS)
        assert process.output.count("event=sink_reset") == 2
        assert await process.stop() == 0
