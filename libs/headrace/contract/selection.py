"""The tables and columns of a publication that the suite delivers. Pure.

Patterns are `table`, `schema.table` or `schema.*`, with `*` for any run of characters; columns are
`schema.table.column` or `table.column`; names with dots are quoted
(`headrace.contract.table_patterns`). Excluded tables and columns are left out everywhere: events,
old rows, keys, schemas and snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.contract.table_patterns import column_named, names_table


@dataclass(frozen=True, slots=True)
class Selection:
    """An empty `include` selects all tables; `exclude` takes precedence."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()

    def wants(self, schema: str, table: str) -> bool:
        if any(names_table(pattern, schema, table) for pattern in self.exclude):
            return False
        return not self.include or any(
            names_table(pattern, schema, table) for pattern in self.include
        )

    def hidden_columns(self, schema: str, table: str) -> frozenset[str]:
        """The excluded columns of a table."""
        named = (column_named(pattern, schema, table) for pattern in self.exclude_columns)
        return frozenset(column for column in named if column is not None)
