"""The net changes of many steps: at most one for each row. Does no I/O.

Applying the net changes gives the same rows as applying the steps one by one, because the steps of
a table are only folded while each of them names its row by the table's replica identity. The source
guarantees that no two rows have the same one at any moment, so that steps about different keys
commute. Everything else ends what was folded before it: a changed key, a row found by all its
values, a TRUNCATE, a change of shape, a step that doesn't fit the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from headrace.mirror.table import Table
from headrace.mirror.target import (
    DeleteRow,
    InsertRows,
    RemoveSoftDeleted,
    Step,
    TruncateTable,
    UpdateRow,
)

RowStep = InsertRows | UpdateRow | DeleteRow | TruncateTable | RemoveSoftDeleted
# The identity of a row, as texts: values that are equal in Python may be different in PostgreSQL.
Key = tuple[str | None, ...]
KeyOf = Callable[[Mapping[str, Any]], Key]
Row = Mapping[str, Any]


@dataclass(slots=True)
class FoldedChanges:
    """Changes of different rows of one table: first the deletions, then the updates, then the
    insertions, some of which replace a deleted row.
    """

    table: Table
    deleted: dict[Key, Row] = field(default_factory=dict)
    # The identity of each row, and its new values.
    updated: dict[Key, tuple[Row, dict[str, Any]]] = field(default_factory=dict)
    inserted: dict[Key, Row] = field(default_factory=dict)
    # Inserted rows of a table without an identity that could find them again.
    appended: list[Row] = field(default_factory=list)

    def insert(self, key: Key, row: Row) -> bool:
        """Whether the row could be added; false if it exists."""
        # A deleted key may come back: deletions are applied before insertions.
        if key in self.inserted or key in self.updated:
            return False
        self.inserted[key] = row
        return True

    def update(self, key: Key, where: Row, data: Row) -> bool:
        """Whether the row could be changed; false if it doesn't exist."""
        if (row := self.inserted.get(key)) is not None:
            self.inserted[key] = {**row, **data}
        elif key in self.deleted:
            return False
        elif (known := self.updated.get(key)) is not None:
            known[1].update(data)
        else:
            self.updated[key] = where, dict(data)
        return True

    def delete(self, key: Key, where: Row) -> bool:
        """Whether the row could be deleted; false if it doesn't exist."""
        # A row that replaces a deleted one leaves the deletion behind.
        if self.inserted.pop(key, None) is not None:
            return True
        if key in self.deleted:
            return False
        # Updates keep the identity, so `where` finds the row as the target has it.
        self.updated.pop(key, None)
        self.deleted[key] = where
        return True


def is_of_rows(step: Step) -> TypeGuard[RowStep]:
    """Whether it changes rows, and no shape of a table."""
    return isinstance(step, RowStep)


class Folding:
    """Collects steps of rows; `key_of` makes the function that returns the identity of a table's
    row.
    """

    def __init__(self, key_of: Callable[[Table], KeyOf]) -> None:
        self._key_of = key_of
        # By table: what to do, in order.
        self._parts: dict[tuple[str, str, bool], list[FoldedChanges | RowStep]] = {}
        self._keys: dict[tuple[str, str, bool], tuple[Table, KeyOf | None]] = {}

    def add(self, step: RowStep) -> None:
        """Add a step; those of one table come in order."""
        table = step.table
        name = (table.schema, table.name, table.staging)
        known = self._keys.get(name)
        if known is None or known[0] is not table:
            known = self._keys[name] = self._changed(name, table)
        key_of = known[1]
        parts = self._parts[name]
        if (
            parts
            and isinstance(last := parts[-1], FoldedChanges)
            and self._fold(last, step, key_of)
        ):
            return
        net = FoldedChanges(table)
        if self._fold(net, step, key_of):
            parts.append(net)
        else:
            parts.append(step)

    def take(self) -> Iterable[list[FoldedChanges | RowStep]]:
        """Take everything out: lists to apply one after the other, each of different tables."""
        tables = list(self._parts.values())
        self._parts, self._keys = {}, {}
        for number in range(max(map(len, tables), default=0)):
            yield [parts[number] for parts in tables if number < len(parts)]

    def _changed(self, name: tuple[str, str, bool], table: Table) -> tuple[Table, KeyOf | None]:
        """A table that was not seen before, or not in this shape."""
        before = self._keys.get(name)
        parts = self._parts.setdefault(name, [])
        if before is not None and before[0] != table and parts:
            # Its rows may have another identity from here on.
            parts.append(FoldedChanges(table))
        if folds(table):
            return table, self._key_of(table)
        return table, None

    @staticmethod
    def _fold(net: FoldedChanges, step: RowStep, key_of: KeyOf | None) -> bool:
        """Whether the step is part of these changes now; if not, they are as they were."""
        if isinstance(step, InsertRows):
            return _inserts(net, step.rows, key_of)
        if isinstance(step, TruncateTable | RemoveSoftDeleted) or key_of is None:
            return False
        where = step.where
        # A row found by other columns may be one of several, or one that has been folded already.
        if not _names_row(step.table, where):
            return False
        key = key_of(where)
        if isinstance(step, DeleteRow):
            return net.delete(key, where)
        data = step.data
        for name, value in where.items():
            if data.get(name, value) is not value and key_of({**where, **data}) != key:
                return False
        return not data or net.update(key, where, data)


def _inserts(net: FoldedChanges, rows: Sequence[Row], key_of: KeyOf | None) -> bool:
    """All of them, or none if one of them exists."""
    if key_of is None:
        net.appended.extend(rows)
        return True
    if len(rows) == 1:
        return net.insert(key_of(rows[0]), rows[0])
    # All keys before the first row is added: a step is folded as a whole or not at all.
    keys = [key_of(row) for row in rows]
    if len({*keys}) < len(keys) or any(key in net.inserted or key in net.updated for key in keys):
        return False
    return all(net.insert(*pair) for pair in zip(keys, rows, strict=True))


def folds(table: Table) -> bool:
    """Whether its rows have an identity that the source keeps unique at every moment: a replica
    identity that is an index. That of a whole row may belong to several rows, and a copy with
    more columns, such as the time of a deletion, has rows that the source doesn't have.
    """
    return not table.rules.added and 0 < len(table.identity) < len(table.columns)


def _names_row(table: Table, where: Row) -> bool:
    if len(where) != len(table.identity):
        return False
    return None not in [where.get(name) for name in table.identity]
