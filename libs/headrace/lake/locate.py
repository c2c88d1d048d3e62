"""The places of the rows with given keys: in which file, at which position. Pure.

Promises exactness: columns are compared by value, with NULL equal to NULL; no hash decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.lake.columns import Column, Ints, whole

# pyarrow's stubs lack calls that are used here.
pc: Any = pyarrow.compute
_NOWHERE = -1


class Needles:
    """The keys that are searched for; equal ones are one key."""

    def __init__(self, keys: pa.Table) -> None:
        self._dictionaries: list[Column] = []
        self._tables: list[Ints] = []
        codes = np.zeros(keys.num_rows, np.int64)
        for column in keys.columns:
            values = comparable(whole(column))
            dictionary = values.unique()
            self._dictionaries.append(dictionary)
            found = pc.index_in(values, value_set=dictionary).to_numpy().astype(np.int64)
            # After each column, so that the product never exceeds the number of keys times one
            # column.
            codes, table = _narrowed(codes * len(dictionary) + found)
            self._tables.append(table)
        self.codes = codes

    def codes_of(self, columns: Sequence[Column]) -> Ints:
        """The key's number for each row; -1 for rows with another key."""
        codes: Ints | None = None
        for column, dictionary, table in zip(
            columns, self._dictionaries, self._tables, strict=True
        ):
            values = comparable(column)
            # A column that a file lacks, or has in an earlier type.
            if values.type != dictionary.type:
                values = values.cast(dictionary.type)
            found = pc.index_in(values, value_set=dictionary)
            place = pc.fill_null(found, _NOWHERE).to_numpy().astype(np.int64)
            combined = place if codes is None else codes * len(dictionary) + place
            # A row without a part of the key matches none, even if its other columns fit.
            missing = place < 0 if codes is None else (place < 0) | (codes < 0)
            combined[missing] = _NOWHERE
            codes = _looked_up(table, combined)
        assert codes is not None, "a key has columns"
        return codes


def _narrowed(combined: Ints) -> tuple[Ints, Ints]:
    """Numbers without gaps for combinations of values, and the combinations in order: products of
    the columns' sizes would overflow.
    """
    table, codes = np.unique(combined, return_inverse=True)
    return codes.astype(np.int64), table


def _looked_up(table: Ints, combined: Ints) -> Ints:
    if not len(table):
        return np.full(len(combined), _NOWHERE, np.int64)
    # A value behind the last one would be out of range; the comparison below rejects it.
    place = np.minimum(np.searchsorted(table, combined), len(table) - 1)
    return np.where((table[place] == combined) & (combined >= 0), place, _NOWHERE)


def comparable(column: Column) -> Column:
    """A column whose values can be looked up: lists and maps as texts."""
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if pa.types.is_map(column.type):
        return _texts(column, lambda value: repr(sorted(value)))
    if pa.types.is_nested(column.type):
        return _texts(column, repr)
    return column


def _texts(column: Column, text: Callable[[Any], str]) -> Column:
    texts = [None if value is None else text(value) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def entry_of(column: Column, name: str) -> Column:
    """The value with a name in each map of a column, null where it has none."""
    found = [dict(value or ()).get(name) for value in column.to_pylist()]
    return pa.array(found, pa.string())


def rows_of(codes: Ints, keys: int, *, counts: Ints | None = None) -> Ints:
    """The positions of rows that have one of the keys; with counts, as many of each."""
    found = np.flatnonzero(codes >= 0)
    if counts is None or not len(found):
        return found
    order = np.argsort(codes[found], kind="stable")
    sorted_codes = codes[found][order]
    begins = np.searchsorted(sorted_codes, np.arange(keys))
    # The first rows of each key are taken, as many as are asked for.
    place_in_key = np.arange(len(order)) - begins[sorted_codes]
    chosen = place_in_key < counts[sorted_codes]
    return np.sort(found[order[chosen]])
