"""Single rows of a mirror's table that a repair reads and writes, in one transaction of the target.

While an editor is open, the mirror's process writes nothing, and nothing is written unless the
editor commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

from headrace.mirror.table import Table

# By the class of the target: the module of its editor, imported only if it is used.
_EDITORS = {
    "SqliteTarget": "headrace.mirror.sqlite_editor",
    "DuckdbTarget": "headrace.mirror.duckdb_editor",
    "MariadbTarget": "headrace.mirror.mariadb_editor",
}


class RowEditor(Protocol):
    """All calls may block, and come from one thread."""

    @property
    def marks(self) -> Mapping[str, str]:
        """The mirror's marks; they don't change while the editor is open."""
        ...

    def rows(self) -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
        """All rows that are not marked as deleted, some at a time: a handle, and the values of the
        source's columns as a `TargetReading` has them. Handles are used after the last row.
        """
        ...

    def delete(self, handle: Any) -> int:
        """Remove a row; returns the number of rows that were removed."""
        ...

    def update(self, handle: Any, row: Mapping[str, Any]) -> int:
        """Give a row these values, in the contract's forms; returns the number of changed rows."""
        ...

    def insert(self, row: Mapping[str, Any]) -> None:
        """Insert a row instead of a marked one with its key, if there is one."""
        ...

    def commit(self) -> None:
        """Make everything visible and durable."""
        ...


def is_editable(target: object) -> bool:
    """Whether there is an editor for this target."""
    return type(target).__name__ in _EDITORS


def edited(target: object, table: Table) -> AbstractContextManager[RowEditor]:
    """Lock the mirror's process out of the target; roll back at the end, unless committed."""
    module = import_module(_EDITORS[type(target).__name__])
    found: AbstractContextManager[RowEditor] = module.edited(target, table)
    return found
