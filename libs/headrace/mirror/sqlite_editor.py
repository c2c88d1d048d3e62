"""Single rows of a mirror in SQLite, for a repair."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.mirror import target
from headrace.mirror.soft_deleted_rows import unmarked_in_sql
from headrace.mirror.sqlite import (
    READ_ROWS,
    SqliteTarget,
    SqliteWriter,
    connect,
    explained,
    marks_in,
    row_id_of,
    stored,
    table_name,
)
from headrace.mirror.table import Table
from headrace.postgres.quoting import quote_name


@contextlib.contextmanager
def edited(made: SqliteTarget, table: Table) -> Iterator[SqliteEditor]:
    """An editor of a table; the file is locked for other writers."""
    with explained(made.path), contextlib.closing(connect(made.path)) as connection:
        # Takes the write lock now, so that the marks stay as they are read.
        connection.execute("BEGIN IMMEDIATE")
        yield SqliteEditor(connection, table)


class SqliteEditor:
    """Names rows by their numbers, which stay as they are within a transaction."""

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self._name = table_name(table)
        self._row_id = row_id_of(table)
        self._writer = SqliteWriter(connection)
        self.marks: Mapping[str, str] = marks_in(connection)

    def rows(self) -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
        where = unmarked_in_sql(self._table)
        names = ", ".join(quote_name(column.name) for column in self._table.source_columns)
        query = f"SELECT {self._row_id}, {names} FROM {self._name} WHERE {where}"  # noqa: S608
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(READ_ROWS):
            yield [(row[0], row[1:]) for row in rows]

    def delete(self, handle: Any) -> int:
        sql = f"DELETE FROM {self._name} WHERE {self._row_id} = ?"  # noqa: S608
        return self._connection.execute(sql, [handle]).rowcount

    def update(self, handle: Any, row: Mapping[str, Any]) -> int:
        sets = ", ".join(f"{quote_name(name)} = ?" for name in row)
        values = [
            None if value is None else stored(self._table.type_of(name))(value)
            for name, value in row.items()
        ]
        sql = f"UPDATE {self._name} SET {sets} WHERE {self._row_id} = ?"  # noqa: S608
        return self._connection.execute(sql, [*values, handle]).rowcount

    def insert(self, row: Mapping[str, Any]) -> None:
        if self._table.rules.soft_delete and self._table.key:
            self._writer.do(target.RemoveSoftDeleted(self._table, [row]))
        self._writer.do(target.InsertRows(self._table, [row]))

    def commit(self) -> None:
        self._connection.execute("COMMIT")
