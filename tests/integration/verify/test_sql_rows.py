"""The verifier's own SQL: digests that Python computes too, rows of chosen ranges, one text for each
value under any settings of the server, and the moment of a snapshot.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest

from headrace.errors import HeadraceError
from headrace.mirror.postgres import error_of
from headrace.settings import PostgresSettings, Settings, SourceSettings
from headrace.testing.database import Database
from headrace.verify import source, sql_rows
from headrace.verify.digest import RANGES, Digests
from headrace.verify.sql_rows import SqlRows, settle
from headrace.verify.types import SqlType, types_of

ROWS = [(number, f"row {number}") for number in range(60)]
# Every one of these changes how a value is printed.
ODD_SETTINGS = {
    "bytea_output": "escape",
    "datestyle": "German",
    "extra_float_digits": "-3",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kolkata",
}


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    await database.execute(
        "CREATE TABLE one (id int, name text); CREATE TABLE other (id int, name text)"
    )
    for table, some in (("one", ROWS[:40]), ("other", ROWS[40:])):
        for row in some:
            await database.execute(f"INSERT INTO {table} VALUES ($1, $2)", *row)
    async with await psycopg.AsyncConnection.connect(database.dsn) as made:
        yield made


def read(connection: psycopg.AsyncConnection[Any], *key: str, where: str = "true") -> SqlRows:
    relations = ["public.one", "public.other"]
    return SqlRows(connection, relations, ["id", "name"], error_of, key, where)


def hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def place_of(key: str) -> int:
    return int.from_bytes(hashed(key)[:2]) % RANGES


def expected(rows: Sequence[tuple[int, str]], *, keyed: bool) -> Digests:
    """As the module's docstring describes them, by Python's SHA-256."""
    made = Digests()
    for number, name in rows:
        text = f'({number},"{name}")'
        hash_ = hashed(text)
        low, high = (int.from_bytes(hash_[at : at + 8], signed=True) for at in (0, 8))
        place = place_of(f"({number})" if keyed else text)
        made.sums[place] = (made.sums[place] + low + (high << 64)) % (1 << 128)
        made.counts[place] += 1
    return made


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_server_adds_up_the_hashes_of_all_rows_by_ranges_of_their_keys(
    connection: psycopg.AsyncConnection[Any], *, keyed: bool
) -> None:
    key = ["id"] if keyed else []
    found = await read(connection, *key).digests()
    wanted = expected(ROWS, keyed=keyed)
    assert (found.sums, found.counts) == (wanted.sums, wanted.counts)
    some = await read(connection, *key, where="id < 50").digests()
    assert some.counts == expected(ROWS[:50], keyed=keyed).counts


@pytest.mark.parametrize("keyed", [True, False])
async def test_the_rows_of_a_range_are_those_whose_keys_fall_into_it(
    connection: psycopg.AsyncConnection[Any], *, keyed: bool
) -> None:
    texts = {(str(n), name): f"({n})" if keyed else f'({n},"{name}")' for n, name in ROWS}
    places = {place_of(text) for text in list(texts.values())[:7]}
    table = read(connection, *(["id"] if keyed else []))
    found = [row async for rows in table.rows(places) for row in rows]
    assert sorted(found) == sorted(row for row, text in texts.items() if place_of(text) in places)


async def test_all_rows_come_some_at_a_time(
    connection: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_rows, "READ_ROWS", 15)
    found = [rows async for rows in read(connection).rows()]
    assert [len(rows) for rows in found] == [15, 15, 10, 15, 5]
    assert [row for rows in found for row in rows] == [(str(n), name) for n, name in ROWS]


async def test_an_error_of_the_server_is_explained(
    connection: psycopg.AsyncConnection[Any],
) -> None:
    table = read(connection, where="1/0 = 1")
    with pytest.raises(HeadraceError, match="division by zero"):
        await table.digests()
    await connection.rollback()
    with pytest.raises(HeadraceError, match="division by zero"):
        [_ async for _ in table.rows()]


VALUES = (
    "SELECT '\\x00ff'::bytea, '2025-12-31'::date, 0.1::float8 + 0.2::float8,"
    " interval '1 mon 2 h', '2025-12-31 12:00+00'::timestamptz"
)
TEXTS = ("\\x00ff", "2025-12-31", "0.30000000000000004", "P1MT2H", "2025-12-31 12:00:00+00")


async def copied(connection: psycopg.AsyncConnection[Any]) -> tuple[Any, ...]:
    table = SqlRows(connection, [f"({VALUES}) v (a, b, c, d, e)"], list("abcde"), error_of)
    (row,) = [row async for rows in table.rows() for row in rows]
    return row


async def test_values_have_one_text_whatever_the_settings_are(database: Database) -> None:
    for name, value in ODD_SETTINGS.items():
        await database.execute(f"ALTER DATABASE {database.name} SET {name} = '{value}'")
    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        assert set(await copied(connection)).isdisjoint(TEXTS)
        await settle(connection)
        assert await copied(connection) == TEXTS


def settings(database: Database, slot: str = "absent") -> Settings:
    server = PostgresSettings(
        host="127.0.0.1", port=database.port, database=database.name, user=database.user
    )
    return Settings(postgres=server, source=SourceSettings(slot=slot))


async def test_rows_are_read_as_of_the_snapshot_and_never_written(database: Database) -> None:
    await database.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    for name, value in (*ODD_SETTINGS.items(), ("transaction_timeout", "1min")):
        await database.execute(f"ALTER DATABASE {database.name} SET {name} = '{value}'")
    holder = await asyncpg.connect(database.dsn)
    async with holder.transaction(isolation="repeatable_read"):
        held: Any = SimpleNamespace(exported=await holder.fetchval("SELECT pg_export_snapshot()"))
        await database.execute("INSERT INTO t VALUES (2)")
        async with source.in_snapshot(settings(database), held) as connection:
            for _ in range(2):
                table = SqlRows(connection, ["public.t"], ["id"], error_of)
                assert (await table.digests()).rows == 1
                await database.execute("INSERT INTO t VALUES (3)")
            assert await copied(connection) == TEXTS
            cursor = await connection.execute(b"SHOW transaction_timeout")
            assert await cursor.fetchone() == ("0",), "a large table may take longer"
        with pytest.raises(HeadraceError, match="read-only"):
            async with source.in_snapshot(settings(database), held) as connection:
                await connection.execute(b"DELETE FROM public.t")
    await holder.close()


async def test_a_missing_slot_confirms_nothing(database: Database) -> None:
    with pytest.raises(source.NoSlotError, match="slot absent does not exist"):
        await source.confirmed_lsn(settings(database))
    slot = f"{database.name}_slot"
    create = "SELECT (lsn - '0/0')::bigint FROM pg_create_logical_replication_slot($1, 'pgoutput')"
    lsn = await database.fetchval(create, slot)
    assert await source.confirmed_lsn(settings(database, slot)) == lsn


async def test_columns_have_their_servers_types_with_domains_and_elements_resolved(
    database: Database,
) -> None:
    await database.execute(
        "CREATE TYPE mood AS ENUM ('x'); CREATE DOMAIN counts AS int[]; CREATE DOMAIN more AS counts;"
        "CREATE TABLE t (n numeric(4,1), gone int, m mood, l more, b box[], name name);"
        "ALTER TABLE t DROP COLUMN gone"
    )
    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        assert await types_of(connection, "public.t") == {
            "n": SqlType("numeric"),
            "m": SqlType("mood"),
            "l": SqlType("integer[]", SqlType("integer")),
            "b": SqlType("box[]", SqlType("box", None, ";"), ";"),
            "name": SqlType("name"),
        }
