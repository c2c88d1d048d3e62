"""Mirrors of a suite with options: arrays as lists, columns left out; and their answer to a gap
event and to a hole in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from pytest_asyncio import fixture as async_fixture

from headrace.contract.events import decode, encode
from headrace.contract.subjects_and_ids import GAP_SUBJECT
from headrace.contract.values import Encoding
from headrace.lsn import format_lsn
from headrace.mirror.mirror_state import tables_of
from headrace.testing.seeded import WITH_SNAPSHOTS, World, running, world
from headrace.testing.servers import SessionServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

# The first of them starts a JVM, perhaps on a slow machine.
BOOTSTRAP_S = 200.0
VERIFY_ONCE = ("--wait", "60")


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    settings = {
        "HEADRACE_SPARK_START_TIMEOUT_S": "300",
        "HEADRACE_ARRAYS": "list",
        "HEADRACE_EXCLUDE_COLUMNS": "chosen.secret",
    }
    folder = tmp_path_factory.mktemp("world")
    async with world(session_servers, folder, "", WITH_SNAPSHOTS, settings) as made:
        yield made


async def test_lists_are_compared_as_such_and_columns_left_out_are_nowhere(
    world: World, tmp_path: Path
) -> None:
    source = world.source
    await source.execute(
        "CREATE TABLE chosen "
        "(id int PRIMARY KEY, secret text, tags text[], grid int[][], at timestamptz[], n "
        "numeric[])"
    )
    arrays = """ARRAY['a,"b', NULL, '{x}', ''], '{{1,2},{NULL,4}}', ARRAY[now(), 'infinity'], '{1.50,NaN}'"""
    await source.execute(
        f"INSERT INTO chosen SELECT g, 'hidden', {arrays} FROM generate_series(1, 20) g"
    )
    await source.execute("INSERT INTO chosen VALUES (100, 'hidden', '{}', NULL, '{}', '{}')")
    path = tmp_path / "chosen.db"
    mirrors = [
        world.mirror(tmp_path, f"sqlite:///{path}", "chosen"),
        world.mirror(tmp_path, world.target.dsn, "chosen"),
    ]
    async with running(*mirrors):
        for mirror in mirrors:
            await mirror.logged("event=bootstrap_done", timeout_s=BOOTSTRAP_S)
        await source.execute(
            f"INSERT INTO chosen SELECT g, 'hidden', {arrays} FROM generate_series(30, 40) g"
        )
        await source.execute(
            "UPDATE chosen SET secret = 'other', tags = tags || 'more'::text WHERE id % 2 = 0"
        )
        await source.execute(
            "UPDATE chosen SET secret = 'only' WHERE id = 3; DELETE FROM chosen WHERE id = 5"
        )
        for mirror in mirrors:
            code, (verdict,) = await mirror.verified(*VERIFY_ONCE)
            assert (code, verdict["rows"]) == (0, 31), mirror.log[-3000:]
            assert "row_missing" not in mirror.log
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(chosen)")]
    assert columns == ["id", "tags", "grid", "at", "n"]
    in_postgres = await world.target.fetchval("SELECT tags[1] FROM chosen WHERE id = 30")
    assert in_postgres == 'a,"b'


async def test_after_a_gap_what_was_copied_before_its_end_is_copied_again_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    source = world.source
    for table in ("older", "younger"):
        await source.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)"
        )
    path = tmp_path / "gap.db"
    older, both = (
        world.mirror(tmp_path, f"sqlite:///{path}", *tables)
        for tables in (["older"], ["older", "younger"])
    )
    async with running(older):
        await older.logged("event=bootstrap_done table=older", timeout_s=BOOTSTRAP_S)
    async with running(both):
        await both.logged("event=bootstrap_done table=younger", timeout_s=BOOTSTRAP_S)
        since = await shown_since(path, "younger")
        assert since["older"] < since["younger"]
        # A change that the stream lost, which no event will ever bring.
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("DELETE FROM older")
            connection.commit()
        await tell_of_a_gap(world, since["older"], since["younger"])
        await both.logged('event=bootstrap_wanted table=older why="a gap in the stream"')
        await both.logged("event=bootstrap_done table=older", 2, timeout_s=BOOTSTRAP_S)
        code, verdicts = await both.verified(*VERIFY_ONCE)
        assert (code, [verdict["rows"] for verdict in verdicts]) == (0, [1, 1])
        assert both.log.count("event=bootstrap_done table=younger") == 1
        # The gap is reported again, as after a restart: both have been copied since.
        await tell_of_a_gap(world, since["older"], since["younger"])
        await source.execute("INSERT INTO older VALUES (2); INSERT INTO younger VALUES (2)")
        assert (await both.verified(*VERIFY_ONCE))[0] == 0
        assert both.log.count("event=bootstrap_done") == 3


async def shown_since(path: Path, table: str) -> dict[str, int]:
    """The LSNs of the tables' copies, once this one is committed, which its log does not wait for."""
    async with asyncio.timeout(BOOTSTRAP_S):
        while not states(path)[table].since:  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.1)
    return {token: state.since for token, state in states(path).items()}


def states(path: Path) -> Any:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        return tables_of(dict(connection.execute("SELECT key, value FROM headrace_mirror")))


async def tell_of_a_gap(world: World, after: int, up_to: int) -> None:
    """As the publisher tells it, of all that committed in between."""
    body = {
        "subject": GAP_SUBJECT,
        "operation": "GAP",
        "msg_id": f"{up_to:x}-_gap",
        "source": world.environment["HEADRACE_SLOT"],
        "after": format_lsn(after),
        "up_to": format_lsn(up_to),
        "reason": "slot_moved",
        "lsn": up_to,
        "tx": {"xid": 0, "lsn": up_to, "ts": None, "seq": 0, "last": False},
    }
    client = await nats.connect(world.nats_url)
    await client.jetstream().publish(GAP_SUBJECT, encode(body, Encoding.MSGPACK))
    await client.close()


@pytest.mark.parametrize("tables", [("holes",), ()], ids=["one table", "every table"])
async def test_a_mirror_copies_its_tables_again_where_the_stream_has_a_hole(
    world: World, tmp_path: Path, tables: tuple[str, ...]
) -> None:
    await world.source.execute(
        "DROP TABLE IF EXISTS holes;"
        "CREATE TABLE holes (id int PRIMARY KEY); INSERT INTO holes VALUES (1)"
    )
    path = tmp_path / "holes.db"
    mirror = world.mirror(tmp_path, f"sqlite:///{path}", *tables)
    async with running(mirror):
        await mirror.logged("event=bootstrap_done table=holes", timeout_s=BOOTSTRAP_S)
    await world.source.execute("INSERT INTO holes SELECT generate_series(2, 10)")
    client = await nats.connect(world.nats_url)
    try:
        js = client.jetstream()
        last = await until_stored(js, "holes", 10)
        gaps = await stored_gaps(js)
        await js.delete_msg("CDC", last - 4)
        # The publisher's report, which must not reach another test.
        async with asyncio.timeout(60):
            while await stored_gaps(js) == gaps:  # noqa: ASYNC110  # a stream's size
                await asyncio.sleep(0.1)
    finally:
        await client.close()
    async with running(mirror):
        await mirror.logged("event=fallen_behind")
        await mirror.logged("event=bootstrap_done table=holes", 2, timeout_s=BOOTSTRAP_S)
        # All tables that were copied again are shown together.
        await until_equal(path, "SELECT id FROM holes ORDER BY id", [(n,) for n in range(1, 11)])


async def until_equal(path: Path, query: str, wanted: list[tuple[int]]) -> None:
    """Wait until readers of the file see these rows."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
                if connection.execute(query).fetchall() == wanted:
                    return
            await asyncio.sleep(0.1)


async def until_stored(js: JetStreamContext, table: str, row: int) -> int:
    """The sequence of a row's event."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(NotFoundError):
                message = await js.get_last_msg("CDC", f"cdc.{table}.insert")
                if decode(message.data or b"")["data"]["id"] == row:
                    return int(message.seq or 0)
            await asyncio.sleep(0.1)


async def stored_gaps(js: JetStreamContext) -> int:
    state = (await js.stream_info("CDC", GAP_SUBJECT)).state
    return sum((state.subjects or {}).values())
