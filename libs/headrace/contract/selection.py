"""Which tables and columns the suite delivers, of those that the publication has. Pure.

Patterns are `table`, `schema.table` or `schema.*`, with `*` for any run of characters; columns are
`schema.table.column` or `table.column`. What is left out is left out everywhere: events, old rows, keys, schemas and
snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from headrace.contract.naming import PUBLIC
from headrace.errors import SettingError


@dataclass(frozen=True, slots=True)
class Selection:
    """An empty `include` takes all tables; `exclude` wins over it."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()

    def wants(self, schema: str, table: str) -> bool:
        if any(_names(pattern, schema, table) for pattern in self.exclude):
            return False
        return not self.include or any(_names(pattern, schema, table) for pattern in self.include)

    def hidden_columns(self, schema: str, table: str) -> frozenset[str]:
        """The columns of a table that are left out."""
        hidden = set()
        for pattern in self.exclude_columns:
            owner, dot, column = pattern.rpartition(".")
            if not dot or not owner or not column:
                raise SettingError(
                    f"HEADRACE_EXCLUDE_COLUMNS names {pattern!r}", remedy="Write table.column or schema.table.column."
                )
            if _names(owner, schema, table):
                hidden.add(column)
        return frozenset(hidden)


def _names(pattern: str, schema: str, table: str) -> bool:
    owner, dot, name = pattern.partition(".")
    if not dot:
        return schema == PUBLIC and fnmatchcase(table, pattern)
    return fnmatchcase(schema, owner) and fnmatchcase(table, name)
