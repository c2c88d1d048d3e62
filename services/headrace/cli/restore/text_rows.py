"""The rows of one table, restored from the archive into a temporary file, as PostgreSQL's texts.

A target of a replay: memory does not depend on the table's size, and the live database sees nothing
before all rows have arrived. Names are replaced, because SQLite ignores their case.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.mirror import (
    AlterTable,
    Column,
    CreateTable,
    DeleteRow,
    DropTable,
    InsertRows,
    Step,
    SwapTables,
    Table,
    TruncateTable,
    UpdateRow,
)
from headrace.mirror.postgres_values import text_of
from headrace.mirror.sqlite import SqliteTarget, table_name

_PLACE = ("headrace", "restored")


class TextRows:
    """A `Target`; `domains` are the base types of domains, by the type's name."""

    def __init__(self, file: Path, domains: Mapping[str, str]) -> None:
        self._file = str(file)
        self._kept = SqliteTarget(self._file)
        self._domains = domains
        # By the source's column.
        self._names: dict[str, str] = {}
        # Of the table of the last step, as most steps have the same one.
        self._table: Table | None = None
        self._stored = Table(*_PLACE, ())
        self._texts: dict[str, Callable[[Any], str]] = {}

    async def load(self) -> dict[str, str]:
        """Open the file."""
        return await self._kept.load()

    async def write(self, steps: Sequence[Step]) -> None:
        """Execute these steps."""
        await self._kept.write([self._step(step) for step in steps])

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        """Store the marks together with what was written."""
        await self._kept.commit(marks)

    async def close(self) -> None:
        """Close the file, which stays."""
        await self._kept.close()

    def rows(self, names: Sequence[str]) -> Iterator[tuple[str | None, ...]]:
        """All rows, with these columns of the source."""
        columns = ", ".join(self._names[name] for name in names)
        table = table_name(Table(*_PLACE, ()))
        # Only names that this module has made.
        query = f"SELECT {columns} FROM {table}"  # noqa: S608
        with contextlib.closing(sqlite3.connect(self._file)) as connection:
            yield from connection.execute(query)

    def _step(self, step: Step) -> Step:
        match step:
            case InsertRows(table, rows):
                return InsertRows(self._of(table), [self._row(row) for row in rows])
            case UpdateRow(table, where, data):
                return UpdateRow(self._of(table), self._row(where), self._row(data))
            case DeleteRow(table, where):
                return DeleteRow(self._of(table), self._row(where))
            case TruncateTable(table):
                return TruncateTable(self._of(table))
            case CreateTable(table, replaces):
                return CreateTable(self._of(table), replaces)
            case DropTable(table):
                return DropTable(self._of(table))
            case SwapTables(table, replaces):
                return SwapTables(self._of(table), replaces)
            case AlterTable(before, after):
                return AlterTable(self._of(before), self._of(after))
            case _:
                raise AssertionError("no step of a replay")

    def _of(self, table: Table) -> Table:
        if table is not self._table:
            self._table = table
            self._texts = {
                column.name: text_of(self._base(column.data_type)) for column in table.columns
            }
            self._stored = Table(
                *_PLACE,
                tuple(Column(self._name(column.name), "text") for column in table.columns),
                tuple(map(self._name, table.primary_key)),
                tuple(map(self._name, table.identity)),
                table.staging,
            )
        return self._stored

    def _name(self, column: str) -> str:
        return self._names.setdefault(column, f"c{len(self._names)}")

    def _base(self, data_type: str) -> str:
        """The type whose form the values have: a domain's values have its base type's."""
        if data_type.endswith("[]"):
            return f"{self._base(data_type.removesuffix('[]'))}[]"
        base = self._domains.get(data_type)
        return data_type if base is None else self._base(base)

    def _row(self, values: Mapping[str, Any]) -> dict[str, str | None]:
        return {
            self._names[name]: None if value is None else self._texts[name](value)
            for name, value in values.items()
        }
