"""Single rows of a mirror in MariaDB, for a repair."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.mirror import target
from headrace.mirror.mariadb import TAKE_OVER_S, MariadbTarget, of_mirror, reader_of
from headrace.mirror.mariadb_journal import Journal
from headrace.mirror.mariadb_session import MariadbSession, explained
from headrace.mirror.mariadb_statements import (
    RowStatement,
    literal_of,
    quoted,
    stored_literal,
    table_name,
)
from headrace.mirror.native_types import NativeColumn, NativeTypes, types_in
from headrace.mirror.soft_deleted_rows import unmarked_in_sql
from headrace.mirror.table import Table
from headrace.mirror.threaded_target import WRITER


@contextlib.contextmanager
def edited(made: MariadbTarget, table: Table) -> Iterator[MariadbEditor]:
    """An editor of a table; the mirror waits for its writer's mark."""
    with (
        explained(),
        contextlib.closing(MariadbSession(made.url, made.types, TAKE_OVER_S)) as session,
    ):
        # Each transaction of the mirror locks it first.
        session.locked_mark(WRITER)
        yield MariadbEditor(session, made.types, table)


class MariadbEditor:
    """Names rows by all of their values, as the server printed them."""

    def __init__(self, session: MariadbSession, types: NativeTypes, table: Table) -> None:
        self._session = session
        self._table = table
        # As a reader without the sink's options reads them.
        self._readers = [reader_of(types.column(table, one)) for one in table.source_columns]
        self._names = [column.name for column in table.source_columns]
        # Marked rows were not compared.
        self._unmarked = unmarked_in_sql(table, quoted)
        marks = session.marks()
        # Its tables are between two moments.
        if Journal.is_open(marks):
            raise target.TargetAwayError("the mirror's MariaDB: a change of a table is open")
        self.marks: Mapping[str, str] = of_mirror(marks)
        # They may be stored as text by choice.
        types = types_in(marks, types)
        self._columns = {one.name: one for one in types.columns(table)}
        self._statements = replace(session.statements, types=types)

    def rows(self) -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
        for rows in self._session.streamed(self._table, self._names, self._unmarked):
            yield [
                (
                    row,
                    tuple(
                        value if value is None else read(value)
                        for read, value in zip(self._readers, row, strict=True)
                    ),
                )
                for row in rows
            ]

    def delete(self, handle: Any) -> int:
        self._run(f"DELETE FROM {table_name(self._table)} WHERE {self._found(handle)}")
        return 1

    def update(self, handle: Any, row: Mapping[str, Any]) -> int:
        sets = ", ".join(
            f"{quoted(name)} = {literal_of(self._columns[name])(value)}"
            for name, value in row.items()
        )
        self._run(f"UPDATE {table_name(self._table)} SET {sets} WHERE {self._found(handle)}")
        return 1

    def _found(self, handle: Any) -> str:
        """The condition for one row with these values; any one of them, if several are equal."""
        tests = [
            f"{quoted(name)} <=> {_stored(self._columns[name], value)}"
            for name, value in zip(self._names, handle, strict=True)
        ]
        return f"{' AND '.join([*tests, self._unmarked])} LIMIT 1"

    def _run(self, sql: str) -> None:
        # Raises unless exactly one row matches.
        self._session.run(RowStatement(self._table, sql, 1))

    def insert(self, row: Mapping[str, Any]) -> None:
        steps: list[target.Step] = [target.InsertRows(self._table, [row])]
        if self._table.rules.soft_delete and self._table.key:
            steps.insert(0, target.RemoveSoftDeleted(self._table, [row]))
        for step in steps:
            for statement in self._statements.rows(step):
                self._session.run(statement)

    def commit(self) -> None:
        self._session.commit()


def _stored(column: NativeColumn, value: str | bytes | None) -> str:
    """The literal of a value as the server printed it."""
    if value is None:
        return "NULL"
    return stored_literal(column)(value)
