"""A new column's constant default, which PostgreSQL fills into the rows that are there without
writing them.

The oracle is the source's own text of a row that is older than the column, and that row's value in
an event.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import asyncpg
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.contract.values import SESSION_SETTINGS
from headrace.testing.line import Delivered, Line, Lines, only

pytestmark = pytest.mark.asyncio(loop_scope="module")


@async_fixture(loop_scope="module", params=["msgpack", "json"])
async def line(lines: Lines, request: pytest.FixtureRequest) -> Line:
    """A line in each encoding; nothing of an earlier test is left in it."""
    found = await lines(18, HEADRACE_ENCODING=request.param)
    await found.take()
    return found


@async_fixture(loop_scope="module")
async def one_line(lines: Lines) -> Line:
    """The line where the encoding makes no difference."""
    found = await lines(18, HEADRACE_ENCODING="msgpack")
    await found.take()
    return found


@contextlib.contextmanager
def behind(line: Line) -> Iterator[None]:
    """A publisher that does not see what happens meanwhile."""
    os.kill(line.suite.pid("publisher"), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(line.suite.pid("publisher"), signal.SIGCONT)


@contextlib.asynccontextmanager
async def session(line: Line) -> AsyncIterator[asyncpg.Connection]:
    """A separate connection that prints values as the contract says."""
    connection = await asyncpg.connect(line.database.dsn, server_settings=dict(SESSION_SETTINGS))
    try:
        yield connection
    finally:
        await connection.close()


async def a_table(line: Line, name: str) -> None:
    """A table with a row that the stream contains."""
    await line.execute(
        f"CREATE TABLE {name} (id int PRIMARY KEY, n int)",
        f"INSERT INTO {name} VALUES (1, 1)",
    )
    await line.take()


def added(events: Sequence[Delivered]) -> list[dict[str, Any]]:
    """The new columns in the schema events."""
    changes = [change for event in only(events, "SCHEMA") for change in event.payload["changes"]]
    return [change for change in changes if change["change"] == "column_added"]


DEFAULTS = {
    "int4": "int DEFAULT 5",
    "int8": "bigint DEFAULT 9007199254740993",
    "empty": "text DEFAULT ''",
    "quoted": """text DEFAULT E'a "b", {c}\\\\ \\n\\tä \\'d\\' NULL'""",
    "called_null": "text DEFAULT 'NULL'",
    "padded": "char(8) DEFAULT 'x'",
    "limited": "varchar(4) DEFAULT 'abcd'",
    "number": "numeric(10,2) DEFAULT 1.5",
    "double": "float8 DEFAULT 'NaN'",
    "truth": "bool NOT NULL DEFAULT false",
    "moment": "timestamptz DEFAULT now()",
    "span": "interval DEFAULT '1 year 2 days 03:04:05'",
    "bytes": "bytea DEFAULT '\\x0001ff'",
    "document": """jsonb DEFAULT '{"a": [1, null, "x"]}'""",
    "json_null": "jsonb DEFAULT 'null'",
    "numbers": "int[] DEFAULT '{{1,2},{3,NULL}}'",
    "texts": """text[] DEFAULT '{"a,b",NULL}'""",
    "shape": "box DEFAULT '(1,1),(0,0)'",
    "mood": "mood DEFAULT 'fine'",
    "domain": "positive DEFAULT 7",
    "pair": "pair DEFAULT '(1,\"a b\")'",
}


async def test_a_constant_default_comes_with_the_event_as_the_value_that_older_rows_have(
    line: Line,
) -> None:
    await line.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'bad'); CREATE DOMAIN positive AS int; CREATE TYPE pair "
        "AS (a int, b text)"
    )
    for kind in DEFAULTS:
        await line.execute(
            f"CREATE TABLE of_{kind} (id int PRIMARY KEY)",
            f"INSERT INTO of_{kind} VALUES (1)",
        )
    await line.take()
    for kind, definition in DEFAULTS.items():
        await line.execute(
            f"ALTER TABLE of_{kind} ADD c {definition}",
            # The row is written with the value that it had all along.
            f"UPDATE of_{kind} SET id = id",
        )
    events = await line.take()
    async with session(line) as connection:
        for kind in DEFAULTS:
            text = await connection.fetchval(f'SELECT c::text COLLATE "C" FROM of_{kind}')
            told, row = (event for event in events if event.payload["table"] == f"of_{kind}")
            (change,) = told.payload["changes"]
            if kind == "padded":
                # The cast drops the blanks that the type's own output keeps.
                text = text.ljust(8)
            if kind == "truth":
                text = {"true": "t", "false": "f"}[text]
            assert change["filled_text"] == text, kind
            assert repr(change["filled"]) == repr(row.row["c"]), kind
            assert not told.payload["resync"], kind


async def test_a_column_without_a_default_has_no_value_to_fill_in(one_line: Line) -> None:
    await a_table(one_line, "plain")
    events = await one_line.take(
        "ALTER TABLE plain ADD c int, ADD d int DEFAULT NULL",
        "INSERT INTO plain VALUES (2, 2)",
    )
    assert [set(change) for change in added(events)] == [{"change", "column", "data_type"}] * 2
    assert not events[0].payload["resync"]


async def test_the_value_is_that_of_the_moment_when_the_column_came(one_line: Line) -> None:
    """Neither a default that was dropped nor another one changes what older rows have."""
    await a_table(one_line, "moved")
    events = await one_line.take(
        "ALTER TABLE moved ADD c int DEFAULT 5, ADD d int DEFAULT 6",
        "ALTER TABLE moved ALTER c DROP DEFAULT, ALTER d SET DEFAULT 60",
        "INSERT INTO moved VALUES (2, 2, 50)",
    )
    assert [(change["column"], change["filled"]) for change in added(events)] == [
        ("c", 5),
        ("d", 6),
    ]
    assert not events[0].payload["resync"]
    assert only(events, "INSERT")[0].row == {"id": 2, "n": 2, "c": 50, "d": 60}


async def test_rows_of_the_same_transaction_before_the_column_have_the_value_too(
    one_line: Line,
) -> None:
    await a_table(one_line, "within")
    before, told, after = await one_line.take(
        "INSERT INTO within VALUES (2, 2); ALTER TABLE within ADD c int DEFAULT 5; INSERT INTO "
        "within VALUES (3, 3, 3)"
    )
    assert (before.row, after.row) == ({"id": 2, "n": 2}, {"id": 3, "n": 3, "c": 3})
    assert (added([told])[0]["filled"], told.payload["resync"]) == (5, False)
    assert await one_line.database.fetchval("SELECT c FROM within WHERE id = 2") == 5


REWRITES = ("VACUUM FULL {}", "ALTER TABLE {} ALTER n TYPE bigint USING n * 10")


@pytest.mark.parametrize("rewrite", REWRITES, ids=["vacuum", "retyped"])
async def test_a_value_that_the_catalog_forgot_is_no_value_but_a_resync(
    one_line: Line, rewrite: str
) -> None:
    table = f"forgotten_{rewrite.split(maxsplit=1)[0].lower()}"
    await a_table(one_line, table)
    with behind(one_line):
        await one_line.execute(
            f"ALTER TABLE {table} ADD c int DEFAULT 5",
            f"INSERT INTO {table} VALUES (2, 2)",
            rewrite.format(table),
        )
    events = await one_line.take()
    assert events[0].payload["resync"]
    assert "filled" not in added(events)[0]


async def test_another_column_of_the_name_that_came_later_lends_it_no_value(one_line: Line) -> None:
    """The later column's transaction has the lower number: judged by that, it would be the earlier one."""
    await a_table(one_line, "namesake")
    with behind(one_line):
        async with session(one_line) as early, early.transaction():
            await early.fetchval("SELECT pg_current_xact_id()::text")
            await one_line.execute(
                "ALTER TABLE namesake ADD c int DEFAULT 5",
                "INSERT INTO namesake VALUES (2, 2, 2)",
            )
            await early.execute(
                "ALTER TABLE namesake DROP c; ALTER TABLE namesake ADD c int DEFAULT 9"
            )
    events = await one_line.take()
    assert events[0].payload["resync"]
    assert all("filled" not in change for change in added(events))


async def test_a_partitioned_table_whose_partitions_have_the_value_is_copied_again(
    lines: Lines,
) -> None:
    line = await lines(18, "FOR TABLE line_marker WITH (publish_via_partition_root)")
    await line.execute(
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10);"
        "ALTER PUBLICATION headrace ADD TABLE parted",
        "INSERT INTO parted VALUES (1)",
    )
    await line.take()
    told, _ = await line.take(
        "ALTER TABLE parted ADD c int DEFAULT 5; ALTER TABLE parted ALTER c DROP DEFAULT",
        "INSERT INTO parted VALUES (2)",
    )
    assert told.payload["resync"]


async def test_a_name_whose_text_depends_on_the_session_is_no_value_but_a_resync(
    one_line: Line,
) -> None:
    await a_table(one_line, "naming")
    events = await one_line.take(
        "ALTER TABLE naming ADD c regclass DEFAULT 'naming'",
        "INSERT INTO naming VALUES (2, 2)",
    )
    assert events[0].payload["resync"]
    assert "filled" not in added(events)[0]


async def test_two_columns_are_filled_each_with_its_own(one_line: Line) -> None:
    await a_table(one_line, "couple")
    events = await one_line.take(
        "ALTER TABLE couple DROP n, ADD c text DEFAULT 'c', ADD d text DEFAULT 'd'",
        "INSERT INTO couple VALUES (2)",
    )
    assert [(change["column"], change["filled"]) for change in added(events)] == [
        ("c", "c"),
        ("d", "d"),
    ]
    assert not events[0].payload["resync"]


async def test_a_value_too_large_for_a_message_is_a_resync(lines: Lines) -> None:
    line = await lines(18, HEADRACE_ENCODING="msgpack")
    await a_table(line, "bulky")
    events = await line.take(
        "CREATE FUNCTION long() RETURNS text LANGUAGE sql STABLE AS $$SELECT repeat('x', 600000)$$",
        "ALTER TABLE bulky ADD c text DEFAULT long()",
        "INSERT INTO bulky VALUES (2, 2, '')",
    )
    assert events[0].payload["resync"]
    assert "filled" not in added(events)[0]
