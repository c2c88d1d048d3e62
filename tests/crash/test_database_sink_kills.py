"""A sink with a database as its target is killed at its steps while rows and columns change, and
then equals its source.

The verifier compares with PostgreSQL's own text; MariaDB's rows are read by its own client, too.
HEADRACE_SINK_KILLS (`./taskw test:sinks`) sets how often it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.testing.mariadb import MariadbServer
from headrace.testing.mirror_process import different, verified
from headrace.testing.seeded import World, seed, world
from headrace.testing.servers import SessionServers
from tests.support.sink_kills import KILLS
from tests.support.sinks import sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

KINDS = ("sqlite", "duckdb", "postgresql", "mariadb")
POINTS = ("mirror.before_commit", "mirror.committed")
GROUP_POINTS = ("mirror.in_group",)
JOURNAL_POINTS = ("mariadb.journal", "mariadb.journal_step", "mariadb.journal_end")
KILL_TIMEOUT_S = 90.0
VERIFY_ATTEMPTS = 4
TABLES = """
CREATE TABLE {0}_orders (id bigint PRIMARY KEY, body text, n int, at timestamptz, doc jsonb,
                         price numeric(12, 2));
ALTER TABLE {0}_orders ALTER body SET STORAGE EXTERNAL;
CREATE TABLE {0}_pairs (a int, b text, n int, v0 int, PRIMARY KEY (a, b));
CREATE TABLE {0}_keyless (n int, t text);
ALTER TABLE {0}_keyless REPLICA IDENTITY FULL;
"""
# Each is one transaction; {1} is its number, and {2} that of a column which the publisher has seen
# for long: if it finds a new column gone in the catalog, tables are copied, which needs Spark.
ROUND = (
    """INSERT INTO {0}_orders SELECT {1} * 100 + g, repeat(md5(g::text), 100), g, now(),
           jsonb_build_object('g', g), g * 1.5 FROM generate_series(1, 20) g;
       INSERT INTO {0}_pairs SELECT {1}, 'b ' || g, g FROM generate_series(1, 5) g;
       INSERT INTO {0}_keyless VALUES ({1}, 'x'), ({1}, 'x'), ({1}, NULL)""",
    """UPDATE {0}_orders SET n = n + 1 WHERE id % 3 = 0 AND id > ({1} - 3) * 100;
       UPDATE {0}_pairs SET b = b || '''' WHERE a = {1};
       DELETE FROM {0}_orders WHERE id % 7 = 0;
       DELETE FROM {0}_keyless WHERE ctid IN (SELECT min(ctid) FROM {0}_keyless)""",
    """INSERT INTO {0}_orders (id, n) VALUES ({1} * 100 + 50, 1);
       ALTER TABLE {0}_orders ADD extra_{1} text;
       UPDATE {0}_orders SET extra_{1} = 'new' WHERE id % 2 = 0 AND id > ({1} - 3) * 100;
       INSERT INTO {0}_pairs VALUES ({1}, 'after', 0)""",
    """UPDATE {0}_orders SET id = id + 1000000 WHERE id = {1} * 100 + 50;
       ALTER TABLE {0}_orders DROP COLUMN IF EXISTS extra_{2};
       UPDATE {0}_orders SET price = price + 1 WHERE id % 5 = 0 AND id > ({1} - 3) * 100;
       TRUNCATE {0}_keyless;
       INSERT INTO {0}_keyless VALUES ({1}, 'again');
       UPDATE {0}_pairs SET n = n + 1 WHERE a > {1} - 3""",
)
# Now and then: if the catalog has another name by the time that the publisher asks, it copies, too.
RENAME = """
ALTER TABLE {0}_pairs RENAME v{1} TO v{2};
UPDATE {0}_pairs SET v{2} = {2} WHERE n = 3
"""


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    tables = "".join(TABLES.format(f"of_{kind}") for kind in KINDS)
    async with world(session_servers, tmp_path_factory.mktemp("world"), tables) as made:
        yield made


async def write_rounds(world: World, kind: str, numbers: count[int], enough: asyncio.Event) -> None:
    """Transactions one after the other, whole rounds of them."""
    while not enough.is_set():
        number = next(numbers)
        # A change of a table is dear to a busy server, and catching up must not take minutes.
        for statements in ROUND[: 4 if number % 4 == 0 else 2]:
            await world.source.execute(statements.format(f"of_{kind}", number, max(0, number - 8)))
            await asyncio.sleep(0.5)
        if number % 10 == 0:
            await world.source.execute(RENAME.format(f"of_{kind}", number // 10 - 1, number // 10))


def place_of(kind: str, world: World, folder: Path, mariadb: str) -> str:
    return {
        "postgresql": world.target.dsn,
        "mariadb": mariadb,
    }.get(kind, f"{kind}:///{folder}/copy.{kind}")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_database_equals_its_source_though_its_sink_is_killed_at_each_step(
    world: World, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    mariadb = request.getfixturevalue("mariadb_database") if kind == "mariadb" else ""
    to = place_of(kind, world, tmp_path, mariadb)
    names = [("public", f"of_{kind}_{name}") for name in ("orders", "pairs", "keyless")]
    await seed(to, world.source, world.environment["HEADRACE_SLOT"], names)
    config = tmp_path / "headrace.toml"
    config.write_text(f'[[sink]]\nname = "{kind}"\nto = "{to}"\ntables = ["of_{kind}_*"]\n')
    points = (*POINTS, *{"mariadb": JOURNAL_POINTS, "postgresql": GROUP_POINTS}.get(kind, ()))
    chance = random.Random(7)
    numbers = count(1)
    enough = asyncio.Event()
    writer = asyncio.create_task(write_rounds(world, kind, numbers, enough), name="writer")
    for kill in range(max(KILLS, len(points))):
        point = f"{points[kill % len(points)]}:{chance.randint(1, 3)}"
        async with sink_process(
            world.environment, config, kind, HEADRACE_FAILPOINT=point
        ) as process:
            code = await process.exit_code(KILL_TIMEOUT_S)
            assert code == -signal.SIGKILL, f"{point}: {process.output[-3000:]}"
    enough.set()
    await writer
    async with sink_process(world.environment, config, kind) as last:
        code, verdicts = await verdicts_on(world, to)
        assert code == 0, (different(verdicts), last.output[-3000:])
        assert {verdict["table"] for verdict in verdicts} == {name for _, name in names}
        assert "row_missing" not in last.output
        assert await last.stop() == 0
    if kind == "mariadb":
        await compare_by_the_own_client(world, request, to)


async def verdicts_on(world: World, to: str) -> tuple[int, list[dict[str, Any]]]:
    """The verdicts, once the sink has caught up far enough for a comparison."""
    for _ in range(VERIFY_ATTEMPTS - 1):
        with contextlib.suppress(AssertionError):
            return await verified(world.environment, to)
    return await verified(world.environment, to)


async def compare_by_the_own_client(world: World, request: pytest.FixtureRequest, to: str) -> None:
    server: MariadbServer = request.getfixturevalue("mariadb")
    columns = "id, n, price, md5(body)"
    printed = server.asked(
        f"SELECT {columns} FROM of_mariadb_orders ORDER BY id", to.rpartition("/")[2]
    )
    rows = await world.source.fetch(
        "SELECT concat_ws(E'\\t', id, coalesce(n::text, 'NULL'), coalesce(price::text, 'NULL'), "
        "coalesce(md5(body), 'NULL')) FROM of_mariadb_orders ORDER BY id"
    )
    assert printed.splitlines() == [row[0] for row in rows]
    assert rows
