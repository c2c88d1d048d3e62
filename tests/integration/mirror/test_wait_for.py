"""After waiting for the LSN of a commit, readers of a copy see its rows: in SQL, from Python and with
the command. They get an error if the copy is not that far.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.lsn import parse_lsn
from headrace.mirror import NotVisibleError, opened, wait_for
from headrace.testing.process import command
from headrace.testing.seeded import World, running, world
from headrace.testing.servers import SessionServers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

WAIT_S = 60.0


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    tables = "CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE others (id int PRIMARY KEY)"
    async with world(session_servers, tmp_path_factory.mktemp("world"), tables) as made:
        yield made


async def committed(world: World, statement: str) -> str:
    """The position of the source after a transaction."""
    await world.source.execute(statement)
    return str(await world.source.fetchval("SELECT pg_current_wal_lsn()::text"))


async def test_a_transaction_that_was_waited_for_is_visible(world: World, tmp_path: Path) -> None:
    mirrors = await world.mirrors(tmp_path, "orders")
    path = tmp_path / "mirror.db"
    role = f"reader_{world.target.name}"
    async with running(*mirrors.values()):
        await mirrors["postgresql"].logged("event=following")
        await world.target.execute(
            f"CREATE ROLE {role}; GRANT SELECT ON orders TO {role}; GRANT USAGE ON SCHEMA public TO {role}"
        )
        connection = await world.target.connect()
        await connection.execute(f"SET ROLE {role}")
        async with opened(mirrors["sqlite"].to) as target:
            for number in range(1, 16):
                lsn = await committed(world, f"INSERT INTO orders VALUES ({number})")
                found = await connection.fetchval(
                    "SELECT headrace.wait_for($1::text::pg_lsn, '60 s')::text", lsn
                )
                assert parse_lsn(found) >= parse_lsn(lsn)
                assert await connection.fetchval("SELECT max(id) FROM orders") == number
                assert await wait_for(target, parse_lsn(lsn), WAIT_S) >= parse_lsn(lsn)
                with contextlib.closing(sqlite3.connect(path, timeout=30)) as reader:
                    assert reader.execute("SELECT max(id) FROM orders").fetchone() == (number,)
            # A wait for a change of another table ends, too.
            lsn = await committed(world, "INSERT INTO others VALUES (1)")
            await wait_for(target, parse_lsn(lsn), WAIT_S)
            lsn = await committed(world, "DELETE FROM orders")
            done = await command({}, "wait-for", lsn, "--to", target_url(path), "--timeout", "60")
            assert (done.code, parse_lsn(done.out.strip()) >= parse_lsn(lsn)) == (0, True), done.err
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as reader:
                assert reader.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="READ COMMITTED"):
            async with connection.transaction(isolation="repeatable_read"):
                await connection.fetchval("SELECT headrace.wait_for('0/0')")
        await connection.close()
    # Nobody applies changes now.
    lsn = await committed(world, "INSERT INTO orders VALUES (100)")
    with pytest.raises(asyncpg.QueryCanceledError, match="readers see everything before"):
        await world.target.execute(f"SELECT headrace.wait_for('{lsn}', '0.3 s')")
    async with opened(target_url(path)) as target:
        with pytest.raises(NotVisibleError, match=f"not {lsn}"):
            await wait_for(target, parse_lsn(lsn), 0.3)
    done = await command({}, "wait-for", lsn, "--to", target_url(path), "--timeout", "0.3")
    assert (done.code, lsn in done.err) == (1, True)
    await world.target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def target_url(path: Path) -> str:
    return f"sqlite:///{path}"
