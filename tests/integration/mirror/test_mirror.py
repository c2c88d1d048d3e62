"""Mirrors in SQLite and PostgreSQL hold what their source does, and the verifier finds what they
don't.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import nats
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.embedded.process import tied
from headrace.testing.database import Database
from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.scrape import figures_when
from headrace.testing.seeded import WITH_SNAPSHOTS, World, running, world
from headrace.testing.servers import SessionServers
from headrace.testing.value_cases import CASES
from tests.support.hastened import hastened

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

PAGE = Path(__file__).parents[3] / "docs/mirror.md"
# The first of them starts a JVM, perhaps on a slow machine.
BOOTSTRAP_S = 200.0
VERIFY_ONCE = ("--wait", "60")
SHAPES = (
    (
        "ALTER TABLE shaped ADD d jsonb; INSERT INTO shaped VALUES (2, 'x', 'y', 4, '{}')",
        {"id", "a", "b", "c", "d"},
    ),
    (
        "ALTER TABLE shaped RENAME a TO aa; UPDATE shaped SET aa = 'new'",
        {"id", "aa", "b", "c", "d"},
    ),
    (
        """ALTER TABLE shaped DROP c; ALTER TABLE shaped ALTER b TYPE varchar(9);
        INSERT INTO shaped VALUES (3, 'x', 'longer', '[1]')""",
        {"id", "aa", "b", "d"},
    ),
)
LARGE = "repeat(md5(random()::text), 60000)"


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A whole suite whose tables several tests share; each has its own."""
    settings = {"HEADRACE_CATALOG_INTERVAL_S": "1", "HEADRACE_SPARK_START_TIMEOUT_S": "300"}
    folder = tmp_path_factory.mktemp("world")
    async with world(session_servers, folder, "", WITH_SNAPSHOTS, settings) as made:
        yield made


async def write_values(source: Database, first: int) -> None:
    """A row for each place in the lists of edge values: all types in one row."""
    for number in range(max(len(case.values) for case in CASES)):
        literals = ", ".join(case.values[number % len(case.values)][0] for case in CASES)
        for table in ("everything", "everything_keyless"):
            await source.execute(f"INSERT INTO {table} VALUES ({first + number}, {literals})")
    needed = ", ".join(
        f'"c {number} %"' for number, case in enumerate(CASES) if "NOT NULL" in case.setup
    )
    values = ", ".join(case.values[0][0] for case in CASES if "NOT NULL" in case.setup)
    for table in ("everything", "everything_keyless"):
        await source.execute(f"INSERT INTO {table} (id, {needed}) VALUES ({first + 500}, {values})")


async def test_values_of_every_type_are_equal_in_both_targets_from_snapshot_and_events(
    world: World, tmp_path: Path
) -> None:
    source = world.source
    for case in CASES:
        if case.setup:
            await source.execute(case.setup)
    columns = ", ".join(f'"c {number} %" {case.type}' for number, case in enumerate(CASES))
    await source.execute(f"CREATE TABLE everything (id int PRIMARY KEY, {columns})")
    await source.execute(f"CREATE TABLE everything_keyless (id int, {columns})")
    await source.execute("ALTER TABLE everything_keyless REPLICA IDENTITY FULL")
    await source.execute("CREATE TABLE large (id int PRIMARY KEY, body text, n int)")
    await source.execute(f"INSERT INTO large VALUES (1, {LARGE}, 0)")
    await write_values(source, 0)
    tables = ("everything", "everything_keyless", "large")
    mirrors = [
        world.mirror(tmp_path, f"sqlite:///{tmp_path}/values.db", *tables),
        world.mirror(tmp_path, world.target.dsn, *tables),
    ]
    async with running(*mirrors):
        for mirror in mirrors:
            await mirror.logged("event=bootstrap_done", 3, timeout_s=BOOTSTRAP_S)
        await write_values(source, 1000)
        await source.execute("UPDATE everything SET id = id + 5000 WHERE id % 2 = 0")
        await source.execute("DELETE FROM everything WHERE id % 3 = 0")
        await source.execute("UPDATE everything_keyless SET id = id + 5000 WHERE id % 2 = 0")
        await source.execute("DELETE FROM everything_keyless WHERE id % 3 = 0")
        await source.execute(
            f"INSERT INTO large VALUES (2, {LARGE}, 0); UPDATE large SET n = 1 WHERE id = 1"
        )
        for mirror in mirrors:
            code, verdicts = await mirror.verified(*VERIFY_ONCE)
            assert code == 0, verdicts
            assert all(verdict["rows"] for verdict in verdicts)
            assert "row_missing" not in mirror.log


async def test_the_verifier_names_every_row_that_was_tampered_with(
    world: World, tmp_path: Path
) -> None:
    await world.source.execute("CREATE TABLE honest (id int PRIMARY KEY, n int, t text)")
    await world.source.execute(
        "INSERT INTO honest SELECT g, g, 'row ' || g FROM generate_series(1, 5000) g"
    )
    path = tmp_path / "tampered.db"
    mirror = world.mirror(tmp_path, f"sqlite:///{path}", "honest")
    async with running(mirror):
        await mirror.logged("event=bootstrap_done", timeout_s=BOOTSTRAP_S)
        assert (await mirror.verified(*VERIFY_ONCE))[0] == 0
        connection = sqlite3.connect(path, timeout=30)
        connection.execute("DELETE FROM honest WHERE id = 17")
        connection.execute("UPDATE honest SET t = 'other' WHERE id = 4000")
        connection.execute("INSERT INTO honest VALUES (9999, 1, NULL)")
        connection.commit()
        connection.close()
        code, (verdict,) = await mirror.verified(*VERIFY_ONCE)
    assert code == 3
    assert verdict["differences"] == 3
    assert sorted(verdict["found"], key=str) == sorted(
        [
            {"what": "missing", "key": ["17"], "columns": []},
            {"what": "changed", "key": ["4000"], "columns": ["t"]},
            {"what": "extra", "key": ["9999"], "columns": []},
        ],
        key=str,
    )


async def test_a_change_of_a_row_that_is_missing_bootstraps_that_table_and_no_other(
    world: World, tmp_path: Path
) -> None:
    await world.source.execute(
        "CREATE TABLE broken (id int PRIMARY KEY, n int); CREATE TABLE sound (id int PRIMARY KEY)"
    )
    await world.source.execute(
        "INSERT INTO broken VALUES (1, 1), (2, 2); INSERT INTO sound VALUES (1)"
    )
    path = tmp_path / "broken.db"
    mirror = world.mirror(tmp_path, f"sqlite:///{path}", "broken", "sound")
    async with running(mirror):
        await mirror.logged("event=bootstrap_done", 2, timeout_s=BOOTSTRAP_S)
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("DELETE FROM broken WHERE id = 2")
            connection.commit()
        await world.source.execute("INSERT INTO sound VALUES (2); UPDATE broken SET n = n + 1")
        await mirror.logged("event=row_missing table=broken")
        await mirror.logged("event=bootstrap_done", 3, timeout_s=BOOTSTRAP_S)
        assert (await mirror.verified(*VERIFY_ONCE))[0] == 0
        assert mirror.log.count("event=bootstrap_done table=sound") == 1


async def test_shapes_are_followed_and_only_what_events_cannot_carry_is_copied_again(
    world: World, tmp_path: Path
) -> None:
    await world.source.execute(
        "CREATE TABLE shaped (id int PRIMARY KEY, a text, b varchar(5), c int)"
    )
    await world.source.execute("CREATE TABLE calm (id int PRIMARY KEY)")
    await world.source.execute("INSERT INTO shaped VALUES (1, 'a', 'b', 3)")
    mirrors = [
        world.mirror(tmp_path, f"sqlite:///{tmp_path}/shaped.db", "shaped", "calm"),
        world.mirror(tmp_path, world.target.dsn, "shaped", "calm"),
    ]
    await forget(world)
    async with running(*mirrors):
        for mirror in mirrors:
            await mirror.logged("event=bootstrap_done", 2, timeout_s=BOOTSTRAP_S)
        for change, columns in SHAPES:
            await world.source.execute(change)
            await until_columns(tmp_path / "shaped.db", columns)
        for mirror in mirrors:
            assert (await mirror.verified(*VERIFY_ONCE))[0] == 0, mirror.log[-3000:]
            assert mirror.log.count("event=bootstrap_done") == 2, mirror.log
        await world.source.execute(
            "ALTER TABLE shaped ADD e int DEFAULT 5, ADD f float DEFAULT random();"
            "TRUNCATE calm; INSERT INTO calm VALUES (7)"
        )
        await world.source.execute("UPDATE shaped SET e = 6 WHERE id = 1")
        for mirror in mirrors:
            await mirror.logged("event=bootstrap_done", 3, timeout_s=BOOTSTRAP_S)
            assert (await mirror.verified(*VERIFY_ONCE))[0] == 0, mirror.log[-3000:]
            assert mirror.log.count("event=bootstrap_done table=calm") == 1


async def until_columns(path: Path, columns: set[str]) -> None:
    """Each shape has come before the next: of several changes at the same time, the publisher sees only the last."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
                found = {row[1] for row in connection.execute("PRAGMA table_info(shaped)")}
            if found == columns:
                return
            await asyncio.sleep(0.1)


async def forget(world: World) -> None:
    """The mirror's database as it was before any test."""
    await world.target.execute(
        "DROP SCHEMA IF EXISTS headrace_mirror CASCADE; DROP SCHEMA public CASCADE"
    )
    await world.target.execute("CREATE SCHEMA public")


async def test_a_mirror_that_fell_behind_the_streams_retention_bootstraps_again(
    world: World, tmp_path: Path
) -> None:
    await world.source.execute(
        "CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)"
    )
    mirror = world.mirror(tmp_path, f"sqlite:///{tmp_path}/late.db", "late")
    async with running(mirror):
        await mirror.logged("event=bootstrap_done", timeout_s=BOOTSTRAP_S)
        assert (await mirror.verified(*VERIFY_ONCE))[0] == 0
    client = await nats.connect(world.nats_url)
    try:
        js = client.jetstream()
        before = (await js.stream_info("CDC")).state.last_seq
        await world.source.execute("INSERT INTO late SELECT generate_series(2, 50)")
        async with asyncio.timeout(60):
            while (await js.stream_info("CDC")).state.last_seq < before + 49:  # noqa: ASYNC110  # a stream's size
                await asyncio.sleep(0.1)
        await js.purge_stream("CDC")
    finally:
        await client.close()
    await world.source.execute("INSERT INTO late VALUES (51)")
    async with running(mirror):
        await mirror.logged("event=fallen_behind")
        await mirror.logged("event=bootstrap_done", 2, timeout_s=BOOTSTRAP_S)
        code, (verdict,) = await mirror.verified(*VERIFY_ONCE)
        assert (code, verdict["rows"]) == (0, 51)


async def test_a_slot_that_was_lost_and_made_anew_makes_a_mirror_bootstrap_again(
    world: World, tmp_path: Path
) -> None:
    await world.source.execute(
        "CREATE TABLE holed (id int PRIMARY KEY); INSERT INTO holed VALUES (1)"
    )
    mirror, slot = (
        world.mirror(tmp_path, f"sqlite:///{tmp_path}/holed.db", "holed"),
        world.environment["HEADRACE_SLOT"],
    )
    async with running(mirror):
        await mirror.logged("event=bootstrap_done", timeout_s=BOOTSTRAP_S)
        await world.source.execute("INSERT INTO holed VALUES (2)")
        assert (await mirror.verified(*VERIFY_ONCE))[0] == 0
        await world.suite.stop("wal-reader")
        # Changes that are in no slot are in no stream either.
        await world.source.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        await world.source.execute("INSERT INTO holed VALUES (3); DELETE FROM holed WHERE id = 1")
        await world.suite.start("wal-reader")
        await mirror.logged("event=bootstrap_done", 2, timeout_s=BOOTSTRAP_S)
        await world.source.execute("INSERT INTO holed VALUES (4)")
        code, (verdict,) = await mirror.verified(*VERIFY_ONCE)
        assert (code, verdict["rows"]) == (0, 3)
        assert "a gap in the stream" in mirror.log


async def test_a_restart_goes_on_without_a_bootstrap_and_readers_see_whole_transactions(
    world: World, tmp_path: Path
) -> None:
    await world.source.execute("CREATE TABLE accounts (id int PRIMARY KEY, n int)")
    await world.source.execute("INSERT INTO accounts SELECT g, 100 FROM generate_series(1, 10) g")
    path = tmp_path / "accounts.db"
    mirror = world.mirror(tmp_path, f"sqlite:///{path}", "accounts")
    async with running(mirror):
        await mirror.logged("event=bootstrap_done", timeout_s=BOOTSTRAP_S)
    moving = asyncio.create_task(move(world, 300))
    sums = set()
    async with running(mirror):
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            while not moving.done():
                sums.add(connection.execute("SELECT sum(n) FROM accounts").fetchone()[0])
                await asyncio.sleep(0.01)
        await moving
        assert (await mirror.verified(*VERIFY_ONCE))[0] == 0
    assert sums == {1000}
    assert mirror.log.count("event=bootstrap_done") == 1


async def move(world: World, times: int) -> None:
    connection = await world.source.connect()
    for number in range(times):
        async with connection.transaction():
            await connection.execute("UPDATE accounts SET n = n - 7 WHERE id = $1", number % 10 + 1)
            await connection.execute(
                "UPDATE accounts SET n = n + 7 WHERE id = $1", (number + 3) % 10 + 1
            )


async def test_batches_are_followed_too(world: World, tmp_path: Path) -> None:
    await world.source.execute(
        "CREATE TABLE b1 (id int PRIMARY KEY, n int); CREATE TABLE b2 (id int PRIMARY KEY, n int)"
    )
    await world.suite.stop("publisher")
    await world.suite.start("publisher", HEADRACE_DELIVERY="batch", HEADRACE_BATCH_EVENTS_MAX="7")
    mirror = world.mirror(tmp_path, f"sqlite:///{tmp_path}/batches.db", "b1", "b2")
    try:
        async with running(mirror):
            await mirror.logged("event=bootstrap_done", 2, timeout_s=BOOTSTRAP_S)
            for table in ("b1", "b2"):
                await world.source.execute(
                    f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 500) g"
                )
            await mirror.kill()
            await mirror.start()
            for table in ("b2", "b1"):
                await world.source.execute(
                    f"UPDATE {table} SET n = n + 1; DELETE FROM {table} WHERE id % 5 = 0"
                )
            code, verdicts = await mirror.verified(*VERIFY_ONCE)
            assert (code, [verdict["rows"] for verdict in verdicts]) == (0, [400, 400])
    finally:
        await world.suite.stop("publisher")
        await world.suite.start("publisher")


async def test_a_table_that_is_not_there_is_refused_in_one_line(
    world: World, tmp_path: Path
) -> None:
    mirror = world.mirror(tmp_path, f"sqlite:///{tmp_path}/nosuch.db", "nosuch")
    await mirror.start()
    assert await mirror.ended(60) == 1
    assert "no snapshot of nosuch: public.nosuch doesn't exist" in mirror.log


async def behind_while_locked(world: World, mirror: MirrorProcess, path: Path) -> None:
    """A target that takes nothing leaves the mirror behind in sight, until it takes something
    again.
    """
    await figures_when(mirror.log, lambda now: now["headrace_mirror_behind_messages"] == 0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        await world.source.execute("INSERT INTO seen VALUES (2)")
        await figures_when(mirror.log, lambda now: now["headrace_mirror_behind_seconds"] > 0)
        await mirror.logged("part=target")
    await figures_when(
        mirror.log,
        lambda now: (
            now["headrace_mirror_behind_messages"] == 0 == now["headrace_mirror_behind_seconds"]
        ),
    )


async def test_both_commands_serve_health_and_figures(world: World, tmp_path: Path) -> None:
    await world.source.execute(
        "CREATE TABLE seen (id int PRIMARY KEY); INSERT INTO seen VALUES (1)"
    )
    to = f"sqlite:///{tmp_path}/seen.db"
    mirror = MirrorProcess(
        world.environment, tmp_path, "served", to, "--table", "seen", "--http", "0"
    )
    mirror.program = hastened({"headrace.mirror.sqlite.BUSY_TIMEOUT_S": 1})
    async with running(mirror):
        await mirror.logged("event=bootstrap_done", timeout_s=BOOTSTRAP_S)
        await mirror.logged("event=ready")
        now = await figures_when(mirror.log, lambda now: now["headrace_mirror_tables"] == 1)
        assert (now["headrace_mirror_unfollowed"], now["headrace_mirror_waiting"]) == (0, 0)
        assert (now["headrace_mirror_bootstraps_total"], now["headrace_mirror_rows_total"]) == (
            1,
            1,
        )
        await behind_while_locked(world, mirror, tmp_path / "seen.db")
        # Continuously, as a service: until it is stopped.
        verifier = MirrorProcess(
            world.environment, tmp_path, "verifier", to, "--every", "1", "--http", "0"
        )
        verifier.command = "verify"
        async with running(verifier):
            await verifier.logged("event=verified", 2)
            port = (
                verifier.log.partition("event=http_listening")[2].partition("port=")[2].split()[0]
            )
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{port}/metrics") as answer,
            ):
                assert 'headrace_verify_differences{service="verify"' in await answer.text()


async def test_the_target_of_the_page_is_a_mirror_that_survives_being_killed(
    world: World, tmp_path: Path
) -> None:
    """The page's own example, as it stands: only the server's address is the test's."""
    text = PAGE.read_text()
    (snippet,) = re.findall(r"<!-- run -->\n```python\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "own_target.py"
    program.write_text(snippet.replace("nats://127.0.0.1:4222", world.nats_url))
    await world.source.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    await world.source.execute(
        "INSERT INTO users SELECT g, 'user ' || g FROM generate_series(1, 100) g"
    )
    for life in range(3):
        process = await asyncio.create_subprocess_exec(
            *tied([sys.executable, program], signal.SIGKILL), cwd=tmp_path
        )
        try:
            await until_file_holds(tmp_path / "users.json", await users(world))
            await world.source.execute(
                f"UPDATE users SET name = name || '{life}' WHERE id % 7 = {life}"
            )
            await world.source.execute(f"DELETE FROM users WHERE id % 10 = {life}")
            await world.source.execute(f"INSERT INTO users VALUES ({1000 + life}, NULL)")
        finally:
            process.kill()
            await process.wait()
    assert len(await users(world)) == 73


async def users(world: World) -> list[tuple[int, str]]:
    return [
        tuple(row) for row in await world.source.fetch("SELECT id, name FROM users ORDER BY id")
    ]


async def until_file_holds(path: Path, rows: list[tuple[int, str]]) -> None:
    async with asyncio.timeout(BOOTSTRAP_S):
        while held(path) != rows:  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.2)


def held(path: Path) -> list[tuple[int, str]]:
    tables = json.loads(path.read_text())["tables"] if path.exists() else {}
    return sorted((row["id"], row["name"]) for row in tables.get("public.users", []))
