"""Writes the rows that differ into a mirror whose rows are compared here: SQLite, DuckDB, MariaDB.

Promises the same as `headrace.verify.repair`: the mirror is where the comparison saw it, its
process writes nothing meanwhile, and a row is changed only if it is still the one that was
compared. The new values are PostgreSQL's text of the source's rows, converted as for an event.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.mirror.row_editor import RowEditor, edited
from headrace.mirror.source_values import SourceValues
from headrace.mirror.table import Table
from headrace.mirror.target import RowMissingError, TargetAwayError
from headrace.verify.comparison import Comparison, formed
from headrace.verify.digest import Row, key_of
from headrace.verify.forms import Form
from headrace.verify.repair import MovedError, place_of_mirror

# The values of a row of the source, in the contract's forms.
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RowRepair:
    """The differences of one table, and what the mirror must have instead."""

    table: Table
    marks: Mapping[str, str]
    found: Comparison
    # The mirror's values, one for each of the source's columns, as they were compared.
    forms: Sequence[Form | None]
    # Each missing row, as it was compared, with its values.
    wanted: Sequence[tuple[Row, Values]]

    async def write(self, target: object) -> int:
        """Write them in one transaction; returns the number of rows."""
        try:
            return await asyncio.to_thread(self._write, target)
        except (RowMissingError, TargetAwayError) as error:
            raise MovedError(str(error)) from error

    def _write(self, target: object) -> int:
        name = f"{self.table.schema}.{self.table.name}"
        with edited(target, self.table) as editor:
            if place_of_mirror(editor.marks, self.table) != place_of_mirror(self.marks, self.table):
                raise MovedError(f"the mirror's {name} has continued in the meantime")
            extra, changed, missing = self._sorted(self._handles(editor))
            # Removed first: a row with another key may need the value of a unique column.
            done = [editor.delete(handle) for handle in extra]
            done += [editor.update(handle, values) for handle, values in changed]
            if any(count != 1 for count in done):
                raise MovedError(f"a row of {name} is not as it was compared")
            for values in missing:
                editor.insert(values)
            editor.commit()
        return len(done) + len(missing)

    def _handles(self, editor: RowEditor) -> list[tuple[Row, Any]]:
        """Each row that only the mirror has, as it was compared, with its handle."""
        left = Counter(self.found.extra)
        handles = []
        for rows in editor.rows():
            for handle, row in rows:
                compared = formed(self.forms, row)
                # Of several equal rows, as many as are too many.
                if left.get(compared, 0) > 0:
                    left[compared] -= 1
                    handles.append((compared, handle))
        if any(left.values()):
            name = f"{self.table.schema}.{self.table.name}"
            raise MovedError(f"a row of {name} is not as it was compared")
        return handles

    def _sorted(
        self, handles: Sequence[tuple[Row, Any]]
    ) -> tuple[list[Any], list[tuple[Any, Values]], list[Values]]:
        """Rows to remove, to change and to insert: those with the same key are changed."""
        names = [column.name for column in self.table.source_columns]
        places = [names.index(name) for name in self.table.key]
        wanted = dict(enumerate(self.wanted))
        by_key = {key_of(row, places): number for number, (row, _) in wanted.items() if places}
        extra, changed = [], []
        for row, handle in handles:
            number = by_key.pop(key_of(row, places), None)
            if number is None:
                extra.append(handle)
            else:
                changed.append((handle, wanted.pop(number)[1]))
        return extra, changed, [values for _, values in wanted.values()]


async def rows_wanted(
    read: Callable[[], AsyncIterator[list[Row]]],
    forms: Sequence[Form | None],
    missing: Sequence[Row],
    values: SourceValues,
) -> list[tuple[Row, Values]]:
    """The missing rows with their values, read from the source once more."""
    left = Counter(missing)
    found: list[tuple[Row, Values]] = []
    async for rows in read():
        for row in rows:
            compared = formed(forms, row)
            if left.get(compared, 0) > 0:
                left[compared] -= 1
                found.append((compared, values.of(row)))
    return found
