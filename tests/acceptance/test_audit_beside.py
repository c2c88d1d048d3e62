"""`headrace audit up` in the environment of a running suite: its stream is followed, its slot is
left alone.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from headrace.testing.up import Up

pytestmark = pytest.mark.slow

COUNT = "SELECT count(*) FROM changes WHERE \"table\" = 'orders'"
READERS = "SELECT slot_name::text, active_pid FROM pg_replication_slots WHERE active ORDER BY 1"


@pytest.fixture
async def database(running: Up) -> AsyncIterator[asyncpg.Connection]:
    shown = re.search(r"psql '(postgresql://[^']+)'", running.output)
    assert shown
    connection = await asyncpg.connect(shown[1])
    await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, what text)")
    yield connection
    await connection.close()


async def sourced(folder: Path) -> dict[str, str]:
    """The variables of the file that `up` writes for another terminal."""
    lines = (folder / ".headrace/env").read_text().splitlines()
    names = [line.removeprefix("export ").partition("=")[0] for line in lines]
    shell = await asyncio.create_subprocess_exec(
        "sh", "-c", ". .headrace/env && env -0", cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await shell.communicate()
    given = dict(entry.split("=", 1) for entry in out.decode().split("\0") if "=" in entry)
    return {name: given[name] for name in names}


async def _count(database: asyncpg.Connection) -> int:
    there = await database.fetchval("SELECT to_regclass('public.changes')")
    return 0 if there is None else int(await database.fetchval(COUNT))


async def written(database: asyncpg.Connection, rows: int) -> None:
    async with asyncio.timeout(60):
        while await _count(database) < rows:  # noqa: ASYNC110  # a table gives no event
            await asyncio.sleep(0.05)
    assert await database.fetchval(COUNT) == rows


async def test_in_a_suites_environment_the_trail_follows_the_suites_stream(
    running: Up, database: asyncpg.Connection
) -> None:
    await database.execute("INSERT INTO orders VALUES (1, 'before')")
    before = await database.fetch(READERS)
    environment = await sourced(running.folder)
    async with Up(
        running.folder, command=("audit", "up"), **environment, CLEANUP_ON_SHUTDOWN="true"
    ) as trail:
        await trail.says("follows the suite of slot headrace, through its stream CDC")
        await trail.says("is written to")
        await database.execute("UPDATE orders SET what = 'after'")
        await written(database, 2)
        trail.process.send_signal(signal.SIGINT)
        assert await trail.ends() == 0, trail.output
    assert await database.fetch(READERS) == before, (
        "the suite's slot has had the same reader all the time"
    )
    assert await database.fetchval("SELECT count(*) FROM pg_publication") == 1
    # The address of the suite's page is that of the next start, too: what is kept is the trail's
    # place.
    await database.execute("DELETE FROM orders")
    async with Up(running.folder, command=("audit", "up"), **environment) as trail:
        await written(database, 3)

    own = Up(running.folder, "--once", command=("audit", "up"), **environment, SLOT_NAME="other")
    async with own as refused:
        assert await refused.ends() == 1
    assert "a suite already delivers to nats://127.0.0.1:" in refused.output
    assert "Unset SLOT_NAME to follow that suite" in refused.output
    assert await database.fetch(READERS) == before


async def test_with_a_nats_of_its_own_the_trail_never_takes_the_slot_of_a_suite_whose_environment_it_has(
    running: Up, database: asyncpg.Connection, tmp_path: Path
) -> None:
    before = await database.fetch(READERS)
    environment = await sourced(running.folder)
    del environment["NATS_URL"]
    async with Up(tmp_path, command=("audit", "up"), **environment) as trail:
        await trail.says("is written to")
        await database.execute("INSERT INTO orders VALUES (1, 'row')")
        await written(database, 1)
        both = await database.fetch(READERS)
        assert [row["slot_name"] for row in both] == ["headrace", "headrace_audit"]
        assert both[:1] == before
        trail.process.send_signal(signal.SIGINT)
        assert await trail.ends() == 0, trail.output
