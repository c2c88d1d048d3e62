"""The column `_headrace_exact`: the texts of a row's values that their columns can't hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.lake.column_types import ARROW_EXACT
from headrace.lake.typed_values import Array, Misfits


def exact_column(names: Sequence[str], misfits: Sequence[Misfits], rows: int) -> Array:
    """A map for each row, in the order of the columns; null for a row whose columns hold all."""
    if not any(misfits):
        return pa.nulls(rows, ARROW_EXACT)
    found: list[list[tuple[str, str]] | None] = [None] * rows
    for name, column in zip(names, misfits, strict=True):
        for row, text in column.items():
            items = found[row]
            if items is None:
                found[row] = items = []
            items.append((name, text))
    return pa.array(found, ARROW_EXACT)
