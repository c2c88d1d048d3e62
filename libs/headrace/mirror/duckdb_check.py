"""The tables of a copy, checked against a DuckDB file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from headrace.mirror.checking import TargetCheck, TargetShape, judged
from headrace.mirror.duckdb import (
    DuckdbTarget,
    check_names,
    exists,
    explained,
    has_marks,
    marks_in,
    opened,
)
from headrace.mirror.native_types import NativeTypes
from headrace.mirror.sqlite_check import check_writable
from headrace.mirror.table import Table


async def check(target: DuckdbTarget, tables: Sequence[Table]) -> TargetCheck:
    """Raises if the file can't be written; refuses single tables in the result."""
    return await asyncio.to_thread(_check, target.path, target.types, tables)


def _check(path: str, types: NativeTypes, tables: Sequence[Table]) -> TargetCheck:
    if not check_writable("DuckDB", path):
        with contextlib.closing(duckdb.connect(":memory:")) as connection:
            said = f"DuckDB file {path} would be created"
            return _judged(connection, {}, types, tables, said)
    # A sink that runs has the file open only while it writes.
    with explained(path), contextlib.closing(opened(path, read_only=True)) as connection:
        marks: dict[str, str] = {}
        if has_marks(connection):
            marks = marks_in(connection)
        return _judged(connection, marks, types, tables, f"DuckDB file {path} can be written")


def _judged(
    connection: duckdb.DuckDBPyConnection,
    marks: Mapping[str, str],
    types: NativeTypes,
    tables: Sequence[Table],
    server: str,
) -> TargetCheck:
    def run(sql: str, values: Sequence[Any]) -> Any:
        return connection.execute(sql, list(values)).fetchone()

    def shape(table: Table) -> TargetShape:
        check_names(run, table)
        columns = [f"{column.name} {column.sql_type}" for column in types.columns(table)]
        return TargetShape(columns, types.limits(table))

    return TargetCheck(server, judged(tables, marks, lambda table: exists(run, table), shape))
