"""A mirror in PostgreSQL may be the source of another suite."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from headrace.testing.seeded import PUBLICATION, World, running, seed, world
from headrace.testing.servers import SessionServers
from headrace.testing.suite import LINE, Suite

SETUP = "CREATE TABLE orders (id int PRIMARY KEY, n int, note text)"
SCRIPT = (
    "INSERT INTO orders SELECT g, g, 'gone' FROM generate_series(1, 500) g",
    "TRUNCATE orders",
    "INSERT INTO orders SELECT g, g, 'note ' || g FROM generate_series(1, 500) g",
    "UPDATE orders SET n = n + 1 WHERE id % 3 = 0",
    "UPDATE orders SET id = id + 1000, note = NULL WHERE id % 5 = 0",
    "DELETE FROM orders WHERE id % 7 = 0",
)
ROWS = "SELECT id, n, note FROM orders ORDER BY id"
PATIENCE_S = 120.0


@pytest.mark.slow
async def test_changes_arrive_in_a_mirror_of_a_mirror(
    session_servers: SessionServers, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with world(session_servers, tmp_path / "first", SETUP) as first:
        to = first.target.dsn
        await seed(to, first.source, first.environment["HEADRACE_SLOT"], [("public", "orders")])
        await first.target.execute(PUBLICATION)
        second = await second_suite(session_servers, first)
        async with Suite(second, tmp_path / "second", LINE) as suite:
            await suite.logged("publisher", "epoch_joined")
            path = tmp_path / "second.db"
            last = f"sqlite:///{path}"
            await seed(last, first.target, second["HEADRACE_SLOT"], [("public", "orders")])
            near = first.mirror(tmp_path, to, "orders")
            far = World(first.target, first.target, second, suite, "").mirror(
                tmp_path, last, "orders"
            )
            async with running(near, far):
                for statement in SCRIPT:
                    await first.source.execute(statement)
                wanted = [tuple(row) for row in await first.source.fetch(ROWS)]
                async with asyncio.timeout(PATIENCE_S):
                    while rows(path) != wanted:  # a file gives no event
                        assert near.runs, near.log
                        assert far.runs, far.log
                        await asyncio.sleep(0.2)
    assert "row_missing" not in near.log + far.log


def rows(path: Path) -> list[tuple[int, int, str | None]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(ROWS).fetchall()


async def second_suite(session_servers: SessionServers, first: World) -> dict[str, str]:
    server = session_servers.new_nats()
    await server.start()
    return {
        **first.environment,
        **first.target.environment(server.url),
        "HEADRACE_SLOT": f"s_{first.target.name}",
        "HEADRACE_EXCLUDE": "headrace_mirror.*",
        "HEADRACE_CATALOG_INTERVAL_S": "0.2",
    }
