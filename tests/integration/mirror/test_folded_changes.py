"""Changes that a PostgreSQL target applies together leave the rows that SQL itself leaves.

A seeded script runs as SQL in a database, and as steps in a target, in one write for each commit.
PostgreSQL compares the tables of both. The scripts change keys, swap unique values, delete rows and
insert them again, truncate, and leave columns out as PostgreSQL does with large values.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.mirror.postgres import PostgresTarget
from headrace.mirror.postgres_statements import table_name
from headrace.mirror.rules import TableRules
from headrace.mirror.table import Column, Table
from headrace.mirror.target import (
    AlterTable,
    CreateTable,
    DeleteRow,
    InsertRows,
    RemoveSoftDeleted,
    RowMissingError,
    Step,
    TruncateTable,
    UpdateRow,
)
from headrace.testing.database import Database, fresh_database
from headrace.testing.names import Names

COLUMNS = (
    Column("id", "integer"),
    Column("k%", "text"),
    Column("n", "numeric(12,2)"),
    Column('t"e', "text"),
    Column("list", "text[]"),
)
# The replica identity is a key of two columns, of one, or the whole row.
PAIR = Table("app", "pair", COLUMNS, ("id", "k%"), ("id", "k%"))
SINGLE = Table("app", "single's", COLUMNS, ("id",), ("id",))
WHOLE = Table("app", "whole", COLUMNS, ("id",), tuple(column.name for column in COLUMNS))
TABLES = (PAIR, SINGLE, WHOLE)
TEXTS = ("", "a", "NULL", "\\N", 'qu"ote', "comma,{brace}", "tab\t", "line\n\r", "back\\", "ü𝄞")
SEEDS = range(24)
STEPS = 60

Row = dict[str, Any]


@dataclass
class Script:
    """Statements at the source, and the steps that the stream's events become."""

    seed: int
    statements: list[tuple[str, list[Any]]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    rows: dict[str, dict[tuple[Any, ...], Row]] = field(
        default_factory=lambda: {table.name: {} for table in TABLES}
    )

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def _row(self) -> Row:
        chance = self.chance
        return {
            "id": chance.randrange(6),
            "k%": chance.choice(("a", "A", 'b"', "c\\", "")),
            "n": chance.choice((None, "1.00", "1.5", "-3", "NaN")),
            't"e': chance.choice((None, *TEXTS)),
            "list": chance.choice((None, [], ["x", None, 'y"'], ["NULL", "a,b"])),
        }

    def add(self) -> None:
        """One change that the source accepts."""
        table = self.chance.choice(TABLES)
        rows = self.rows[table.name]
        kind = self.chance.choices(
            ("insert", "update", "delete", "replace", "move", "truncate"),
            (8, 12, 5, 3, 3, 0.3 if rows else 0),
        )[0]
        if kind == "truncate":
            self._run(f"TRUNCATE {table_name(table)}", [], TruncateTable(table))
            rows.clear()
        elif kind == "insert" or not rows:
            row = self._row()
            if _key(table, row) not in rows:
                self._insert(table, row)
        else:
            self._change(kind, table, self.chance.choice(list(rows.values())))

    def _change(self, kind: str, table: Table, row: Row) -> None:
        rows = self.rows[table.name]
        if kind in {"delete", "replace"}:
            self._delete(table, row)
            if kind == "replace":
                self._insert(table, {**self._row(), **{k: row[k] for k in table.primary_key}})
            return
        after = self._row()
        if kind == "update":
            after |= {name: row[name] for name in table.primary_key}
        elif _key(table, after) in rows:
            return
        # Large values that did not change are not in the event.
        if self.chance.random() < 0.4:
            after['t"e'] = row['t"e']
            left_out = {'t"e'}
        else:
            left_out = set()
        sets = ", ".join(f"{_name(name)} = %s" for name in after)
        found, values = _found(table, row)
        del rows[_key(table, row)]
        rows[_key(table, after)] = after
        data = {name: value for name, value in after.items() if name not in left_out}
        where = row if table is WHOLE else {name: row[name] for name in table.identity}
        self._run(
            f"UPDATE {_sql(table)} SET {sets} WHERE {found}",
            [*after.values(), *values],
            UpdateRow(table, where, data),
        )

    def _insert(self, table: Table, row: Row) -> None:
        self.rows[table.name][_key(table, row)] = row
        marks = ", ".join(["%s"] * len(row))
        sql = f"INSERT INTO {_sql(table)} VALUES ({marks})"
        self._run(sql, list(row.values()), InsertRows(table, [row]))

    def _delete(self, table: Table, row: Row) -> None:
        del self.rows[table.name][_key(table, row)]
        found, values = _found(table, row)
        where = row if table is WHOLE else {name: row[name] for name in table.identity}
        self._run(f"DELETE FROM {_sql(table)} WHERE {found}", values, DeleteRow(table, where))

    def _run(self, sql: str, values: list[Any], step: Step) -> None:
        self.statements.append((sql, values))
        self.steps.append(step)


def _key(table: Table, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in table.primary_key)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _sql(table: Table) -> str:
    return f'"{table.schema}"."{table.name}"'


def _found(table: Table, row: Row) -> tuple[str, list[Any]]:
    found = " AND ".join(f"{_name(name)} = %s" for name in table.primary_key)
    return found, list(_key(table, row))


@dataclass
class Pair:
    """The same tables, in a database that runs SQL and in a target."""

    source: psycopg.AsyncConnection[Any]
    target: PostgresTarget
    sees: psycopg.AsyncConnection[Any]

    async def create(self, *more: str, tables: Iterable[Table] = TABLES) -> None:
        await self.source.execute(b"CREATE SCHEMA app")
        for table in tables:
            columns = ", ".join(f"{_name(c.name)} {c.data_type}" for c in table.columns)
            key = ", ".join(map(_name, table.primary_key))
            sql = f"CREATE TABLE {_sql(table)} ({columns}, PRIMARY KEY ({key}))"
            await self.source.execute(sql.replace("%%", "%").encode())
        await self.commit([CreateTable(table) for table in tables])
        for sql in more:
            await self.sees.execute(sql.encode())

    async def commit(self, steps: list[Step]) -> None:
        await self.target.write(steps)
        await self.target.commit({})

    async def different(self, tables: Iterable[Table] = TABLES) -> list[str]:
        """The tables whose rows differ, as texts."""
        found = []
        for table in tables:
            query = f"SELECT row({', '.join(_name(c.name) for c in table.columns)})::text FROM "
            query = (query + f"{_sql(table)} ORDER BY 1").replace("%%", "%")
            here, there = [
                await (await one.execute(query.encode())).fetchall()
                for one in (self.source, self.sees)
            ]
            if here != there:
                found.append(f"{table.name}: {here} at the source, {there} in the target")
        return found

    async def run(self, script: Script, commits: int = 4) -> None:
        """Both sides, in as many commits."""
        for _ in range(commits):
            script.statements, script.steps = [], []
            for _ in range(STEPS):
                script.add()
            for sql, values in script.statements:
                await self.source.execute(sql.encode(), values)
            await self.commit(script.steps)
            assert not await self.different(), f"seed {script.seed}"


@pytest.fixture
async def pair(
    database: Database, postgres_server: EmbeddedPostgres, names: Names
) -> AsyncIterator[Pair]:
    target = PostgresTarget(database.dsn)
    await target.load()
    async with (
        fresh_database(postgres_server, names.other("source")) as there,
        await psycopg.AsyncConnection.connect(there.dsn, autocommit=True) as source,
        await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as sees,
    ):
        yield Pair(source, target, sees)
    await target.close()


async def test_changes_applied_together_leave_the_rows_that_sql_leaves(pair: Pair) -> None:
    await pair.create()
    for seed in SEEDS:
        for table in TABLES:
            await pair.source.execute(f"TRUNCATE {_sql(table)}".encode())
        await pair.commit([TruncateTable(table) for table in TABLES])
        await pair.run(Script(seed))


@pytest.mark.parametrize(
    "additions",
    [
        # Unique values that contain the identity are unique whenever the identity is.
        ('ALTER TABLE app."single\'s" ADD PRIMARY KEY (id)',),
        ('CREATE UNIQUE INDEX ON app.pair (n, id, "k%")',),
    ],
)
async def test_additions_of_users_change_no_row(pair: Pair, additions: tuple[str, ...]) -> None:
    await pair.create(*additions)
    await pair.run(Script(7))


ITEM = Table("app", "item", (Column("id", "integer"), Column("u", "integer")), ("id",), ("id",))
LINE = replace(ITEM, name="line")


def _items(*numbers: int, table: Table = ITEM) -> list[Step]:
    return [InsertRows(table, [{"id": number, "u": number}]) for number in numbers]


async def test_a_unique_column_sees_every_moment_of_the_source(pair: Pair) -> None:
    await pair.create("CREATE UNIQUE INDEX ON app.item (u)", tables=[ITEM])
    await pair.commit(_items(*range(40)))
    # The first row lends its value to the second, and takes another one in the end.
    steps: list[Step] = [
        UpdateRow(ITEM, {"id": 1}, {"id": 1, "u": -1}),
        UpdateRow(ITEM, {"id": 0}, {"id": 0, "u": 1}),
        UpdateRow(ITEM, {"id": 1}, {"id": 1, "u": 0}),
        *[UpdateRow(ITEM, {"id": number}, {"id": number}) for number in range(2, 40)],
    ]
    await pair.commit(steps)
    rows = await (await pair.sees.execute("SELECT u FROM app.item ORDER BY id LIMIT 3")).fetchall()
    assert rows == [(1,), (0,), (2,)]


async def test_a_foreign_key_of_a_user_sees_the_tables_in_the_order_of_the_source(
    pair: Pair,
) -> None:
    await pair.create(
        "ALTER TABLE app.item ADD PRIMARY KEY (id)",
        "ALTER TABLE app.line ADD FOREIGN KEY (u) REFERENCES app.item",
        tables=[ITEM, LINE],
    )
    await pair.commit([*_items(*range(20)), *_items(*range(20), table=LINE)])
    steps: list[Step] = []
    for number in range(20):
        steps += _items(number + 20)
        steps += _items(number + 20, table=LINE)
        steps += [DeleteRow(LINE, {"id": number}), DeleteRow(ITEM, {"id": number})]
    await pair.commit(steps)
    query = "SELECT count(*), min(id) FROM app.line"
    assert await (await pair.sees.execute(query.encode())).fetchall() == [(20, 20)]


LOGGED = """
CREATE TABLE app.log (entry bigserial, what text);
CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO app.log (what) SELECT concat_ws(' ', tg_op, old.u, new.u, count(*)) FROM app.line;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON app.item
    FOR EACH ROW EXECUTE FUNCTION app.note()
"""


async def test_a_trigger_of_a_user_sees_every_change_among_those_of_other_tables(
    pair: Pair,
) -> None:
    await pair.create(LOGGED, tables=[ITEM, LINE])
    steps: list[Step] = [*_items(*range(20), table=LINE), *_items(1)]
    for number in range(3):
        steps.append(UpdateRow(ITEM, {"id": 1}, {"id": 1, "u": 10 + number}))
        steps.append(DeleteRow(LINE, {"id": number}))
    steps.append(DeleteRow(ITEM, {"id": 1}))
    await pair.commit(steps)
    logged = await (await pair.sees.execute("SELECT what FROM app.log ORDER BY entry")).fetchall()
    assert [what for (what,) in logged] == [
        "INSERT 1 20",
        "UPDATE 1 10 20",
        "UPDATE 10 11 19",
        "UPDATE 11 12 18",
        "DELETE 12 17",
    ]


async def test_changes_of_shape_divide_the_changes_before_from_those_after(pair: Pair) -> None:
    await pair.create(tables=[ITEM])
    after = replace(ITEM, columns=(ITEM.columns[0], Column("v", "text")))
    steps: list[Step] = [
        *_items(*range(20)),
        UpdateRow(ITEM, {"id": 1}, {"id": 1, "u": 100}),
        AlterTable(ITEM, after, {"v": "u"}),
        UpdateRow(after, {"id": 1}, {"id": 1, "v": "text"}),
        InsertRows(after, [{"id": 20, "v": "new"}]),
        DeleteRow(after, {"id": 2}),
    ]
    await pair.commit(steps)
    rows = await (await pair.sees.execute("SELECT id, v FROM app.item ORDER BY id")).fetchall()
    assert rows[:3] == [(0, "0"), (1, "text"), (3, "3")]
    assert rows[-1] == (20, "new")


@pytest.mark.parametrize(
    "wrong",
    [
        UpdateRow(ITEM, {"id": 999}, {"id": 999, "u": 0}),
        DeleteRow(ITEM, {"id": 999}),
        # Two rows of this key and none of another would be two rows in all.
        UpdateRow(ITEM, {"id": 1}, {"id": 1, "u": 0}),
        DeleteRow(ITEM, {"id": 1}),
    ],
)
async def test_a_row_among_many_that_is_not_there_exactly_once_is_reported(
    pair: Pair, wrong: Step
) -> None:
    await pair.create(tables=[ITEM])
    await pair.commit(_items(1, 2, *range(10, 40)))
    await pair.sees.execute("UPDATE app.item SET id = 1 WHERE id = 2")
    steps = [
        UpdateRow(ITEM, {"id": number}, {"id": number, "u": -number}) for number in range(10, 30)
    ]
    if isinstance(wrong, UpdateRow):
        others: list[Step] = [UpdateRow(ITEM, {"id": 2}, {"id": 2, "u": 0})]
    else:
        others = [DeleteRow(ITEM, {"id": 2})]
    with pytest.raises(RowMissingError):
        await pair.target.write([*steps, wrong, *others])
    await pair.target.load()
    assert await (await pair.sees.execute("SELECT min(u) FROM app.item")).fetchall() == [(1,)]


async def test_deleted_rows_that_stay_are_no_rows_of_the_source(pair: Pair) -> None:
    columns = (*ITEM.columns, Column("gone", "timestamp with time zone"))
    soft = replace(ITEM, columns=columns, rules=TableRules(soft_delete="gone"))
    await pair.commit([CreateTable(soft)])
    deleted = {"gone": "2026-01-01T00:00:00Z"}
    steps: list[Step] = [*_items(*range(20), table=soft)]
    steps += [UpdateRow(soft, {"id": number, "gone": None}, deleted) for number in (1, 2)]
    # The first comes back, with another value, and is changed.
    steps += [RemoveSoftDeleted(soft, [{"id": 1}]), *_items(1, table=soft)]
    steps.append(UpdateRow(soft, {"id": 1, "gone": None}, {"id": 1, "u": 100}))
    await pair.commit(steps)
    query = "SELECT id, u, gone IS NOT NULL FROM app.item WHERE id < 4 ORDER BY id"
    rows = await (await pair.sees.execute(query.encode())).fetchall()
    assert rows == [(0, 0, False), (1, 100, False), (2, 2, True), (3, 3, False)]
