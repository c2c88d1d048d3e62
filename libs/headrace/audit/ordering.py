"""The order in which changes are undone: latest first, but a row before rows that reference it.
Pure.

The log contains a DELETE before those that it cascades to. Undone latest first, rows would come
back before the row that they reference, and PostgreSQL would refuse them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.audit.table_book import Names

Change = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key; `on_delete` is `pg_constraint.confdeltype`."""

    child: Names
    columns: tuple[str, ...]
    parent: Names
    keys: tuple[str, ...]
    on_delete: str

    @property
    def takes_along(self) -> bool:
        """Whether deleting the parent's row deletes or changes the child's."""
        return self.on_delete in {"c", "n", "d"}


def ordered(changes: Sequence[Change], references: Sequence[Reference]) -> list[Change]:
    """The changes, given latest first, in the order in which to undo them."""
    orders = _Order(references)
    done: list[Change] = []
    for change in changes:
        done.insert(orders.place(done, change), change)
    return done


class _Order:
    def __init__(self, references: Sequence[Reference]) -> None:
        self._between: dict[tuple[Names, Names], list[Reference]] = {}
        for one in references:
            self._between.setdefault((one.child, one.parent), []).append(one)
        self._befores: dict[str, dict[str, Any]] = {}

    def place(self, done: Sequence[Change], change: Change) -> int:
        """A change's position among later ones: in its turn, or before the first one that needs its
        row.
        """
        place = len(done)
        # Only undoing a DELETE creates a row that others may need.
        if change["operation"] != "DELETE" or not self._between:
            return place
        # Backwards, past changes that do not depend on it.
        for at in range(len(done) - 1, -1, -1):
            if not self._may_pass(change, done[at]):
                break
            if done[at]["operation"] in {"DELETE", "UPDATE"} and self._refers(done[at], change):
                place = at
        return place

    def _may_pass(self, change: Change, later: Change) -> bool:
        """Rows of one table may conflict with each other, except those that existed together."""
        if _names(change) == _names(later):
            # Rows that were deleted one after the other existed together, so they conflict in
            # nothing.
            keys = change["primary_key"], later["primary_key"]
            if later["operation"] != "DELETE" or None in keys or keys[0] == keys[1]:
                return False
        return not self._refers(change, later)

    def _refers(self, child: Change, parent: Change) -> bool:
        """Whether the row of one change needs that of the other; also true if the trail does not
        say.
        """
        return any(
            self._names_it(one, child, parent)
            for one in self._between.get((_names(child), _names(parent)), ())
        )

    def _names_it(self, reference: Reference, child: Change, parent: Change) -> bool:
        row = self._before(child)
        named = self._before(parent)
        if not row.keys() >= {*reference.columns} or not named.keys() >= {*reference.keys}:
            # A wrong guess costs only the order: PostgreSQL checks the reference itself.
            return True
        values = [row[name] for name in reference.columns]
        # A foreign key with a NULL refers to nothing.
        return None not in values and values == [named[name] for name in reference.keys]

    def _before(self, change: Change) -> dict[str, Any]:
        # Each change is compared with many others, so its row is parsed once.
        found = self._befores.get(str(change["id"]))
        if found is None:
            found = json.loads(change["before"])
            self._befores[str(change["id"])] = found
        return found


def _names(change: Change) -> Names:
    return change["schema"], change["table"]
