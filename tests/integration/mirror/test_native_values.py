"""DuckDB and MariaDB keep each value of the contract's table exactly, or refuse it by name.

Their values are compared with PostgreSQL's own text, by the verifier's forms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.contract.values import ArrayForm, Encoding, ValueOptions
from headrace.mirror import Column, CreateTable, InsertRows, Table
from headrace.mirror.native_types import ValueRefusedError
from headrace.mirror.target import ReadableTarget, target_of
from headrace.testing.database import Database
from headrace.testing.value_cases import CASES
from headrace.verify.forms import in_sqlite
from headrace.verify.types import types_of
from tests.integration.mirror.test_mirror_targets import plain_rows, read, wire_rows

OPTIONS = ValueOptions(Encoding.MSGPACK, ArrayForm.LITERAL)
# By target: the only values that it refuses, unless their column is stored as text.
REFUSED = {
    "duckdb": {
        "timestamptz": {"0044-03-15 12:00:00+00 BC", "294276-12-31 23:59:59.999999+00"},
        "timestamp": {"4713-01-01 00:00:00 BC"},
        "date": {"0044-03-15 BC", "5874897-12-31"},
    },
    "mariadb": {
        "float4": {"NaN", "Infinity", "-Infinity"},
        "float8": {"NaN", "Infinity", "-Infinity"},
        "timestamptz": {
            "10000-01-01 00:00:00+00",
            "294276-12-31 23:59:59.999999+00",
            "0044-03-15 12:00:00+00 BC",
            "infinity",
            "-infinity",
        },
        "timestamp": {
            "10000-01-01 00:00:00",
            "4713-01-01 00:00:00 BC",
            "infinity",
            "-infinity",
        },
        "date": {"0044-03-15 BC", "5874897-12-31", "infinity", "-infinity"},
    },
}


@pytest.fixture(params=["duckdb", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mariadb":
        found: str = request.getfixturevalue("mariadb_database")
        return found
    return f"duckdb:///{tmp_path}/values.duckdb"


async def outcome(target: ReadableTarget, column: Column, values: list[Any]) -> list[Any] | None:
    """The target's values for these, in their order; None if it refuses one."""
    table = Table(
        "public", "one", (Column("id", "integer"), Column("v", column.data_type)), ("id",), ("id",)
    )
    rows = [{"id": number, "v": value} for number, value in enumerate(values)]
    await target.write([CreateTable(table)])
    await target.commit({})
    try:
        await target.write([InsertRows(table, rows)])
    except ValueRefusedError:
        await target.load()
        return None
    await target.commit({})
    return [value for _, value in sorted(await read(target, table))]


async def test_each_value_is_kept_exactly_or_refused_by_name(
    place: str, database: Database
) -> None:
    table, rows, printed = await wire_rows(database, OPTIONS)
    plain = await plain_rows(rows, Encoding.MSGPACK)
    connection = await psycopg.AsyncConnection.connect(database.dsn)
    types = await types_of(connection, "everything")
    await connection.close()
    target = target_of(place)
    await target.load()
    refused: dict[str, set[str]] = {}
    for number, (case, column) in enumerate(zip(CASES, table.columns, strict=True)):
        # Rows repeat values where other types have more.
        texts = [row[number] for row in printed[: len(case.values)]]
        values = [row[column.name] for row in plain[: len(case.values)]]
        theirs, ours = in_sqlite(types[column.name], lists=False)
        found = await outcome(target, column, values)
        kept_alone: list[list[Any] | None] = [[one] for one in found or ()]
        if found is None:
            kept_alone = [await outcome(target, column, [value]) for value in values]
        pairs = zip(texts, kept_alone, strict=True)
        for text, kept in pairs:
            if kept is None:
                refused.setdefault(case.name, set()).add(text)
                continue
            wanted = None if text is None else theirs(text)
            assert (None if kept[0] is None else ours(kept[0])) == wanted, (case.name, text)
    await target.close()
    assert refused == REFUSED[place.partition("://")[0]]
