"""A mirror's SQLite file: values, shapes, names and writers. SQL reads what was written."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.contract.exact import ExactText
from headrace.mirror import sqlite as sqlite_target
from headrace.mirror.sqlite import NameTakenError, SqliteTarget
from headrace.mirror.table import Column, Phase, Table, TableState
from headrace.mirror.target import (
    AlterTable,
    CreateTable,
    DeleteRow,
    DropTable,
    Filled,
    ForeignTableError,
    InsertRows,
    RowMissingError,
    Step,
    SwapTables,
    TakenOverError,
    TargetAwayError,
    TargetError,
    TruncateTable,
    UpdateRow,
    opened,
    target_of,
)
from headrace.mirror.value_kinds import as_json, as_list

ID = Column("id", "integer")
USERS = Table("public", "users", (ID, Column("name", "text")), ("id",), ("id",))


def using(path: Path, use: Callable[[SqliteTarget], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        target = SqliteTarget(str(path / "m.db"))
        await target.load()
        try:
            return await use(target)
        finally:
            await target.close()

    return asyncio.run(work())


def written(path: Path, *steps: Step) -> None:
    async def use(target: SqliteTarget) -> None:
        await target.write(steps)
        await target.commit({})

    using(path, use)


def sql(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path / "m.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def indexes(path: Path, table: str) -> list[list[str]]:
    """The columns of each index of a table."""
    names = sql(
        path, f'SELECT name FROM sqlite_schema WHERE type = "index" AND tbl_name = "{table}"'
    )
    return sorted(
        [row[2] for row in sql(path, f'PRAGMA index_info("{name}")')] for (name,) in names
    )


# Values.


@pytest.mark.parametrize(
    ("data_type", "value", "stored"),
    [
        ("boolean", True, 1),
        ("boolean", False, 0),
        ("integer", 7, 7),
        ("bigint", 2**62, 2**62),
        ("double precision", 1.5, 1.5),
        ("double precision", "Infinity", float("inf")),
        ("real", "NaN", "NaN"),
        ("bytea", b"\0\xff", b"\0\xff"),
        ("bytea", "AP8=", b"\0\xff"),
        ("numeric(40,2)", "123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        ("text", "7", "7"),
        ("jsonb", {"a": [1, None, "é"]}, '{"a": [1, null, "é"]}'),
        ("jsonb", "text", '"text"'),
        ("json", ExactText('{"a":1.50}'), '{"a":1.50}'),
        ("jsonb", 1e-7, "0.0000001"),
        ("integer[]", [1, None, [2]], "[1, null, [2]]"),
        ("integer[]", "{1,2}", "{1,2}"),
        ("bytea[]", [b"\0"], '["AA=="]'),
        ("double precision[]", [float("nan"), float("inf"), -float("inf"), 1.5],
         '["NaN", "Infinity", "-Infinity", 1.5]'),
        ("mood", "sad", "sad"),
        ("mood", 7, 7),
        ("mood", {"a": 1}, '{"a": 1}'),
        ("mood", [1], "[1]"),
        ("mood", ExactText("[1.50]"), "[1.50]"),
    ],
)  # fmt: skip
def test_a_value_is_stored_without_loss(
    tmp_path: Path, data_type: str, value: Any, stored: Any
) -> None:
    table = Table("public", "t", (ID, Column("v", data_type)), ("id",), ("id",))
    written(tmp_path, CreateTable(table), InsertRows(table, ({"id": 1, "v": value},)))
    assert sql(tmp_path, "SELECT v, typeof(v) FROM t") == [(stored, _type(stored))]
    # Found again by its value, and replaced.
    whole = replace(table, primary_key=(), identity=("id", "v"))
    written(tmp_path, UpdateRow(whole, {"id": 1, "v": value}, {"id": 2, "v": None}))
    assert sql(tmp_path, "SELECT id, v FROM t") == [(2, None)]


def _type(value: Any) -> str:
    names = {int: "integer", float: "real", str: "text", bytes: "blob"}
    return names[type(value)]


def test_numbers_in_documents_are_written_out_and_strings_are_left() -> None:
    assert as_json({"n": 1e-7, "m": 1e22, "s": "1e-7 \\" + '"2e-8'}) == (
        '{"n": 0.0000001, "m": 10000000000000000000000, "s": "1e-7 \\\\\\"2e-8"}'
    )
    assert [as_json([number]) for number in (1.5, 1e-7, 1e22)] == [
        "[1.5]", "[0.0000001]", "[10000000000000000000000]",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json(float("nan"))


def test_half_a_surrogate_pair_is_written_as_its_escape() -> None:
    assert as_json({"é": "\ud800"}) == '{"\\u00e9": "\\ud800"}'
    assert as_list(["é"]) == '["é"]'


def test_a_column_that_a_row_lacks_is_null(tmp_path: Path) -> None:
    written(tmp_path, CreateTable(USERS), InsertRows(USERS, ({"id": 1}, {"name": "x", "id": 2})))
    assert sql(tmp_path, "SELECT * FROM users") == [(1, None), (2, "x")]


# Rows.


def test_rows_are_changed_one_at_a_time(tmp_path: Path) -> None:
    rows = [{"id": n, "name": "x"} for n in (1, 2, 3)]
    written(
        tmp_path,
        CreateTable(USERS),
        InsertRows(USERS, rows),
        UpdateRow(USERS, {"id": 1}, {"id": 9, "name": "y"}),
        UpdateRow(USERS, {"id": 2}, {}),
        DeleteRow(USERS, {"id": 3}),
    )
    assert sql(tmp_path, "SELECT * FROM users ORDER BY id") == [(2, "x"), (9, "y")]
    written(tmp_path, TruncateTable(USERS))
    assert sql(tmp_path, "SELECT count(*) FROM users") == [(0,)]


def test_of_equal_rows_one_is_changed(tmp_path: Path) -> None:
    table = Table("public", "users", USERS.columns, (), ("id", "name"))
    row = {"id": 1, "name": None}
    written(tmp_path, CreateTable(table), InsertRows(table, (row, row)), DeleteRow(table, row))
    assert sql(tmp_path, "SELECT * FROM users") == [(1, None)]


@pytest.mark.parametrize(
    "step", [DeleteRow(USERS, {"id": 7}), UpdateRow(USERS, {"id": 7}, {"id": 8})]
)
def test_a_row_that_is_not_there_is_an_error(tmp_path: Path, step: Step) -> None:
    written(tmp_path, CreateTable(USERS), InsertRows(USERS, ({"id": 1, "name": "x"},)))
    with pytest.raises(RowMissingError, match=r"public\.users: a change of a row") as found:
        written(tmp_path, step)
    assert found.value.table == USERS
    assert "bootstraps the table again" in str(found.value)


def test_a_whole_old_row_is_found_by_its_key_or_by_all_of_it(tmp_path: Path) -> None:
    """A deferrable key may belong to two rows within a transaction."""
    table = replace(USERS, identity=("id", "name"))
    old = {"id": 1, "name": "a"}
    written(tmp_path, CreateTable(table), InsertRows(table, (old, {"id": 1, "name": "b"})))
    written(tmp_path, UpdateRow(table, {"id": 1, "name": "b"}, {"id": 2, "name": "b"}))
    assert sql(tmp_path, "SELECT * FROM users ORDER BY id") == [(1, "a"), (2, "b")]
    # Of one key there is one row, however its other values are written here.
    written(tmp_path, DeleteRow(table, {"id": 1, "name": "not as it is here"}))
    assert sql(tmp_path, "SELECT * FROM users") == [(2, "b")]


def test_a_column_may_have_the_name_of_a_row_number(tmp_path: Path) -> None:
    columns = (Column("rowid", "text"), Column("_ROWID_", "text"))
    table = Table("public", "t", columns, ("rowid",), ("rowid",))
    row = {"rowid": "a", "_ROWID_": "b"}
    written(tmp_path, CreateTable(table), InsertRows(table, (row,)))
    written(tmp_path, UpdateRow(table, {"rowid": "a"}, {"rowid": "c", "_ROWID_": "d"}))
    assert sql(tmp_path, 'SELECT "rowid", "_ROWID_" FROM t') == [("c", "d")]


# Shapes.


def test_a_table_is_altered_with_its_rows(tmp_path: Path) -> None:
    before = Table(
        "public", "users", (ID, Column("name", "text"), Column("gone", "text")), ("id",), ("id",)
    )
    after = Table(
        "public",
        "users",
        (Column("key", "integer"), Column("name", "text"), Column("new", "boolean"),
         Column("empty", "text")),
        ("key",),
        ("name",),
    )  # fmt: skip
    row = {"id": 1, "name": "x", "gone": "y"}
    written(tmp_path, CreateTable(before), InsertRows(before, (row,)))
    assert indexes(tmp_path, "users") == [["id"]]
    change = AlterTable(before, after, {"key": "id"}, {"new": Filled(True, "t")})
    written(tmp_path, change)
    assert sql(tmp_path, "SELECT key, name, new, empty FROM users") == [(1, "x", 1, None)]
    assert [column[1] for column in sql(tmp_path, "PRAGMA table_info(users)")] == [
        "key", "name", "new", "empty",
    ]  # fmt: skip
    assert indexes(tmp_path, "users") == [["key"], ["name"]]
    # A shape that it had before.
    written(tmp_path, AlterTable(after, replace(before, columns=(ID,)), {"id": "key"}))
    assert sql(tmp_path, "SELECT * FROM users") == [(1,)]
    assert indexes(tmp_path, "users") == [["id"]]


def test_a_copy_replaces_the_table_with_its_indexes(tmp_path: Path) -> None:
    table = replace(USERS, identity=("name",))
    staged = replace(table, staging=True)
    written(tmp_path, CreateTable(table), InsertRows(table, ({"id": 1, "name": "old"},)))
    written(tmp_path, CreateTable(staged), InsertRows(staged, ({"id": 2, "name": "new"},)))
    assert sql(tmp_path, "SELECT * FROM users") == [(1, "old")]
    written(tmp_path, SwapTables(staged))
    assert sql(tmp_path, "SELECT * FROM users") == [(2, "new")]
    assert indexes(tmp_path, "users") == [["id"], ["name"]]
    names = sql(tmp_path, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    assert names == [("headrace_mirror",), ("users",)]
    # The next copy finds its names free.
    written(tmp_path, CreateTable(staged), CreateTable(staged), SwapTables(staged))
    assert sql(tmp_path, "SELECT count(*) FROM users") == [(0,)]
    written(tmp_path, DropTable(table), DropTable(table))
    assert sql(tmp_path, "SELECT name FROM sqlite_schema WHERE type = 'table'") == [
        ("headrace_mirror",)
    ]


# Names.


def test_a_name_in_any_schema_is_quoted(tmp_path: Path) -> None:
    table = Table('we"ird', "ta.ble", (Column('co"l', "integer"),), (), ('co"l',))
    written(tmp_path, CreateTable(table), InsertRows(table, ({'co"l': 1},)))
    assert sql(tmp_path, 'SELECT "co""l" FROM "we""ird.ta.ble"') == [(1,)]


@pytest.mark.parametrize("name", ["headrace_mirror", "HEADRACE_mirror", "headrace_mirror_new.x"])
def test_the_mirrors_own_names_are_reserved(tmp_path: Path, name: str) -> None:
    with pytest.raises(NameTakenError, match="is reserved"):
        written(tmp_path, CreateTable(replace(USERS, name=name)))
    written(tmp_path, CreateTable(replace(USERS, name="headrace_mirrors")))


@pytest.mark.parametrize(("phase", "is_taken"), [(Phase.FOLLOWING, True), (Phase.GONE, False)])
def test_two_tables_never_share_a_name(tmp_path: Path, phase: Phase, *, is_taken: bool) -> None:
    async def use(target: SqliteTarget) -> None:
        state = TableState("app", "Users", phase)
        await target.commit({"table app=2FUsers": state.encode()})

    using(tmp_path, use)
    table = replace(USERS, name="APP.users")
    if is_taken:
        with pytest.raises(NameTakenError, match=r"public\.APP\.users and app\.Users can't both"):
            written(tmp_path, CreateTable(table))
    else:
        written(tmp_path, CreateTable(table))
    # The same table again, or its copy, is no other.
    own = replace(USERS, schema="app", name="Users", staging=True)
    written(tmp_path, CreateTable(own), CreateTable(replace(own, staging=False)))


@pytest.mark.parametrize("kind", ["TABLE", "VIEW"])
@pytest.mark.parametrize("name", ["users", "Users"])
def test_a_table_that_no_mirror_created_is_left_alone(tmp_path: Path, name: str, kind: str) -> None:
    staged = replace(USERS, staging=True)
    written(tmp_path, CreateTable(staged))
    sql(tmp_path, f"CREATE {kind} {name} AS SELECT 5 AS own")
    for step in (CreateTable(USERS, replaces=False), SwapTables(staged, replaces=False)):
        with pytest.raises(ForeignTableError, match="exists there already"):
            written(tmp_path, step)
    assert sql(tmp_path, "SELECT * FROM users") == [(5,)]
    free = replace(USERS, name="free")
    written(tmp_path, CreateTable(free, replaces=False), CreateTable(free))


# Commits and writers.


def test_marks_are_stored_with_the_rows_or_not_at_all(tmp_path: Path) -> None:
    async def use(target: SqliteTarget) -> list[Any]:
        await target.write([CreateTable(USERS), InsertRows(USERS, ({"id": 1, "name": "x"},))])
        await target.commit({"a": "1", "b": "2", "c": None})
        await target.write([InsertRows(USERS, ({"id": 2, "name": "x"},))])
        found = [await target.load()]
        await target.commit({"a": "3", "b": None})
        return [*found, await target.load()]

    assert using(tmp_path, use) == [{"a": "1", "b": "2"}, {"a": "3"}]
    assert sql(tmp_path, "SELECT id FROM users") == [(1,)]


def test_a_reader_sees_one_moment_while_the_mirror_continues(tmp_path: Path) -> None:
    async def use(target: SqliteTarget) -> Any:
        await target.write(
            [CreateTable(USERS), InsertRows(USERS, [{"id": n} for n in range(7000)])]
        )
        await target.commit({"a": "1"})
        async with target.reading() as reading:
            await target.write([TruncateTable(USERS)])
            await target.commit({"a": "2"})
            some = [len(rows) async for rows in reading.rows(USERS, (ID,))]
            return reading.marks, some

    assert using(tmp_path, use) == ({"a": "1"}, [5000, 2000])


def test_a_file_without_a_mirror_is_not_read_or_created(tmp_path: Path) -> None:
    async def reading(name: str) -> None:
        async with SqliteTarget(str(tmp_path / name)).reading():
            pass

    with pytest.raises(TargetError, match="doesn't exist"):
        asyncio.run(reading("m.db"))
    assert not (tmp_path / "m.db").exists()
    sqlite3.connect(tmp_path / "m.db").execute("CREATE TABLE t (id)").connection.close()
    with pytest.raises(TargetError, match="contains no mirror"):
        asyncio.run(reading("m.db"))


def test_a_mirror_that_was_replaced_can_neither_write_commit_nor_load(tmp_path: Path) -> None:
    async def work() -> None:
        path = str(tmp_path / "m.db")
        first = SqliteTarget(path)
        second = SqliteTarget(path)
        await first.load()
        await first.write([CreateTable(USERS)])
        await first.commit({"a": "1"})
        assert await second.load() == {"a": "1"}
        for _ in range(2):
            with pytest.raises(TakenOverError, match="another mirror is writing"):
                await first.write([TruncateTable(USERS)])
        with pytest.raises(TakenOverError):
            await first.commit({"a": "2"})
        with pytest.raises(TakenOverError):
            await first.load()
        await second.commit({"a": "3"})
        # The one that has it may load it again.
        assert await second.load() == {"a": "3"}
        await first.close()
        await second.close()

    asyncio.run(work())


def test_a_busy_file_is_waited_for_and_a_damaged_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.mirror.sqlite.BUSY_TIMEOUT_S", 0.05)
    written(tmp_path, CreateTable(USERS))
    other = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TargetAwayError, match="locked"):
        written(tmp_path, TruncateTable(USERS))
    other.execute("ROLLBACK")
    other.close()
    with pytest.raises(TargetError, match="no such table") as found:
        written(tmp_path, TruncateTable(replace(USERS, name="other")))
    assert not isinstance(found.value, TargetAwayError)


def test_what_a_cancelled_caller_began_is_finished_before_anything_else(tmp_path: Path) -> None:
    async def work() -> None:
        target = SqliteTarget(str(tmp_path / "m.db"))
        began, goes_on = threading.Event(), threading.Event()
        done: list[str] = []

        def first() -> None:
            began.set()
            goes_on.wait(30)
            done.append("first")

        cancelled = asyncio.create_task(target._in_thread(first))
        await asyncio.to_thread(began.wait, 30)
        cancelled.cancel()
        last = asyncio.create_task(target._in_thread(done.append, "second"))
        await asyncio.wait({last}, timeout=0.05)
        goes_on.set()
        await last
        assert done == ["first", "second"]

    asyncio.run(work())


# Addresses.


def test_a_cancelled_opening_that_fails_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, whose first write fails after it took the write lock."""
    monkeypatch.setattr(sqlite_target, "BUSY_TIMEOUT_S", 0.1)
    connect = sqlite_target.connect
    marks = sqlite_target.marks_in
    started = threading.Event()
    may_go_on = threading.Event()

    def late(path: str) -> sqlite3.Connection:
        monkeypatch.setattr(sqlite_target, "connect", connect)
        started.set()
        may_go_on.wait()
        return connect(path)

    def full(_connection: sqlite3.Connection) -> dict[str, str]:
        monkeypatch.setattr(sqlite_target, "marks_in", marks)
        raise sqlite3.OperationalError("database or disk is full")

    async def work() -> dict[str, str]:
        target = SqliteTarget(str(tmp_path / "m.db"))
        monkeypatch.setattr(sqlite_target, "connect", late)
        monkeypatch.setattr(sqlite_target, "marks_in", full)
        opening = asyncio.create_task(target.load())
        await asyncio.to_thread(started.wait)
        opening.cancel()
        await asyncio.wait({opening})
        again = asyncio.create_task(target.load())
        # It starts before the first attempt ends.
        await asyncio.sleep(0)
        may_go_on.set()
        try:
            return await again
        finally:
            await target.close()

    assert asyncio.run(work()) == {}


def test_a_relative_path_has_three_slashes_and_an_absolute_one_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def work(url: str) -> None:
        async with opened(url) as target:
            await target.load()

    asyncio.run(work("sqlite:///one.db"))
    assert (tmp_path / "one.db").exists()
    asyncio.run(work(f"sqlite:///{tmp_path}/two.db"))
    assert (tmp_path / "two.db").exists()
    asyncio.run(work("sqlite:///x"))
    assert (tmp_path / "x").exists()
    for scheme in ("postgresql", "postgres"):
        assert type(target_of(f"{scheme}://user@host/name")).__name__ == "PostgresTarget"
