"""A target in PostgreSQL, seen with SQL: the shape of its tables, the order of changes, and what a
reading guarantees.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.mirror import postgres
from headrace.mirror.postgres import PostgresReading, PostgresTarget
from headrace.mirror.postgres_statements import table_name
from headrace.mirror.table import Column, Table
from headrace.mirror.target import (
    AlterTable,
    CreateTable,
    DeleteRow,
    Filled,
    ForeignTableError,
    InsertRows,
    RowMissingError,
    Step,
    SwapTables,
    TargetError,
    TruncateTable,
    UpdateRow,
)
from headrace.testing.database import Database

ID = Column("id", "integer")
TABLE = Table("app", "u%s", (ID, Column("name", "text")), ("id",), ("name",))
INDEXES = (
    "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_index JOIN pg_attribute"
    " ON attrelid = indexrelid WHERE indrelid = %s::regclass GROUP BY indexrelid ORDER BY 1"
)
COLUMNS = (
    "SELECT attname, format_type(atttypid, atttypmod), atthasdef FROM pg_attribute"
    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


class Watched:
    """A target, and a connection that sees what it commits."""

    def __init__(self, target: PostgresTarget, sees: psycopg.AsyncConnection[Any]) -> None:
        self.target = target
        self.sees = sees

    async def commit(self, *steps: Step) -> None:
        await self.target.write(steps)
        await self.target.commit({})

    async def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return await (await self.sees.execute(query.encode(), values or None)).fetchall()

    async def indexes(self, table: Table) -> list[list[str]]:
        return [row[0] for row in await self.sql(INDEXES, table_name(table))]

    async def rows(self, table: Table) -> list[tuple[Any, ...]]:
        return await self.sql(f"SELECT * FROM {table_name(table)} ORDER BY 1, 2")


@pytest.fixture
async def watched(database: Database) -> AsyncIterator[Watched]:
    target = PostgresTarget(database.dsn)
    await target.load()
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as sees:
        yield Watched(target, sees)
    await target.close()


def rows(*names: str) -> list[dict[str, Any]]:
    return [{"id": number, "name": name} for number, name in enumerate(names)]


async def test_key_and_identity_are_indexed_also_after_a_copy_and_a_change_of_shape(
    watched: Watched,
) -> None:
    staged = replace(TABLE, staging=True)
    await watched.commit(CreateTable(TABLE), CreateTable(staged))
    assert await watched.indexes(TABLE) == await watched.indexes(staged) == [["id"], ["name"]]
    await watched.commit(SwapTables(staged))
    assert await watched.indexes(TABLE) == [["id"], ["name"]]
    after = replace(TABLE, columns=(Column("key", "integer"), ID), primary_key=("key",))
    after = replace(after, identity=("key",))
    await watched.commit(AlterTable(TABLE, after, {"key": "id"}))
    assert await watched.indexes(after) == [["key"]]


async def test_a_table_gets_exactly_the_columns_and_types_of_its_new_shape(
    watched: Watched,
) -> None:
    before = replace(TABLE, columns=(*TABLE.columns, Column("gone", "text"), Column("n", "text")))
    shape = (ID, Column("name", "text"), Column("n", "bigint"), Column("new", "boolean"))
    after = replace(before, columns=shape)
    await watched.commit(
        CreateTable(before),
        InsertRows(before, [{"id": 1, "name": "x", "gone": "y", "n": "7"}]),
        AlterTable(before, after, filled={"new": Filled(True, "t")}),
    )
    assert await watched.sql(COLUMNS, table_name(after)) == [
        (column.name, column.data_type, False) for column in shape
    ]
    assert await watched.rows(after) == [(1, "x", 7, True)]


async def test_changes_are_applied_in_their_order(watched: Watched) -> None:
    await watched.commit(
        CreateTable(TABLE),
        InsertRows(TABLE, rows("a", "b", "c")),
        UpdateRow(TABLE, {"id": 0}, {"id": 9}),
        InsertRows(TABLE, rows("new")),
        DeleteRow(TABLE, {"id": 0}),
        InsertRows(TABLE, rows("newer")),
        UpdateRow(TABLE, {"id": 1}, {}),
    )
    assert await watched.rows(TABLE) == [(0, "newer"), (1, "b"), (2, "c"), (9, "a")]
    await watched.commit(
        DeleteRow(TABLE, {"id": 9}), TruncateTable(TABLE), InsertRows(TABLE, rows("last"))
    )
    assert await watched.rows(TABLE) == [(0, "last")]


async def test_a_row_whose_key_is_null_is_found_by_all_its_values(watched: Watched) -> None:
    row = {"id": None, "name": "x"}
    await watched.commit(
        CreateTable(TABLE), InsertRows(TABLE, [row]), UpdateRow(TABLE, row, {"id": 1})
    )
    assert await watched.rows(TABLE) == [(1, "x")]


@pytest.mark.parametrize("staging", [False, True])
async def test_a_table_that_no_mirror_created_is_left_alone(
    watched: Watched, *, staging: bool
) -> None:
    staged = replace(TABLE, staging=True)
    name = table_name(TABLE)
    if staging:
        await watched.commit(CreateTable(staged))
    await watched.sees.execute(b"CREATE SCHEMA IF NOT EXISTS app")
    await watched.sees.execute(f"CREATE TABLE {name} AS SELECT 5 AS own".encode())
    step = SwapTables(staged, False) if staging else CreateTable(TABLE, False)
    with pytest.raises(ForeignTableError, match="exists there already"):
        await watched.target.write([step])
    await watched.target.load()
    assert await watched.sql(f"SELECT * FROM {name}") == [(5,)]
    # One that the mirror has created may be replaced, and a free name is taken.
    free = replace(TABLE, name="free")
    await watched.commit(CreateTable(free, False), CreateTable(free))


async def test_the_schema_of_the_mirrors_state_is_reserved(watched: Watched) -> None:
    with pytest.raises(TargetError, match="is reserved"):
        await watched.target.write([CreateTable(replace(TABLE, schema="headrace_mirror"))])


async def test_a_reading_keeps_its_table_and_writes_nothing(watched: Watched) -> None:
    """A TRUNCATE in the meantime would be visible in its snapshot."""
    await watched.commit(CreateTable(TABLE), InsertRows(TABLE, rows("a")))
    await watched.sees.execute(b"SET lock_timeout = '50ms'")
    truncate = f"TRUNCATE {table_name(TABLE)}".encode()
    async with watched.target.reading(TABLE) as reading:
        assert isinstance(reading, PostgresReading)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await watched.sees.execute(truncate)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await reading.connection.execute(b"CREATE TABLE other ()")
    await watched.sees.execute(truncate)


async def test_a_database_without_a_mirror_is_not_read(database: Database) -> None:
    with pytest.raises(TargetError, match="contains no mirror"):
        async with PostgresTarget(database.dsn).reading():
            pass


@pytest.mark.parametrize(
    "last", [UpdateRow(TABLE, {"id": 5}, {"id": 6}), DeleteRow(TABLE, {"id": 5})]
)
async def test_a_missing_row_is_noticed_among_many_changes(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, last: Step
) -> None:
    monkeypatch.setattr(postgres, "PIPELINED_MAX", 2)
    await watched.commit(CreateTable(TABLE), InsertRows(TABLE, rows("a", "b", "c")))
    steps: Sequence[Step] = [UpdateRow(TABLE, {"id": n}, {"name": "x"}) for n in (0, 1, 2)]
    with pytest.raises(RowMissingError):
        await watched.target.write([*steps, last])
    await watched.target.load()
    assert await watched.rows(TABLE) == [(0, "a"), (1, "b"), (2, "c")]
