"""A check of a target says what a mirror would do there, and changes nothing. The oracles are the
targets' own catalogs, and what a mirror then really does.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from headrace.embedded.ports import free_port
from headrace.mirror import Column, CreateTable, Table, TargetError
from headrace.mirror.checking import CREATED, REFUSED, TableCheck, checked
from headrace.mirror.mirror_state import TABLE
from headrace.mirror.rules import CopyRules
from headrace.mirror.table import Phase, TableState
from headrace.mirror.target import ReadableTarget, TargetAwayError, target_of
from headrace.testing.database import Database
from headrace.testing.mariadb import MariadbServer
from headrace.testing.names import Names

KINDS = ("postgresql", "sqlite", "duckdb", "mariadb")
COLUMNS = (
    Column("id", "integer"),
    Column("name", "text"),
    Column("price", "numeric(9,2)"),
    Column("size", "double precision"),
    Column("at", "timestamp with time zone"),
    Column("mood", "shop.mood"),
)
USERS = Table("public", "users", COLUMNS, ("id",), ("id",))
ORDERS = Table("app", "orders", COLUMNS[:2], ("id",), ("id",))
_TYPES = """SELECT column_name, {} FROM information_schema.columns
WHERE table_name = 'users' ORDER BY ordinal_position"""
# The type of each column, and the names of all tables, as each server has them.
CATALOGS = {
    "postgresql": (
        """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = 'users'::regclass AND attnum > 0 ORDER BY attnum""",
        """SELECT nspname FROM pg_namespace WHERE nspname ~ 'headrace'
        UNION ALL SELECT tablename FROM pg_tables WHERE schemaname = 'public'""",
    ),
    "sqlite": (
        "SELECT name, type FROM pragma_table_info('users')",
        "SELECT name FROM sqlite_schema",
    ),
    "duckdb": (_TYPES.format("data_type"), "SELECT table_name FROM duckdb_tables()"),
    "mariadb": (
        _TYPES.format("upper(column_type)").replace("WHERE", "WHERE table_schema=database() AND"),
        "SHOW TABLES",
    ),
}


def names_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


@dataclass(frozen=True, slots=True)
class Place:
    """A target's address, and its own client."""

    kind: str
    to: str
    ask: Callable[[str], list[tuple[Any, ...]]]

    async def check(self, *tables: Table, rules: CopyRules | None = None) -> list[TableCheck]:
        found = await checked(self.to, {}, tables, rules or CopyRules())
        return list(found.tables)


@pytest.fixture(params=KINDS)
async def place(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> AsyncIterator[Place]:
    kind = request.param
    path = tmp_path / "copy.db"

    def in_file(sql: str) -> list[tuple[Any, ...]]:
        connection: Any = (sqlite3 if kind == "sqlite" else duckdb).connect(path)
        with contextlib.closing(connection):
            return list(connection.execute(sql).fetchall())

    def in_mariadb(sql: str) -> list[tuple[Any, ...]]:
        server: MariadbServer = request.getfixturevalue("mariadb")
        found = server.asked(sql, to.rpartition("/")[2])
        return [tuple(line.split("\t")) for line in found.splitlines()]

    def in_postgres(sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    if kind == "postgresql":
        to = database.dsn
        yield Place(kind, to, in_postgres)
    elif kind == "mariadb":
        to = request.getfixturevalue("mariadb_database")
        yield Place(kind, to, in_mariadb)
    else:
        to = f"{kind}:///{path}"
        yield Place(kind, to, in_file)


@contextlib.asynccontextmanager
async def opened(to: str) -> AsyncIterator[ReadableTarget]:
    target = target_of(to)
    try:
        await target.load()
        yield target
    finally:
        await target.close()


async def test_a_check_shows_the_types_that_a_copy_gets_and_leaves_nothing(
    place: Place, tmp_path: Path
) -> None:
    users, orders = await place.check(USERS, ORDERS)
    assert (users.outcome, orders.outcome) == (CREATED, CREATED)
    assert names_in(tmp_path) == [], "no file is created"
    types, names = CATALOGS[place.kind]
    if place.kind in {"postgresql", "mariadb"}:
        assert place.ask(names) == []
    async with opened(place.to) as target:
        await target.write([CreateTable(USERS)])
        await target.commit({})
    wanted = [f"{name} {kind}".rstrip() for name, kind in place.ask(types)]
    if place.kind == "mariadb":
        # The server names the width of integers.
        wanted = [one.replace("INT(11)", "INT") for one in wanted]
    if place.kind == "duckdb":
        wanted = [one.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ") for one in wanted]
    assert list(users.columns) == wanted


async def test_a_check_of_a_running_mirror_disturbs_nobody(place: Place) -> None:
    state = TableState("public", "users", Phase.FOLLOWING, live=USERS)
    parked = TableState("app", "orders", Phase.PARKED, live=ORDERS, why="a reason")
    async with opened(place.to) as target:
        await target.write([CreateTable(USERS), CreateTable(ORDERS)])
        await target.commit({TABLE + one.token: one.encode() for one in (state, parked)})
        marks = await marks_of(target)
        users, orders = await place.check(USERS, ORDERS)
        assert (users.outcome, orders.outcome) == ("is followed", "is parked: a reason")
        (users,) = await place.check(USERS, rules=CopyRules(soft_delete="gone_at"))
        assert users.outcome == "would be copied again, by other rules"
        assert await marks_of(target) == marks
        # It is still the writer.
        await target.write([CreateTable(replace(USERS, staging=True))])
        await target.commit({})


async def marks_of(target: ReadableTarget) -> dict[str, str]:
    async with target.reading() as reading:
        return dict(reading.marks)


async def test_a_table_of_another_program_is_refused_and_not_touched(place: Place) -> None:
    place.ask("CREATE TABLE users (theirs int)" if place.kind != "duckdb" else _IN_PUBLIC)
    before = place.ask(CATALOGS[place.kind][0])
    users, orders = await place.check(USERS, ORDERS)
    assert (users.outcome, orders.outcome) == (REFUSED, CREATED)
    assert "exists there already" in users.why
    assert "Rename or drop it there" in users.why
    assert place.ask(CATALOGS[place.kind][0]) == before
    # The name that the copy would have decides.
    (renamed,) = await place.check(USERS, rules=CopyRules(destination="copied_{table}"))
    assert (renamed.outcome, renamed.name) == (CREATED, "public.copied_users")


_IN_PUBLIC = "CREATE SCHEMA public; CREATE TABLE public.users (theirs int)"


async def test_tables_that_rules_exclude_are_refused_by_name(place: Place) -> None:
    other = replace(USERS, schema="app")
    one, both = await place.check(USERS, other, rules=CopyRules(destination="all"))
    assert (one.outcome, both.outcome) == (CREATED, REFUSED)
    assert "public.users and app.users would both be public.all" in both.why
    rules = CopyRules(columns={"users": ("name",)})
    (users,) = await place.check(USERS, rules=rules)
    assert (users.outcome, "leaves out id" in users.why) == (REFUSED, True)


async def test_names_that_a_target_can_not_have_are_refused(place: Place) -> None:
    folded = replace(USERS, columns=(*COLUMNS, Column("ID", "integer")))
    (found,) = await place.check(folded)
    assert found.outcome == (CREATED if place.kind == "postgresql" else REFUSED)
    async with opened(place.to) as target:
        with contextlib.nullcontext() if found.outcome == CREATED else pytest.raises(TargetError):
            await target.write([CreateTable(folded)])
            await target.commit({})
    odd = replace(USERS, schema="100% \"odd'", name="`%s` ?", columns=(Column("%(a)s", "text"),))
    (found,) = await place.check(replace(odd, primary_key=(), identity=("%(a)s",)))
    assert found.outcome == CREATED, found.why


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
async def test_a_file_that_can_not_be_opened_says_why(kind: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="folder of the"):
        await checked(f"{kind}:///{tmp_path}/missing/copy.db", {}, (), CopyRules())
    assert names_in(tmp_path) == []
    other = tmp_path / "copy.db"
    other.write_bytes(b"not a database at all " * 1000)
    with pytest.raises(TargetError, match=r"file .*copy\.db"):
        await checked(f"{kind}:///{other}", {}, (), CopyRules())
    assert other.read_bytes() == b"not a database at all " * 1000


async def test_values_that_mariadb_lacks_are_named(mariadb_database: str) -> None:
    found = await checked(mariadb_database, {}, [USERS], CopyRules())
    assert found.tables[0].limits == (
        "price (DECIMAL(9,2)): NaN",
        "size (DOUBLE): NaN, infinities",
        "at (DATETIME(6)): years before Christ, years after 9999, infinities",
    )
    options = {"text": ["users.*"]}
    (users,) = (await checked(mariadb_database, options, [USERS], CopyRules())).tables
    assert users.limits == ()


async def remedied(to: str, tables: Sequence[Table], run: Callable[[str], Any]) -> list[str]:
    """Do what each refusal says, until nothing is refused; returns the remedies."""
    done: list[str] = []
    while True:
        try:
            found = await checked(to, {}, tables, CopyRules())
            refused = [table.why for table in found.tables if table.outcome == REFUSED]
        except TargetError as error:
            refused = [str(error)]
        if not refused:
            return done
        # The remedy follows the first sentence.
        remedy = refused[0].partition(". ")[2].rpartition(": ")[2]
        assert remedy not in done, "the remedy has no effect"
        done.append(remedy)
        await run(remedy)


async def test_the_remedies_for_missing_rights_in_postgresql_are_enough(
    database: Database, names: Names
) -> None:
    role = names.other("role")
    to = f"{database.dsn.replace(database.user, role, 1)}"
    await database.execute(
        f'CREATE ROLE "{role}" LOGIN; CREATE SCHEMA app; CREATE SCHEMA headrace_mirror'
    )
    try:
        done = await remedied(to, [USERS, ORDERS], database.execute)
        assert len(done) >= 3, done
        async with opened(to) as target:
            await target.write([CreateTable(USERS), CreateTable(ORDERS)])
            await target.commit({})
        # A table of the mirror that somebody took over can't be replaced.
        states = [TableState("public", "users", Phase.FOLLOWING, live=USERS)]
        async with opened(to) as target:
            await target.commit({TABLE + one.token: one.encode() for one in states})
        await database.execute("ALTER TABLE users OWNER TO CURRENT_USER")
        assert len(await remedied(to, [USERS], database.execute)) == 1
        async with opened(to) as target:
            await target.write([CreateTable(USERS)])
            await target.commit({})
    finally:
        await database.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


async def test_a_postgresql_that_accepts_no_writes_is_refused(database: Database) -> None:
    await database.execute(
        f'ALTER DATABASE "{database.name}" SET default_transaction_read_only = 1'
    )
    with pytest.raises(TargetError, match="accepts no writes"):
        await checked(database.dsn, {}, (), CopyRules())


async def test_the_password_of_a_postgresql_may_be_an_option(
    database: Database, names: Names
) -> None:
    role = names.other("role")
    await database.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'x' SUPERUSER")
    try:
        to = database.dsn.replace(database.user, role, 1)
        found = await checked(to, {"password": "p w'"}, [USERS], CopyRules())
        assert found.tables[0].outcome == CREATED
    finally:
        await database.execute(f'DROP ROLE "{role}"')


async def test_the_remedies_for_missing_rights_in_mariadb_are_enough(
    mariadb: MariadbServer, mariadb_database: str, names: Names
) -> None:
    user, name = names.other("user"), mariadb_database.rpartition("/")[2]
    # Patterns, of which one covers another database only; the other one ends with the remedy.
    mariadb.asked(
        f"CREATE USER '{user}'@'%'; GRANT SELECT, INSERT ON `{name[:-1]}_`.* TO '{user}'@'%';"
        f"GRANT UPDATE ON `{name}\\_`.* TO '{user}'@'%'"
    )

    async def run(remedy: str) -> None:
        mariadb.asked(remedy)

    to = mariadb.url(name, user)
    (remedy,) = await remedied(to, [USERS], run)
    assert remedy.startswith("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON")
    async with opened(to) as target:
        await target.write([CreateTable(USERS)])
        await target.commit({})


async def test_a_server_that_is_away_is_named() -> None:
    port = free_port()
    for to in (f"postgresql://u@127.0.0.1:{port}/d", f"mariadb://u@127.0.0.1:{port}/d"):
        with pytest.raises(TargetAwayError):
            await checked(to, {}, (), CopyRules())
