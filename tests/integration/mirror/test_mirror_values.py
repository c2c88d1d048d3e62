"""A mirror has the source's values: by `col::text` in PostgreSQL, and in SQLite by the text that
PostgreSQL printed.

Each value goes into an event as the publisher makes it, and out as a reader has it, in both
encodings; what it must be, the two databases say.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.contract import events, exact
from headrace.contract.values import ArrayForm, Encoding, ValueOptions, converter
from headrace.mirror.postgres import PostgresTarget
from headrace.mirror.sqlite import SqliteTarget
from headrace.mirror.table import Column, Table
from headrace.mirror.target import CreateTable, DeleteRow, InsertRows, UpdateRow
from headrace.postgres import catalog
from headrace.testing.database import Database, fresh_database
from headrace.testing.names import Names

SESSION = (
    "SET DateStyle = ISO; SET TimeZone = UTC; SET IntervalStyle = iso_8601; SET extra_float_digits "
    "= 1; "
    "SET bytea_output = hex; SET lc_monetary = 'C'; SET search_path = pg_catalog"
)
DOCUMENTS = (
    "'null'", "NULL", "'{\"a\": null}'", "'{\"n\": 12345678901234567890123}'", "'18446744073709551616'",
    "'{\"price\": 0.1234567890123456789}'", "'{\"price\": 1.50, \"tiny\": 0.0000001}'", "'1e400'", "'\"null\"'",
    "(repeat('[', 600) || repeat(']', 600))", "'[1e22, 1.0, -0.5]'", r"""'{"t": "\" 1e-7 \\ ä\n\u0001"}'""",
)  # fmt: skip
ARRAYS = (
    ("jsonb[]", """ARRAY['[1,2]', '[3,4]']"""), ("jsonb[]", """ARRAY['"1"', '"a"', 'true', '1.50']"""),
    ("jsonb[]", "ARRAY['null', NULL]"), ("jsonb[]", """ARRAY[['{"a": [1]}'], ['{"b": "x y"}']]"""),
    ("json[]", """ARRAY['{"a": 1,  "a": 2}']"""), ("bytea[]", r"ARRAY['\x68656c6c6f'::bytea, '', NULL]"),
    ("bool[]", "'{t,f,NULL}'"), ("int[]", "'[0:1]={7,8}'"), ("int[]", "'{{1,2},{3,NULL}}'"), ("int[]", "'{}'"),
    ("text[]", r"""ARRAY['NULL', NULL, '', 'null', 'a,b', '"', '\', '{}', E'\t', 'é', ' ']"""),
    ("float8[]", "'{0.1,NaN,-Infinity,-0,1e15,1e-7}'"), ("numeric[]", "'{1.50,NaN}'"), ("money[]", "'{1.50,-1234}'"),
    ("timestamptz[]", "'{2020-01-01 02:00:00+02,infinity,0044-03-15 12:00:00+00 BC}'"),
    ("interval[]", "'{1 year 2 mons,-1 days,00:00:01.5}'"), ("box[]", "'{(1,1),(0,0);(2,2),(1,1)}'"),
    ("int4range[]", "ARRAY['[1,3)'::int4range, 'empty']"), ("public.shade[]", """'{"dark, red",light,NULL}'"""),
    ("public.spot[]", """ARRAY[ROW(1, 'a,b', '1 year')::public.spot, NULL]"""), ("public.pets[]", "'{1,2}'"),
    ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'"), ("date[]", "'{2020-01-01,infinity}'"),
    ("timetz[]", "'{12:00:34.5+02}'"), ("character(5)[]", "'{ab,c}'"), ("character varying(9)[]", "'{x y}'"),
)  # fmt: skip
SETUP = (
    "CREATE TYPE public.shade AS ENUM ('light', 'dark, red'); CREATE TYPE public.spot AS (x int, y "
    "text, i interval); "
    "CREATE DOMAIN public.pets AS int"
)


_LONG = {
    "bool": "boolean", "int": "integer", "float8": "double precision",
    "timestamptz": "timestamp with time zone", "timetz": "time with time zone",
}  # fmt: skip


def _long_name(kind: str) -> str:
    """As format_type has it."""
    return _LONG.get(kind.removesuffix("[]"), kind.removesuffix("[]")) + (
        "[]" if kind.endswith("[]") else ""
    )


class Wire:
    """Values of the source, by way of an event."""

    def __init__(self, source: Any, arrays: ArrayForm, encoding: Encoding) -> None:
        self._source = source
        self._options = ValueOptions(encoding, arrays)

    async def printed(self, kind: str, literal: str) -> str | None:
        # The text of the output function: a cast to text trims character(n).
        text: str | None = await self._source.fetchval(
            "SELECT CASE WHEN num_nulls(v) = 0 THEN format('%s', v) END FROM (SELECT "
            f"({literal})::{kind} AS v) AS one"
        )
        return text

    async def row(self, values: Mapping[str, tuple[str, str | None]]) -> Mapping[str, Any]:
        """By the column: its type, and what the source printed."""
        payload: dict[str, Any] = {"data": {}, "exact": {}}
        for name, (kind, text) in values.items():
            oid = await self._source.fetchval("SELECT $1::regtype::oid::int8", kind)
            types = await catalog.types(self._source, {oid})
            value = (
                None if text is None else converter(oid, self._options, types.get)(text.encode())
            )
            payload["data"][name] = exact.native(value)
            if isinstance(value, exact.Inexact):
                payload["exact"][name] = value.text
        return exact.row(events.decode(events.encode(payload, self._options.encoding)))


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("arrays", ArrayForm)
async def test_a_postgresql_mirror_has_the_sources_text_of_each_value(
    database: Database, postgres_server: Any, names: Names, encoding: Encoding, arrays: ArrayForm
) -> None:
    source = await database.connect()
    await source.execute(f"{SETUP}; {SESSION}")
    wire = Wire(source, arrays, encoding)
    given = [("jsonb", one) for one in DOCUMENTS] + list(ARRAYS)
    columns = tuple(Column(f"c{place}", _long_name(kind)) for place, (kind, _) in enumerate(given))
    printed = {
        f"c{place}": (kind, await wire.printed(kind, literal))
        for place, (kind, literal) in enumerate(given)
    }
    row = await wire.row(printed)
    table = Table("public", "t", columns, (), tuple(column.name for column in columns))
    async with fresh_database(postgres_server, names.other("target")) as mirrored:
        target = PostgresTarget(mirrored.dsn)
        await target.load()
        await target.write(
            [CreateTable(table), InsertRows(table, [row]), UpdateRow(table, row, row)]
        )
        await target.commit({})
        reader = await mirrored.connect()
        await reader.execute(SESSION)
        texts = ", ".join(
            f"CASE WHEN num_nulls({c.name}) = 0 THEN format('%s', {c.name}) END" for c in columns
        )
        found = dict(
            zip(printed, await reader.fetchrow(f"SELECT {texts} FROM public.t"), strict=True)
        )
        for name, (kind, text) in printed.items():
            assert found[name] == text, (kind, text)
        await target.write([DeleteRow(table, row)])
        await target.close()


@pytest.mark.parametrize("encoding", Encoding)
async def test_a_sqlite_mirror_has_the_sources_text_of_each_document(
    database: Database, tmp_path: Path, encoding: Encoding
) -> None:
    source = await database.connect()
    wire = Wire(source, ArrayForm.LITERAL, encoding)
    printed = [await wire.printed("jsonb", document) for document in DOCUMENTS]
    rows = [
        await wire.row({"id": ("int", str(n)), "doc": ("jsonb", text)})
        for n, text in enumerate(printed)
    ]
    table = Table(
        "public", "t", (Column("id", "integer"), Column("doc", "jsonb")), ("id",), ("id",)
    )
    target = SqliteTarget(str(tmp_path / "t.db"))
    await target.load()
    await target.write(
        [CreateTable(table), InsertRows(table, rows), *(UpdateRow(table, row, row) for row in rows)]
    )
    await target.commit({})
    await target.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db", timeout=30)) as connection:
        assert [row[0] for row in connection.execute("SELECT doc FROM t ORDER BY id")] == printed


@pytest.mark.parametrize("encoding", Encoding)
async def test_a_sqlite_mirror_keeps_every_list(
    database: Database, tmp_path: Path, encoding: Encoding
) -> None:
    source = await database.connect()
    await source.execute(f"{SETUP}; {SESSION}")
    wire = Wire(source, ArrayForm.LIST, encoding)
    given = {
        f"c{place}": (kind, await wire.printed(kind, literal))
        for place, (kind, literal) in enumerate(ARRAYS)
    }
    columns = tuple(Column(name, kind) for name, (kind, _) in given.items())
    row = await wire.row(given)
    table = Table("public", "t", columns, (), tuple(given))
    target = SqliteTarget(str(tmp_path / "t.db"))
    await target.load()
    await target.write([CreateTable(table), InsertRows(table, [row]), UpdateRow(table, row, row)])
    await target.commit({})
    await target.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db", timeout=30)) as connection:
        found = dict(zip(given, connection.execute("SELECT * FROM t").fetchone(), strict=True))
    by_kind = {kind: found[name] for name, (kind, _) in given.items()}
    assert by_kind["bytea[]"] == '["aGVsbG8=", "", null]'
    assert by_kind["float8[]"] == '[0.1, "NaN", "-Infinity", -0.0, 1000000000000000.0, 0.0000001]'
    # A list that does not tell its array is the literal.
    assert found["c0"] == given["c0"][1]
    assert by_kind["box[]"] == given["c16"][1]
