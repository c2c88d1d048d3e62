"""Additions of users to a table of a PostgreSQL target survive a new copy of the table.

The oracle is pg_dump: the schema is the same before and after.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.embedded.postgres_install import postgres_binaries
from headrace.mirror.postgres import PostgresTarget
from headrace.mirror.table import Column, Table
from headrace.mirror.target import CreateTable, InsertRows, SwapTables, TargetError
from headrace.testing.database import Database

COLUMNS = (
    Column("id", "integer"),
    Column("name", "text"),
    Column("n", "integer"),
    Column("gone", "integer"),
)
TABLE = Table("app", "users", COLUMNS, ("id",), ("id",))
ROW = {"id": 1, "name": "a", "n": 1, "gone": 1}
ADDITIONS = """
SET search_path = app;
CREATE TYPE app.mood AS ENUM ('good');
CREATE FUNCTION app.noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE INDEX by_name ON users (lower(name) text_pattern_ops DESC) INCLUDE (n) WHERE n > 0;
CREATE UNIQUE INDEX "Odd %s name" ON users (n, id) NULLS NOT DISTINCT;
ALTER TABLE users ADD PRIMARY KEY (id), ADD CONSTRAINT one_name UNIQUE (name) DEFERRABLE,
    ADD CONSTRAINT positive CHECK (n > 0), ADD CONSTRAINT no_overlap EXCLUDE (n WITH =),
    ADD CONSTRAINT parent FOREIGN KEY (n) REFERENCES users (id),
    ALTER name SET NOT NULL;
CREATE TABLE notes (user_id int REFERENCES users (id) ON DELETE CASCADE, at timestamptz);
INSERT INTO notes VALUES (1, now());
ALTER TABLE users ADD CONSTRAINT in_plans FOREIGN KEY (n) REFERENCES plans NOT VALID;
CREATE VIEW names WITH (security_barrier = true) AS SELECT id, name, n + 1 AS more FROM users;
CREATE VIEW "Good ones" AS SELECT names.*, u.n FROM names JOIN users u USING (id);
COMMENT ON TABLE users IS 'it''s copied'; COMMENT ON COLUMN users.name IS 'the name';
COMMENT ON VIEW names IS 'for readers';
CREATE STATISTICS together ON name, n FROM users;
CREATE TRIGGER noted BEFORE INSERT ON users FOR EACH ROW WHEN (NEW.n > 5) EXECUTE FUNCTION noted();
ALTER TABLE users DISABLE TRIGGER noted;
CREATE RULE quiet AS ON DELETE TO users WHERE old.n = 99 DO INSTEAD NOTHING;
CREATE POLICY own ON users AS RESTRICTIVE FOR SELECT TO {role}, PUBLIC USING (n > 0);
CREATE POLICY writes ON users FOR INSERT WITH CHECK (n > 0);
ALTER TABLE users ENABLE ROW LEVEL SECURITY;
GRANT SELECT, UPDATE ON users TO {role} WITH GRANT OPTION;
GRANT INSERT (name) ON users TO PUBLIC;
GRANT SELECT ON names TO {role};
ALTER VIEW "Good ones" OWNER TO {role};
"""


class Copy:
    """A target, a connection of its user, and a role."""

    def __init__(self, database: Database, target: PostgresTarget, role: str) -> None:
        self.database = database
        self.target = target
        self.role = role

    async def replaced(self, columns: tuple[Column, ...] = COLUMNS, name: str = "users") -> None:
        """Replace the table by a new copy."""
        staged = replace(TABLE, name=name, columns=columns, staging=True)
        row = {column.name: ROW[column.name] for column in columns}
        await self.target.write([CreateTable(staged), InsertRows(staged, [row])])
        await self.target.write([SwapTables(staged)])
        await self.target.commit({})

    def dumped(self) -> str:
        """The schema `app` as SQL."""
        program = postgres_binaries(18, None) / "pg_dump"
        done = subprocess.run(
            [program, "--schema-only", "--schema=app", self.database.dsn],
            capture_output=True,
            text=True,
            check=True,
        )
        # The order of objects follows their age, and \restrict has a random key.
        parts = done.stdout.split("\n\n\n")
        return "\n".join(sorted(part for part in parts if "restrict" not in part))

    async def sql(self, query: str) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(
            self.database.dsn, autocommit=True
        ) as connection:
            cursor = await connection.execute(query.encode())
            return await cursor.fetchall() if cursor.description else []


@pytest.fixture
async def copy(database: Database) -> AsyncIterator[Copy]:
    target = PostgresTarget(database.dsn)
    await target.load()
    made = Copy(database, target, f"reader_{database.name}")
    await database.execute(
        f"CREATE ROLE {made.role}; CREATE SCHEMA app; CREATE TABLE app.plans (id int PRIMARY KEY)"
    )
    await made.target.write([CreateTable(TABLE), InsertRows(TABLE, [ROW])])
    await made.target.commit({})
    yield made
    await target.close()
    await database.execute(f"DROP OWNED BY {made.role}; DROP ROLE {made.role}")


async def test_a_new_copy_has_everything_that_users_added_to_the_old_one(copy: Copy) -> None:
    await copy.sql(ADDITIONS.format(role=copy.role))
    before = copy.dumped()
    assert "Odd %s name" in before
    for _ in range(2):
        await copy.replaced()
        assert copy.dumped() == before
    assert await copy.sql("SELECT * FROM app.names") == [(1, "a", 2)]
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await copy.sql("INSERT INTO app.notes VALUES (17)")
    # And another type of a column that views, indexes and constraints use.
    bigger = tuple(replace(one, data_type="bigint") if one.name == "n" else one for one in COLUMNS)
    await copy.sql("ALTER TABLE app.users DROP CONSTRAINT in_plans, DROP CONSTRAINT parent")
    without = copy.dumped()
    await copy.replaced(bigger)
    assert copy.dumped() == without.replace("n integer", "n bigint")


async def test_tables_that_refer_to_each_other_are_replaced_together(copy: Copy) -> None:
    others = replace(TABLE, name="others")
    await copy.target.write([CreateTable(others), InsertRows(others, [ROW])])
    await copy.target.commit({})
    await copy.sql(
        "ALTER TABLE app.users ADD PRIMARY KEY (id); ALTER TABLE app.others ADD PRIMARY KEY (id); "
        "ALTER TABLE app.others ADD FOREIGN KEY (n) REFERENCES app.users; "
        "ALTER TABLE app.users ADD FOREIGN KEY (n) REFERENCES app.others"
    )
    before = copy.dumped()
    row = ROW | {"id": 2, "n": 2}
    for table in (TABLE, others):
        staged = replace(table, staging=True)
        await copy.target.write([CreateTable(staged), InsertRows(staged, [row])])
    # In between, neither refers to a row of the other.
    await copy.target.write([SwapTables(replace(TABLE, staging=True))])
    await copy.target.write([SwapTables(replace(others, staging=True))])
    await copy.target.commit({})
    assert copy.dumped() == before
    assert await copy.sql("SELECT * FROM app.users JOIN app.others USING (n)") != []
    # A copy that lacks a row to which the other table refers.
    staged = replace(TABLE, staging=True)
    await copy.target.write([CreateTable(staged), InsertRows(staged, [row | {"id": 3}])])
    await copy.target.write([SwapTables(staged)])
    with pytest.raises(TargetError, match=r"foreign key others_n_fkey of app\.others"):
        await copy.target.commit({})
    await copy.target.load()
    assert copy.dumped() == before


async def test_only_indexes_of_columns_that_are_gone_are_left_out(copy: Copy) -> None:
    await copy.sql("CREATE INDEX of_gone ON app.users (gone); CREATE INDEX of_n ON app.users (n)")
    await copy.sql(f"GRANT SELECT (gone), SELECT (n) ON app.users TO {copy.role}")
    await copy.replaced(COLUMNS[:3])
    names = await copy.sql("SELECT indexname FROM pg_indexes WHERE indexname LIKE 'of_%'")
    assert names == [("of_n",)]
    granted = await copy.sql(
        "SELECT column_name FROM information_schema.column_privileges WHERE grantee = "
        f"'{copy.role}'"
    )
    assert granted == [("n",)]


@pytest.mark.parametrize(
    ("addition", "named"),
    [
        ("CREATE VIEW app.needy AS SELECT id, gone FROM app.users", "view app.needy"),
        ("CREATE MATERIALIZED VIEW app.kept AS SELECT id FROM app.users", "app.kept"),
        (
            "CREATE POLICY p ON app.users USING (gone > 0)",
            "policy p",
        ),
        ("CREATE UNIQUE INDEX twice ON app.users ((id / 2))", "index twice"),
    ],
)
async def test_a_table_keeps_its_old_copy_if_the_new_one_cannot_have_an_addition(
    copy: Copy, addition: str, named: str
) -> None:
    await copy.sql(addition)
    before = copy.dumped()
    staged = replace(TABLE, columns=COLUMNS[:3], staging=True)
    rows = [{"id": number, "name": "b", "n": 1} for number in (2, 3)]
    await copy.target.write([CreateTable(staged), InsertRows(staged, rows)])
    with pytest.raises(TargetError, match=named):
        await copy.target.write([SwapTables(staged)])
    await copy.target.load()
    assert copy.dumped() == before
    assert await copy.sql("SELECT id FROM app.users") == [(1,)]


async def test_a_table_may_have_the_name_of_one_of_the_mirrors_own(copy: Copy) -> None:
    marks = replace(TABLE, name="marks")
    await copy.target.write([CreateTable(marks)])
    await copy.target.commit({"place": "1"})
    await copy.sql("ALTER TABLE app.marks ADD PRIMARY KEY (id)")
    before = copy.dumped()
    await copy.replaced(name="marks")
    assert copy.dumped() == before
    assert await copy.target.load() == {"place": "1"}
