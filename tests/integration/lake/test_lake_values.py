"""Every value of the contract's table, in one table of a real PostgreSQL: by the archive and by COPY
into the columns of the lake, through an Iceberg table, and back to the source's text.

The oracle is PostgreSQL: each value that a reader finds, given back to it, must be the source's.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import MapType, NestedField, StringType

from headrace.archive import RowEntry, WalReader
from headrace.archive.metadata import ColumnInfo
from headrace.contract.values import SESSION_SETTINGS
from headrace.lake.column_types import (
    ITEM_EXACT,
    arrow_type,
    iceberg_type,
)
from headrace.lake.copy_rows import CopyRows
from headrace.lake.rows import JsonRows
from headrace.postgres import catalog
from headrace.spark.session import COPY_SESSION
from headrace.testing.database import Database
from headrace.testing.suite import Suite
from headrace.testing.value_cases import ARRAYS, CASES, EMBEDDED, TEXT, Both, Case
from tests.support.archiving import WITH_ARCHIVE, Archiving, archived

# Values that only the lake's own types can't hold.
NASTY = (
    Case("amount", "numeric(6, 2)", (("1.5", "1.50"), ("'NaN'", "NaN"), ("-9999.99", "-9999.99"))),
    Case("widest", "numeric(38, 10)", (("'1e27'", TEXT), ("0", TEXT), ("-0.0000000001", TEXT))),
    Case("too_wide", "numeric(39, 0)", (("'1e38'", TEXT),)),
    Case("amounts", "numeric(6, 2)[]", (("'{1.5,NULL}'", TEXT), ("'{1,NaN}'", TEXT))),
    Case("halves", "float4[]", (("'{0.1,NaN,-Infinity,-0}'", TEXT), ("'{}'", TEXT))),
    Case("days", "date[]", (("'{2025-12-12,0001-01-01}'", TEXT), ("'{infinity}'", TEXT))),
    Case("times", "timetz[]", (("'{12:00+02,NULL}'", TEXT), ("'[3:3]={12:00+02}'", TEXT))),
    Case("documents", "json[]", (("""ARRAY['null', ' [1] ', NULL]::json[]""", TEXT),)),
    Case("cents", "money", (("'92233720368547758.07'", "92233720368547758.07"),)),
    Case('a "name", \\ 😀', "text", ((r"""E'\\."\n\u2028'""", TEXT), ("NULL", None))),
)
EVERY = (*CASES, *ARRAYS, *NASTY)
ROWS = max(len(case.values) for case in EVERY)


@dataclass(frozen=True)
class Read:
    """The table by both ways, and what PostgreSQL prints for each value."""

    columns: tuple[ColumnInfo, ...]
    by_archive: pa.Table
    by_copy: pa.Table
    printed: list[dict[str, str | None]]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def write(database: Database) -> None:
    """A column for each case; a case with fewer values than there are rows repeats its last one."""
    columns = ", ".join(f"{quoted(case.name)} {case.type}" for case in EVERY)
    for case in EVERY:
        if case.setup:
            await database.execute(case.setup)
    await database.execute(f"CREATE TABLE every (id int PRIMARY KEY, {columns})")
    for row in range(ROWS):
        values = ", ".join(case.values[min(row, len(case.values) - 1)][0] for case in EVERY)
        await database.execute(f"INSERT INTO every VALUES ({row}, {values})")


def columns_of(reader: WalReader) -> tuple[ColumnInfo, ...]:
    return next(
        table.columns
        for listed in reader.list()
        if (file := reader.get(listed.id)) is not None
        for table in file.info.tables
        if table.table == "every"
    )


def by_archive(columns: tuple[ColumnInfo, ...], entries: list[RowEntry]) -> pa.Table:
    texts = pa.array([entry.after_json for entry in entries], pa.string())
    return JsonRows(columns).read(texts, [entry.exact or None for entry in entries])


async def by_copy(connection: Any, columns: tuple[ColumnInfo, ...]) -> pa.Table:
    types = await catalog.types(connection, {column.type_oid for column in columns})
    data = bytearray()

    async def receive(part: bytes) -> None:
        data.extend(part)

    await connection.copy_from_query(
        "SELECT * FROM public.every ORDER BY id", output=receive, format="csv", encoding="utf8"
    )
    return CopyRows(columns, types).read(bytes(data))


async def printed(connection: Any) -> list[dict[str, str | None]]:
    """By each type's output function, which a cast to text doesn't always call."""
    values = ", ".join(
        f"CASE WHEN num_nonnulls({quoted(case.name)}) = 1 THEN format('%s', {quoted(case.name)}) "
        f"END AS {quoted(case.name)}"
        for case in EVERY
    )
    rows = await connection.fetch(f"SELECT {values} FROM public.every ORDER BY id")
    return [dict(row) for row in rows]


async def read(archiving: Archiving, folder: Path) -> Read:
    database, url = archiving.database, archiving.url
    async with Suite(
        archiving.environment(HEADRACE_ARCHIVE_REQUIRED="true"), folder, WITH_ARCHIVE
    ) as suite:
        await suite.logged("archiver", "epoch_joined")
        await write(database)
        entries = await archived(url, await archiving.oracle.changes())
    columns = columns_of(WalReader(url))
    connection = await session(database, COPY_SESSION)
    rows = [entry for entry in entries if entry.table == "every"]
    return Read(
        columns,
        by_archive(columns, rows),
        await by_copy(connection, columns),
        await printed(connection),
    )


async def session(database: Database, settings: Mapping[str, str]) -> Any:
    connection = await database.connect()
    for name, value in {**SESSION_SETTINGS, **settings}.items():
        await connection.execute("SELECT set_config($1, $2, false)", name, value)
    return connection


def literal(value: Any, delimiter: str = ",") -> str | None:
    """A value as any program would write it for PostgreSQL to read."""
    if isinstance(value, list):
        return "{" + delimiter.join(element(one) for one in value) + "}"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date):
        return value.isoformat()
    return None if value is None else str(value)


def element(value: Any) -> str:
    if value is None:
        return "NULL"
    return '"' + (literal(value) or "").replace("\\", "\\\\").replace('"', '\\"') + '"'


async def restored(database: Database, rows: list[dict[str, Any]]) -> list[dict[str, str | None]]:
    """PostgreSQL's texts of the values of the lake, after it has read them."""
    types = {case.name: case.type for case in EVERY}
    reader = await session(database, {})
    found = []
    for row in rows:
        exact = dict(row[ITEM_EXACT] or ())
        values = {
            name: exact.get(name, literal(row[name], ";" if kind == "box[]" else ","))
            for name, kind in types.items()
        }
        selected = ", ".join(
            f"format('%s', ${place}::text::{kind})" for place, kind in enumerate(types.values(), 1)
        )
        texts = await reader.fetchrow(f"SELECT {selected}", *values.values())
        known = zip(values, texts, strict=True)
        found.append({name: None if values[name] is None else text for name, text in known})
    return found


def in_iceberg(read: Read, folder: Path) -> Table:
    folder.mkdir()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("public")
    texts = MapType(-1, StringType(), -1, StringType(), value_required=False)
    fields = [(column.name, iceberg_type(column)) for column in read.columns]
    schema = Schema(
        *(
            NestedField(number, name, kind, required=False)
            for number, (name, kind) in enumerate([*fields, (ITEM_EXACT, texts)], 1)
        )
    )
    table = catalog.create_table("public.every", schema)
    table.append(read.by_archive)
    return table


def by_pyiceberg(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return rows


def extension(name: str) -> Path:
    """An extension of DuckDB, as its wheel has it."""
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.rglob("*.duckdb_extension"))


def by_duckdb(table: Table) -> list[dict[str, Any]]:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        connection.load_extension(str(extension(name)))
    connection.execute("SET TimeZone = 'UTC'")
    found = connection.execute(
        "SELECT * FROM iceberg_scan(?) ORDER BY id", [table.metadata_location]
    )
    rows: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
    return rows


def shown(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """In a form that can be compared: repr tells -0.0 from 0, and knows one NaN."""
    return [
        {
            name: value.isoformat() if isinstance(value, datetime) else repr(value)
            for name, value in row.items()
        }
        for row in rows
    ]


def differing(found: list[dict[str, Any]], due: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The place of each other value: rows are too long to be compared by eye."""
    return [
        (place, name, str(row.get(name))[:99], str(value)[:99])
        for place, (row, wanted) in enumerate(zip(found, due, strict=True))
        for name, value in wanted.items()
        if row.get(name) != value
    ]


def contract_form(case: Case, row: int, printed: str | None) -> str | None:
    """The text of a value in a column of strings, by the contract's table."""
    due = case.values[min(row, len(case.values) - 1)][1]
    if isinstance(due, Both):
        due = due.json
    if due is TEXT or due is EMBEDDED:
        return printed
    return due if due is None or isinstance(due, str) else json.dumps(due)


async def test_every_value_passes_through_the_lake_unchanged(
    archiving: Archiving, tmp_path: Path
) -> None:
    found = await read(archiving, tmp_path)
    rows = found.by_archive.to_pylist()
    assert len(rows) == ROWS
    assert found.by_copy.schema == found.by_archive.schema
    assert differing(shown(found.by_copy.to_pylist()), shown(rows)) == []
    due = found.printed
    assert differing(await restored(archiving.database, rows), due) == []
    strings = {column.name for column in found.columns if arrow_type(column) == pa.string()}
    for case in EVERY:
        if case.name in strings and case not in ARRAYS:
            assert [row[case.name] for row in rows] == [
                contract_form(case, place, row[case.name]) for place, row in enumerate(due)
            ]
    assert {name for row in rows for name, _ in row[ITEM_EXACT] or ()} == {
        *("timestamptz", "timestamp", "date", "timestamptz_array", "amount", "amounts", "days"),
        *("int_array_nested", "int_array_bounds", "text_array_nested", "times"),
    }
    table = in_iceberg(found, tmp_path / "lake")
    assert differing(shown(by_pyiceberg(table)), shown(rows)) == []
    assert differing(shown(by_duckdb(table)), shown(rows)) == []
