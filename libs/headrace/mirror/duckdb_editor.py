"""Single rows of a mirror in DuckDB, for a repair."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from headrace.mirror import target
from headrace.mirror.duckdb import (
    READ_ROWS,
    DuckdbTarget,
    DuckdbWriter,
    explained,
    mark_of,
    marks_in,
    opened,
    reader_of,
    shown,
    table_name,
)
from headrace.mirror.native_types import NativeTypes, types_in
from headrace.mirror.soft_deleted_rows import unmarked_in_sql
from headrace.mirror.table import Table
from headrace.postgres.quoting import quote_name


@contextlib.contextmanager
def edited(made: DuckdbTarget, table: Table) -> Iterator[DuckdbEditor]:
    """An editor of a table; no other process can open the file meanwhile."""
    with (
        explained(made.path),
        contextlib.closing(opened(made.path, read_only=False)) as connection,
    ):
        connection.execute("BEGIN")
        yield DuckdbEditor(connection, made.types, table)


class DuckdbEditor:
    """Names rows by their numbers, which stay as they are within a transaction."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, types: NativeTypes, table: Table
    ) -> None:
        if "rowid" in {column.name.lower() for column in table.columns}:
            raise target.TargetError(
                f"{table.schema}.{table.name} has a column rowid, the name of DuckDB's row numbers",
                remedy="Copy the table again: `headrace sinks reset NAME --to snapshot`.",
            )
        self._connection = connection
        self._table = table
        self._name = table_name(table)
        self.marks: Mapping[str, str] = marks_in(connection)
        # As a reader without the sink's options reads them.
        self._read = types
        # They may be stored as text by choice.
        types = types_in(self.marks, types)
        self._columns = {one.name: one for one in types.columns(table)}
        # The same statements as the mirror, for rows that come back.
        self._writer = DuckdbWriter(connection, types)

    def rows(self) -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
        table = self._table
        kept = [self._read.column(table, column) for column in table.source_columns]
        readers = [reader_of(column) for column in kept]
        where = unmarked_in_sql(self._table)
        names = ", ".join(map(shown, kept))
        query = f"SELECT rowid, {names} FROM {self._name} WHERE {where}"  # noqa: S608
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(READ_ROWS):
            yield [
                (
                    row[0],
                    tuple(
                        value if value is None else read(value)
                        for read, value in zip(readers, row[1:], strict=True)
                    ),
                )
                for row in rows
            ]

    def delete(self, handle: Any) -> int:
        return self._run(f"DELETE FROM {self._name} WHERE rowid = ?", [handle])  # noqa: S608

    def update(self, handle: Any, row: Mapping[str, Any]) -> int:
        columns = [self._columns[name] for name in row]
        sets = ", ".join(f"{quote_name(one.name)} = {mark_of(one)}" for one in columns)
        values = [
            None if value is None else column.text(value)
            for column, value in zip(columns, row.values(), strict=True)
        ]
        sql = f"UPDATE {self._name} SET {sets} WHERE rowid = ?"  # noqa: S608
        return self._run(sql, [*values, handle])

    def _run(self, sql: str, values: list[Any]) -> int:
        (count,) = self._connection.execute(sql, values).fetchone() or (0,)
        return int(count)

    def insert(self, row: Mapping[str, Any]) -> None:
        if self._table.rules.soft_delete and self._table.key:
            self._writer.do(target.RemoveSoftDeleted(self._table, [row]))
        self._writer.do(target.InsertRows(self._table, [row]))

    def commit(self) -> None:
        self._connection.execute("COMMIT")
