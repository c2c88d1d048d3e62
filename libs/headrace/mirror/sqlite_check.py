"""The tables of a copy, checked against a SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.mirror.checking import TargetCheck, TargetShape, judged
from headrace.mirror.sqlite import (
    MARKS,
    NameTakenError,
    SqliteTarget,
    check_name,
    connect,
    explained,
    has_table,
    marks_in,
    type_in,
)
from headrace.mirror.table import Table
from headrace.mirror.target import TargetError


async def check(target: SqliteTarget, tables: Sequence[Table]) -> TargetCheck:
    """Raises if the file can't be written; refuses single tables in the result."""
    return await asyncio.to_thread(_check, target.path, tables)


def check_writable(kind: str, path: str) -> bool:
    """Whether the file exists; raises if it can't be written, or created."""
    file = Path(path)
    folder = file.absolute().parent
    if not folder.is_dir():
        raise TargetError(
            f"the folder of the {kind} file {path} does not exist", remedy="Create the folder."
        )
    # Both write other files next to this one.
    for place in (folder, file):
        if place.exists() and not os.access(place, os.W_OK):
            raise TargetError(
                f"{place} can't be written",
                remedy="Run the sink as a user who may write the file and its folder.",
            )
    return file.exists()


def _check(path: str, tables: Sequence[Table]) -> TargetCheck:
    if not check_writable("SQLite", path):
        # An empty file, so that the same rules for names apply.
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            return _judged(connection, {}, tables, f"SQLite file {path} would be created")
    with explained(path), contextlib.closing(connect(path)) as connection:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("BEGIN")
        query = "SELECT 1 FROM sqlite_schema WHERE name = ?"
        marks: dict[str, str] = {}
        if connection.execute(query, [MARKS]).fetchone():
            marks = marks_in(connection)
        return _judged(connection, marks, tables, f"SQLite file {path} can be written")


def _judged(
    connection: sqlite3.Connection, marks: Mapping[str, str], tables: Sequence[Table], server: str
) -> TargetCheck:
    def shape(table: Table) -> TargetShape:
        check_name(table, marks)
        folded = [column.name.lower() for column in table.columns]
        if len(set(folded)) != len(folded):
            raise NameTakenError(
                f"{table.schema}.{table.name} has columns that differ only by case",
                remedy="Leave one of them out with `columns`.",
            )
        return TargetShape([f"{one.name} {type_in(one)}".rstrip() for one in table.columns])

    def exists(table: Table) -> bool:
        return has_table(connection.execute, table)

    return TargetCheck(server, judged(tables, marks, exists, shape))
