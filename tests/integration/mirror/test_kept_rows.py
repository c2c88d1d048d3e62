"""Rows that stay in every target: marked by the time of their deletion, or one for each change.

The events are written by hand; each target is read by its own client, and verified rows are its
unmarked ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from headrace.consumer.event import Event, of_message
from headrace.mirror.event_steps import Resync, coalesced, row_steps
from headrace.mirror.history import copied
from headrace.mirror.mirror_state import Book
from headrace.mirror.rules import TableRules
from headrace.mirror.table import BootstrapRun, Column, Phase, Table, TableState
from headrace.mirror.target import (
    CreateTable,
    InsertRows,
    ReadableTarget,
    RemoveSoftDeleted,
    RowMissingError,
    Step,
    target_of,
)
from headrace.testing.database import fresh_database
from headrace.testing.names import Names
from headrace.verify.soft_deleted import count_marked, unmarked
from tests.support.memory_target import Memory

MARK = 'Dele"ted %s ü'
RULES = TableRules(soft_delete=MARK)
COLUMNS = (Column("id", "integer"), Column("t", "text"))
KEYED = Table("app", 'us"er%s', COLUMNS, ("id",), ("id",)).ruled(RULES)
WHOLE = Table("app", "whole", COLUMNS, (), ("id", "t")).ruled(RULES)
FULL = Table("app", "full", COLUMNS, ("id",), ("id", "t")).ruled(RULES)
PAIRS = Table("app", "pairs", COLUMNS, ("id", "t"), ("id", "t")).ruled(RULES)


def time(second: int) -> str:
    return f"2026-11-20T04:05:{second:02}.25Z"


@pytest.fixture(params=["sqlite", "postgresql", "duckdb", "mariadb"])
async def target(
    request: pytest.FixtureRequest, postgres_server: Any, names: Names, tmp_path: Path
) -> AsyncIterator[ReadableTarget]:
    if request.param == "postgresql":
        async with fresh_database(postgres_server, names.other("target")) as database:
            made = target_of(database.dsn)
            yield made
            await made.close()
        return
    if request.param == "mariadb":
        made = target_of(request.getfixturevalue("mariadb_database"))
    else:
        made = target_of(f"{request.param}:///{tmp_path}/t.db")
    yield made
    await made.close()


def event(
    operation: str,
    second: int,
    row: dict[str, Any],
    old: dict[str, Any] | None = None,
    **more: Any,
) -> Event:
    tx = {"xid": 1, "lsn": second, "ts": time(second), "seq": 0, "last": True}
    names: dict[str, Any] = {
        "table": "users",
        "schema": "app",
        "source": "s",
        "operation": operation,
    }
    body = {**names, "data": row, "tx": tx, **more}
    if old is not None:
        body["old"] = old
    (made,) = of_message(msgpack.packb(body), "cdc.x", 1)
    return made


def steps_of(table: Table, *events: Event) -> list[Step]:
    steps: list[Step] = []
    for one in events:
        found = row_steps(one, table)
        assert not isinstance(found, Resync)
        steps += found
    return coalesced(steps)


async def applied(target: ReadableTarget, table: Table, *events: Event) -> None:
    await target.write(steps_of(table, *events))
    await target.commit({})


def shown(time_found: Any) -> str:
    """A time as any target has it, without its zone."""
    return str(time_found or "")[:22].replace(" ", "T")


async def rows(target: ReadableTarget, table: Table) -> list[tuple[Any, ...]]:
    async with target.reading(table) as reading:
        found = [row async for some in reading.rows(table, table.columns) for row in some]
    return sorted(((int(row[0]), row[1], shown(row[2])) for row in found), key=str)


def marked(second: int) -> str:
    return time(second).rstrip("Z")


async def test_a_deleted_row_stays_until_its_key_comes_back(target: ReadableTarget) -> None:
    await target.load()
    await target.write([CreateTable(KEYED)])
    first = [event("INSERT", 1, {"id": n, "t": f"a{n}"}) for n in range(1, 5)]
    await applied(target, KEYED, *first)
    await applied(target, KEYED, event("DELETE", 2, {"id": 1}), event("DELETE", 3, {"id": 2}))
    kept = [(3, "a3", ""), (4, "a4", "")]
    assert await rows(target, KEYED) == [(1, "a1", marked(2)), (2, "a2", marked(3)), *kept]
    async with target.reading(KEYED) as reading:
        assert await count_marked(reading, KEYED) == 2
        seen = [row async for some in unmarked(reading, KEYED) for row in some]
        assert sorted(int(row[0]) for row in seen) == [3, 4]
        assert {len(row) for row in seen} == {2}
    # Inserted again, separately and within a run of inserts, and by an update of the key.
    await applied(
        target, KEYED, event("INSERT", 4, {"id": 1, "t": "b1"}),
        event("INSERT", 4, {"id": 5, "t": "b5"}), event("DELETE", 4, {"id": 5}),
        event("INSERT", 4, {"id": 5, "t": "c5"}),
        event("UPDATE", 4, {"id": 2, "t": "d2"}, {"id": 3}),
    )  # fmt: skip
    kept = [(4, "a4", ""), (5, "c5", "")]
    assert await rows(target, KEYED) == [(1, "b1", ""), (2, "d2", ""), *kept]
    await applied(target, KEYED, event("DELETE", 5, {"id": 4}))
    # A TRUNCATE does not change the time of rows that were deleted before.
    await applied(target, KEYED, event("TRUNCATE", 6, {}), event("INSERT", 7, {"id": 1, "t": "e"}))
    assert await rows(target, KEYED) == [
        (1, "e", ""), (2, "d2", marked(6)), (4, "a4", marked(5)), (5, "c5", marked(6)),
    ]  # fmt: skip


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
async def test_a_change_of_a_marked_row_is_an_error(target: ReadableTarget, operation: str) -> None:
    await target.load()
    await target.write([CreateTable(KEYED)])
    row = {"id": 1, "t": "a"}
    await applied(target, KEYED, event("INSERT", 1, row), event("DELETE", 2, {"id": 1}))
    with pytest.raises(RowMissingError):
        await applied(target, KEYED, event(operation, 3, row))


async def test_without_a_key_of_equal_rows_one_is_marked(target: ReadableTarget) -> None:
    row = {"id": 1, "t": None}
    await target.load()
    await target.write([CreateTable(WHOLE), CreateTable(FULL), CreateTable(PAIRS)])
    await applied(target, WHOLE, *[event("INSERT", 1, row)] * 3)
    await applied(target, WHOLE, event("DELETE", 2, row, row), event("DELETE", 3, row, row))
    await applied(target, WHOLE, event("UPDATE", 4, {"id": 2, "t": "x"}, row))
    wanted = [(1, None, marked(2)), (1, None, marked(3)), (2, "x", "")]
    assert await rows(target, WHOLE) == wanted
    # A key, with the whole row as what identifies changes; and a key that is the whole row.
    for table in (FULL, PAIRS):
        old = {"id": 1, "t": "a"}
        await applied(target, table, event("INSERT", 1, old), event("DELETE", 2, old, old))
        await applied(target, table, event("INSERT", 3, {"id": 1, "t": "b"}))
        new = {"id": 1, "t": "c"}
        await applied(target, table, event("UPDATE", 4, new, {"id": 1, "t": "b"}))
    assert await rows(target, FULL) == [(1, "c", "")]
    assert await rows(target, PAIRS) == [(1, "a", marked(2)), (1, "c", "")]


@pytest.mark.parametrize("table", [KEYED, WHOLE], ids=["keyed", "whole"])
async def test_a_new_copy_keeps_marked_rows_that_the_source_does_not_have_again(
    target: ReadableTarget, table: Table
) -> None:
    await target.load()
    await target.write([CreateTable(table)])
    first = [event("INSERT", 1, {"id": n, "t": "a"}) for n in range(1, 5)]
    gone = [{"id": n, "t": "a"} for n in (1, 2)]
    await applied(target, table, *first, *(event("DELETE", 2, row, row) for row in gone))
    # Another type, another order, a new column, and another name in the target.
    columns = (Column("n", "integer"), Column("t", "character varying(9)"), Column("id", "bigint"))
    identity = table.identity if table.key else ("n", "t", "id")
    plain = Table(table.schema, table.name, columns, table.primary_key, identity, staging=True)
    staged = plain.ruled(replace(RULES, place=("other", "na me")))
    copied = [{"n": 1, "t": "b", "id": n} for n in (2, 3)]
    await target.write([CreateTable(staged, replaces=False), InsertRows(staged, copied)])
    run = BootstrapRun("x", 40, 1, 2, staged)
    state = TableState(table.schema, table.name, Phase.LOADED, table, run=run)
    await target.write(Book(Memory()).show(state))
    await target.commit({})
    live = replace(staged, staging=False)
    async with target.reading(live) as reading:
        found = [row async for some in reading.rows(live, live.columns[2:]) for row in some]
    times = sorted((int(one), shown(at)) for one, at in found)
    if table.key:
        # Deleted without an event: at the latest now.
        number, at = times.pop()
        assert (number, at > marked(59)) == (4, True)
        assert times == [(1, marked(2)), (2, ""), (3, "")]
    else:
        assert times == [(1, marked(2)), (2, ""), (2, marked(2)), (3, "")]
    with pytest.raises(Exception, match=r"(?i)exist|no such table"):
        await rows(target, table)


def test_inserts_of_a_run_stay_one_statement() -> None:
    events = [event("INSERT", 1, {"id": n, "t": "a"}) for n in range(3)]
    removal, insert = steps_of(KEYED, *events)
    assert isinstance(removal, RemoveSoftDeleted)
    assert isinstance(insert, InsertRows)
    assert [row["id"] for row in insert.rows] == [row["id"] for row in removal.rows] == [0, 1, 2]


# A row for each change.

LOGGED = Table("app", 'lo"g%s', (*COLUMNS, Column("big", "text")), ("id",), ("id",)).ruled(
    TableRules(history=True)
)


async def history(target: ReadableTarget, table: Table) -> list[tuple[Any, ...]]:
    """In the order of positions: the change, its second, the columns, and the two notes."""
    async with target.reading(table) as reading:
        found = [row async for some in reading.rows(table, table.columns) for row in some]
    names = [column.name for column in table.columns]
    made = [dict(zip(names, row, strict=True)) for row in found]
    made.sort(key=lambda row: (int(row["headrace_lsn"]), int(row["headrace_seq"] or 0)))
    own = ("headrace_operation", "headrace_lsn", "headrace_committed_at")
    last = ("headrace_unchanged", "headrace_old")
    return [
        (
            row[own[0]], int(row[own[1]]), shown(row[own[2]]),
            *(row[name] for name in names if not name.startswith("headrace_")),
            *(row[name] for name in last),
        )
        for row in made
    ]  # fmt: skip


async def test_each_change_is_a_row_with_its_position(target: ReadableTarget) -> None:
    await target.load()
    await target.write([CreateTable(LOGGED)])
    await target.write([InsertRows(LOGGED, copied(LOGGED, [{"id": 9, "t": "s", "big": None}], 1))])
    await applied(
        target, LOGGED,
        event("INSERT", 2, {"id": 1, "t": "a", "big": "x"}),
        event("UPDATE", 3, {"id": 1, "t": "b"}, unchanged=["big"]),
        event("UPDATE", 4, {"id": 2, "t": "b"}, {"id": 1}, unchanged=["big"]),
        event("UPDATE", 5, {"id": 2, "t": "c"}, {"id": 2, "t": "b", "big": "x"}, unchanged=["big"]),
        event("DELETE", 6, {"id": 2}),
        event("DELETE", 7, {"id": 9}, {"id": 9, "t": 's"', "big": None}),
        event("TRUNCATE", 8, {}),
    )  # fmt: skip
    found = await history(target, LOGGED)
    rows = [tuple(None if v is None else str(v) for v in row) for row in found]
    assert rows == [
        ("SNAPSHOT", "1", "", "9", "s", None, None, None),
        ("INSERT", "2", marked(2), "1", "a", "x", None, None),
        ("UPDATE", "3", marked(3), "1", "b", None, '["big"]', None),
        ("UPDATE", "4", marked(4), "2", "b", None, '["big"]', '{"id": 1}'),
        ("UPDATE", "5", marked(5), "2", "c", "x", None, '{"t": "b"}'),
        ("DELETE", "6", marked(6), "2", None, None, None, None),
        ("DELETE", "7", marked(7), "9", 's"', None, None, None),
        ("TRUNCATE", "8", marked(8), None, None, None, None, None),
    ]
    # A later copy adds its rows, under another type of a column too.
    plain = Table("app", LOGGED.name, (Column("id", "bigint"), Column("t", "text")), staging=True)
    staged = plain.ruled(LOGGED.rules)
    new = copied(staged, [{"id": 5, "t": "later"}], 9)
    await target.write([CreateTable(staged), InsertRows(staged, new)])
    run = BootstrapRun("x", 9, 1, 1, staged)
    state = TableState("app", LOGGED.name, Phase.LOADED, LOGGED, run=run)
    await target.write(Book(Memory()).show(state))
    await target.commit({})
    found = await history(target, replace(staged, staging=False))
    operations = [row[0] for row in found]
    assert operations == [row[0] for row in rows] + ["SNAPSHOT"]
    assert (int(found[-1][3]), found[-1][4]) == (5, "later")
