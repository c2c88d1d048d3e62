"""Both targets keep every value so that it can be compared again, find rows by any value, and
forget what was not committed. No suite runs here: what they are given is made from PostgreSQL's own
text of each value.
"""

from __future__ import annotations

import sqlite3 as sqlite_driver
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.contract import exact
from headrace.contract.events import decode, encode
from headrace.contract.exact import ExactText
from headrace.contract.scalars import SESSION_SETTINGS
from headrace.contract.values import ArrayForm, Encoding, ValueOptions, converter
from headrace.mirror import (
    AlterTable,
    Column,
    CreateTable,
    DeleteRow,
    DropTable,
    Filled,
    InsertRows,
    RowMissingError,
    SwapTables,
    Table,
    TargetError,
    TruncateTable,
    UpdateRow,
    mariadb,
    postgres,
    sqlite,
)
from headrace.mirror.mirror_state import STALE
from headrace.mirror.postgres import PostgresTarget
from headrace.mirror.postgres_statements import table_name
from headrace.mirror.table import TableState
from headrace.mirror.target import ReadableTarget, TakenOverError, TargetAwayError, target_of
from headrace.postgres import catalog, catalog_queries
from headrace.testing.database import Database, fresh_database
from headrace.testing.names import Names
from headrace.testing.value_cases import CASES


@pytest.fixture(params=["sqlite", "postgresql", "duckdb", "mariadb"])
async def place(
    request: pytest.FixtureRequest, postgres_server: Any, names: Names, tmp_path: Path
) -> AsyncIterator[str]:
    if request.param == "mariadb":
        yield request.getfixturevalue("mariadb_database")
        return
    if request.param != "postgresql":
        yield f"{request.param}:///{tmp_path}/t.db"
        return
    async with fresh_database(postgres_server, names.other("target")) as database:
        yield database.dsn


@pytest.fixture
async def target(place: str) -> AsyncIterator[ReadableTarget]:
    # Some values of every type are in no type of another database.
    exact_as_text = {} if place.startswith(("sqlite", "postgresql")) else {"text": ["everything.*"]}
    made = target_of(place, exact_as_text)
    yield made
    await made.close()


async def wire_rows(
    database: Database, options: ValueOptions
) -> tuple[Table, list[dict[str, Any]], list[tuple[Any, ...]]]:
    """A column of each type, and rows that hold all its edge values: as events have them, and as
    PostgreSQL's text.
    """
    connection = await database.connect()
    for name, value in SESSION_SETTINGS.items():
        await connection.execute(f"SET {name} TO '{value}'")
    for case in CASES:
        if case.setup:
            await connection.execute(case.setup)
    definitions = ", ".join(f'"c {number} %" {case.type}' for number, case in enumerate(CASES))
    await connection.execute(f"CREATE TABLE everything ({definitions})")
    for number in range(max(len(case.values) for case in CASES)):
        literals = ", ".join(case.values[number % len(case.values)][0] for case in CASES)
        await connection.execute(f"INSERT INTO everything VALUES ({literals})")
    described = await connection.fetch(
        "SELECT attname, atttypid::int8 AS oid, format_type(atttypid, atttypmod) AS type, "
        f"{catalog_queries.base_type('atttypid')} AS base_type FROM pg_attribute "
        "WHERE attrelid = 'everything'::regclass AND attnum > 0 ORDER BY attnum"
    )
    types = await catalog.types(connection, {row["oid"] for row in described})
    makers = [converter(row["oid"], options, types.get) for row in described]
    columns = tuple(Column(row["attname"], row["base_type"] or row["type"]) for row in described)
    # The text of the type's output function, which a cast to text is not.
    texts = ", ".join(
        f'CASE num_nulls("{column.name}") WHEN 0 THEN concat("{column.name}") END'
        for column in columns
    )
    printed = [tuple(row) for row in await connection.fetch(f"SELECT {texts} FROM everything")]
    rows = [
        {
            column.name: None if text is None else make(text.encode())
            for column, make, text in zip(columns, makers, row, strict=True)
        }
        for row in printed
    ]
    return (
        Table("public", "everything", columns, (), tuple(column.name for column in columns)),
        rows,
        printed,
    )


async def read(target: ReadableTarget, table: Table) -> list[tuple[Any, ...]]:
    async with target.reading(table) as reading:
        return [row async for rows in reading.rows(table, table.columns) for row in rows]


async def shown(target: ReadableTarget, table: Table) -> list[tuple[Any, ...]]:
    """The rows as text, whichever target it is."""
    return [tuple(None if v is None else str(v) for v in row) for row in await read(target, table)]


# Documents whose exact text PostgreSQL keeps: an event contains only their meaning.
FORMED = {"json"}


@pytest.mark.parametrize("encoding", Encoding)
async def test_every_value_is_kept_and_finds_its_row_again(
    target: ReadableTarget, database: Database, encoding: Encoding
) -> None:
    table, rows, printed = await wire_rows(database, ValueOptions(encoding, ArrayForm.LITERAL))
    plain = await plain_rows(rows, encoding)
    await target.load()
    await target.write([CreateTable(table), InsertRows(table, [*plain, {}])])
    await target.commit({})
    found = await read(target, table)
    assert len(found) == len(plain) + 1
    if isinstance(target, PostgresTarget):
        for wanted, row in zip(printed, found, strict=False):
            for column, one, other in zip(table.columns, wanted, row, strict=True):
                assert column.data_type in FORMED or one == other, column
    # By all of their values, as a table without a key has it.
    await target.write([DeleteRow(table, row) for row in plain])
    await target.commit({})
    assert await read(target, table) == [tuple(None for _ in table.columns)]


async def plain_rows(rows: list[dict[str, Any]], encoding: Encoding) -> list[dict[str, Any]]:
    """As they come out of a message."""
    made = []
    for row in rows:
        payload: dict[str, Any] = {
            "data": {name: exact.native(value) for name, value in row.items()}
        }
        payload["exact"] = {
            name: value.text for name, value in row.items() if isinstance(value, exact.Inexact)
        }
        made.append(dict(exact.row(decode(encode(payload, encoding)))))
    return made


USERS = Table(
    "app", 'us"er%s', (Column("id", "integer"), Column("na me", "text")), ("id",), ("id",)
)


async def test_what_was_not_committed_is_forgotten_and_marks_come_with_rows(
    target: ReadableTarget,
) -> None:
    assert await target.load() == {}
    await target.write([CreateTable(USERS), InsertRows(USERS, [{"id": 1, "na me": "a\tb\\N\n"}])])
    await target.commit({"place": "1", "other": "x"})
    await target.write([UpdateRow(USERS, {"id": 1}, {"na me": "lost"}), TruncateTable(USERS)])
    assert await target.load() == {"place": "1", "other": "x"}
    assert await shown(target, USERS) == [("1", "a\tb\\N\n")]
    await target.commit({"other": None})
    async with target.reading() as reading:
        assert dict(reading.marks) == {"place": "1"}


async def test_who_was_taken_over_writes_nothing_more(place: str) -> None:
    """A mirror that was stopped for a while continues from what the target no longer holds."""
    table = Table("public", "t", (Column("id", "integer"),), ("id",), ("id",))
    first, second = target_of(place), target_of(place)
    assert await first.load() == {}
    await first.write([CreateTable(table)])
    await first.commit({"place": "1"})
    assert await first.load() == {"place": "1"}, "the same one may open it again"
    assert await second.load() == {"place": "1"}
    await second.write([InsertRows(table, [{"id": 1}])])
    await second.commit({"place": "2"})
    with pytest.raises(TakenOverError):
        await first.write([InsertRows(table, [{"id": 1}])])
    with pytest.raises(TakenOverError):
        await first.commit({"place": "2"})
    with pytest.raises(TakenOverError):
        await first.load()
    with pytest.raises(TakenOverError):
        await first.commit({"place": "2"})
    assert await second.load() == {"place": "2"}
    async with second.reading() as reading:
        assert [len(rows) async for rows in reading.rows(table, table.columns)] == [1]
    await first.close()
    await second.close()


# DuckDB lets one process at a time open the file.
@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mariadb"], indirect=True)
async def test_what_another_is_committing_is_waited_for(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows and marks are there afterwards, or never."""
    monkeypatch.setattr(postgres, "TAKE_OVER_S", 1)
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 1)
    monkeypatch.setattr(mariadb, "TAKE_OVER_S", 1)
    table = Table("public", "t", (Column("id", "integer"),), ("id",), ("id",))
    first, second = target_of(place), target_of(place)
    await first.load()
    await first.write([CreateTable(table), InsertRows(table, [{"id": 1}])])
    with pytest.raises(TargetAwayError):
        await second.load()
    await first.commit({"place": "1"})
    assert await second.load() == {"place": "1"}
    await first.close()
    await second.close()


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mariadb"], indirect=True)
async def test_a_reading_stays_as_it_was_while_the_target_goes_on(target: ReadableTarget) -> None:
    await target.load()
    await target.write(
        [CreateTable(USERS), InsertRows(USERS, [{"id": number} for number in range(5)])]
    )
    await target.commit({"place": "1"})
    async with target.reading(USERS) as reading:
        await target.write([DeleteRow(USERS, {"id": 3})])
        await target.commit({"place": "2"})
        assert sum([len(rows) async for rows in reading.rows(USERS, USERS.columns)]) == 5
        assert dict(reading.marks) == {"place": "1"}
    assert len(await read(target, USERS)) == 4


async def test_a_row_that_is_not_there_is_an_error(target: ReadableTarget) -> None:
    await target.load()
    await target.write([CreateTable(USERS), InsertRows(USERS, [{"id": 1}])])
    await target.commit({})
    for step in (UpdateRow(USERS, {"id": 2}, {"na me": "x"}), DeleteRow(USERS, {"id": 2})):
        with pytest.raises(RowMissingError):
            await target.write([step])


async def test_a_row_that_is_there_twice_is_an_error(target: ReadableTarget) -> None:
    """Somebody wrote it there: its key belongs to one row at the source."""
    await target.load()
    await target.write([CreateTable(USERS)])
    await target.commit({})
    for step in (UpdateRow(USERS, {"id": 1}, {"na me": "x"}), DeleteRow(USERS, {"id": 1})):
        with pytest.raises(RowMissingError):
            await target.write([InsertRows(USERS, [{"id": 1}, {"id": 1}]), step])
        await target.load()


async def test_a_key_that_is_the_whole_row_may_belong_to_two_for_a_moment(
    target: ReadableTarget,
) -> None:
    """A deferrable key that two rows exchange."""
    keys = Table("public", "keys", (Column("id", "integer"),), ("id",), ("id",))
    await target.load()
    await target.write([CreateTable(keys), InsertRows(keys, [{"id": 1}, {"id": 2}])])
    await target.write(
        [UpdateRow(keys, {"id": 1}, {"id": 2}), UpdateRow(keys, {"id": 2}, {"id": 1})]
    )
    await target.commit({})
    assert sorted(await shown(target, keys)) == [("1",), ("2",)]


@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)  # others: none do that
async def test_rows_that_a_trigger_of_the_target_keeps_out_are_missed(place: str) -> None:
    target = target_of(place)
    await target.load()
    await target.write([CreateTable(USERS), InsertRows(USERS, [{"id": 1}])])
    await target.commit({})
    if place.startswith("sqlite"):
        with sqlite_driver.connect(place.removeprefix("sqlite:///")) as connection:
            connection.execute(
                f"CREATE TRIGGER t BEFORE INSERT ON {sqlite.table_name(USERS)}"
                " WHEN NEW.id = 3 BEGIN SELECT RAISE(IGNORE); END"
            )
    else:
        async with await psycopg.AsyncConnection.connect(place) as server:
            await server.execute(
                "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
            )
            await server.execute(
                f"CREATE TRIGGER t BEFORE INSERT ON {table_name(USERS)}"
                " FOR EACH ROW WHEN (NEW.id = 3) EXECUTE FUNCTION f()"
            )
    await target.write([InsertRows(USERS, [{"id": 2}])])
    with pytest.raises(RowMissingError):
        await target.write([InsertRows(USERS, [{"id": 3}, {"id": 4}])])
    await target.close()


async def test_of_equal_rows_one_is_changed(target: ReadableTarget) -> None:
    keyless = Table("public", "keyless", USERS.columns, (), ("id", "na me"))
    await target.load()
    await target.write(
        [CreateTable(keyless), InsertRows(keyless, [{"id": 1}, {"id": 1}, {"id": 1}])]
    )
    await target.write([DeleteRow(keyless, {"id": 1, "na me": None})])
    await target.write([UpdateRow(keyless, {"id": 1, "na me": None}, {"id": 2, "na me": "b"})])
    await target.commit({})
    assert sorted(await shown(target, keyless), key=str) == [("1", None), ("2", "b")]


async def test_a_table_takes_anothers_place_and_changes_its_shape(target: ReadableTarget) -> None:
    staged = Table(
        USERS.schema, USERS.name, USERS.columns, USERS.primary_key, USERS.identity, staging=True
    )
    await target.load()
    await target.write(
        [CreateTable(USERS), InsertRows(USERS, [{"id": 1, "na me": "old"}]), CreateTable(staged)]
    )
    await target.write([InsertRows(staged, [{"id": 2, "na me": "new"}]), SwapTables(staged)])
    # Twice: nothing of the first is in the way of the second.
    await target.write(
        [CreateTable(staged), InsertRows(staged, [{"id": 3, "na me": "newer"}]), SwapTables(staged)]
    )
    after = Table(
        "app", USERS.name, (Column("key", "integer"), Column("n", "numeric")), ("key",), ("key",)
    )
    await target.write(
        [AlterTable(USERS, after, {"key": "id"}), UpdateRow(after, {"key": 3}, {"n": "1.50"})]
    )
    await target.commit({})
    assert await shown(target, after) == [("3", "1.50")]
    await target.write([DropTable(after)])
    await target.commit({})
    with pytest.raises((TargetError, Exception), match=r"no such table|does(n't| not) exist"):
        await read(target, after)


async def test_a_new_column_has_its_filled_value_in_rows_that_are_there_and_in_no_later_one(
    target: ReadableTarget,
) -> None:
    await target.load()
    await target.write([CreateTable(USERS), InsertRows(USERS, [{"id": 1, "na me": "old"}])])
    more = (*USERS.columns, Column("plan", "text"), Column("n", "integer"), Column("doc", "json"))
    after = Table(USERS.schema, USERS.name, more, USERS.primary_key, USERS.identity)
    document = '{"a": 1.50}'
    filled = {
        "plan": Filled("it's \\ 100 %", "it's \\ 100 %"),
        "n": Filled(-7, "-7"),
        "doc": Filled(ExactText(document), document),
    }
    await target.write(
        [AlterTable(USERS, after, {}, filled), InsertRows(after, [{"id": 2, "na me": "new"}])]
    )
    await target.commit({})
    assert sorted(await shown(target, after), key=str) == [
        ("1", "old", "it's \\ 100 %", "-7", document),
        ("2", "new", None, None, None),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("public", "users"), ("public", "Users")),
        (("a", "b"), ("public", "a.b")),
        (None, ("public", "headrace_mirror")),
    ],
)
async def test_two_tables_that_would_be_one_in_sqlite_are_refused_before_either_is_touched(
    one: tuple[str, str] | None, other: tuple[str, str], tmp_path: Path
) -> None:
    target = target_of(f"sqlite:///{tmp_path}/t.db")
    await target.load()
    columns = (Column("id", "integer"),)
    if one is not None:
        first = Table(*one, columns)
        await target.write([CreateTable(first), InsertRows(first, [{"id": 1}])])
        await target.commit({f"table {first.token}": TableState(*one, live=first).encode()})
    with pytest.raises(TargetError, match="SQLite file"):
        await target.write([CreateTable(Table(*other, columns, staging=True))])
    await target.load()
    if one is not None:
        assert await read(target, first) == [(1,)]
        # The table itself may always be recreated.
        await target.write([CreateTable(Table(*one, columns, staging=True))])
    await target.close()


async def test_the_mirrors_own_table_of_older_tables_is_accepted(target: ReadableTarget) -> None:
    row = {"schema_name": "public", "table_name": "a", "lsn": "0/1", "reason": "x"}
    await target.load()
    await target.write([CreateTable(STALE)])
    await target.write([InsertRows(STALE, [row])])
    await target.commit({})
    assert await shown(target, STALE) == [tuple(row.values())]
    await target.write([DeleteRow(STALE, row), DropTable(STALE)])
    await target.commit({})


async def test_a_first_copy_begins_again_where_an_earlier_one_ended(
    target: ReadableTarget,
) -> None:
    staged = replace(USERS, staging=True)
    await target.load()
    for number in range(2):
        await target.write([CreateTable(staged, replaces=False)])
        await target.write([InsertRows(staged, [{"id": number}])])
        await target.commit({})
    await target.write([SwapTables(staged, replaces=False)])
    await target.commit({})
    assert await shown(target, USERS) == [("1", None)]
