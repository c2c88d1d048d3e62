"""A database that a sink writes to, and its rows as its own client returns them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import duckdb
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.database import fresh_database
from headrace.testing.mariadb import MariadbServer
from headrace.testing.names import Names
from headrace.testing.seeded import World

KINDS = ("postgresql", "sqlite", "duckdb", "mariadb")
EQUAL_S = 120.0
# As long as `equals` waits: on a busy machine a reader misses many of the moments in which a sink has
# closed the file.
_BUSY_S = EQUAL_S

Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class DatabaseCopy:
    """`to` is the target's address for a sink; `read` runs a query and returns its rows."""

    kind: str
    to: str
    read: Callable[[str], Sequence[Sequence[Any]]]

    async def columns(self, table: str) -> list[str]:
        """The names of the table's columns; none if there is no table."""
        query = f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'"
        if self.kind == "sqlite":
            query = f"SELECT name FROM pragma_table_info('{table}')"
        elif self.kind == "mariadb":
            query += " AND table_schema = database()"
        return [str(name) for (name,) in await asyncio.to_thread(self.read, query)]

    async def rows(self, table: str, columns: Sequence[str]) -> Rows:
        """The table's rows as text, in the order of the first column."""
        query = f"SELECT {', '.join(columns)} FROM {table}"
        found = await asyncio.to_thread(self.read, query)
        return sorted(tuple(None if v is None else str(v) for v in row) for row in found)

    async def equals(self, world: World, table: str, columns: Sequence[str]) -> None:
        """Wait until the table has the source's rows."""
        deadline = time.monotonic() + EQUAL_S
        while True:
            wanted = await source_rows(world, table, columns)
            try:
                found: Any = await self.rows(table, columns)
            except (sqlite3.Error, duckdb.Error, asyncpg.PostgresError, AssertionError) as error:
                # The table is not there yet.
                found = repr(error)
            if found == wanted:
                return
            assert time.monotonic() < deadline, f"{self.kind}: {found} is not {wanted}"
            await asyncio.sleep(0.2)


async def source_rows(world: World, table: str, columns: Sequence[str]) -> Rows:
    """The rows as PostgreSQL's own text."""
    texts = ", ".join(f"{column}::text" for column in columns)
    return sorted(tuple(row) for row in await world.source.fetch(f"SELECT {texts} FROM {table}"))


@contextlib.asynccontextmanager
async def database_copy(
    kind: str, world: World, folder: Path, request: pytest.FixtureRequest
) -> AsyncIterator[DatabaseCopy]:
    """An empty database of this kind."""
    async with copy_on(kind, world.target.server, folder, request) as made:
        yield made


@contextlib.asynccontextmanager
async def copy_on(
    kind: str, server: EmbeddedPostgres, folder: Path, request: pytest.FixtureRequest
) -> AsyncIterator[DatabaseCopy]:
    """An empty database of this kind; a PostgreSQL is on this server."""
    if kind == "sqlite":
        path = folder / "copy.db"
        yield DatabaseCopy(kind, f"sqlite:///{path}", lambda sql: _sqlite(path, sql))
    elif kind == "duckdb":
        path = folder / "copy.duckdb"
        yield DatabaseCopy(kind, f"duckdb:///{path}", lambda sql: _duckdb(path, sql))
    elif kind == "postgresql":
        async with fresh_database(server, Names.new().other("copy")) as database:
            dsn = database.dsn
            yield DatabaseCopy(kind, dsn, lambda sql: asyncio.run(_postgres(dsn, sql)))
    else:
        to: str = request.getfixturevalue("mariadb_database")
        own: MariadbServer = request.getfixturevalue("mariadb")
        yield DatabaseCopy(kind, to, lambda sql: _mariadb(own, to.rpartition("/")[2], sql))


def _sqlite(path: Path, sql: str) -> Sequence[Sequence[Any]]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        found = connection.execute(sql).fetchall()
        connection.commit()
        return found


def _duckdb(path: Path, sql: str) -> Sequence[Sequence[Any]]:
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            with duckdb.connect(path, read_only=sql.startswith("SELECT")) as connection:
                # Not there if every table is in another schema.
                with contextlib.suppress(duckdb.CatalogException):
                    connection.execute("SET search_path = 'public'")
                return connection.execute(sql).fetchall()
        except (duckdb.IOException, duckdb.ConnectionException):
            # The sink has the file open.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


async def _postgres(dsn: str, sql: str) -> Sequence[Sequence[Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        found: list[Any] = await connection.fetch(sql)
        return [tuple(row) for row in found]
    finally:
        await connection.close()


def _mariadb(server: MariadbServer, database: str, sql: str) -> Sequence[Sequence[Any]]:
    lines = server.asked(sql, database).splitlines()
    return [[None if v == "NULL" else v for v in line.split("\t")] for line in lines]
