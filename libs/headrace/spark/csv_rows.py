"""Converts COPY's CSV to rows with values in the contract's forms, column by column.

Promises the same values as `headrace.contract.values` returns for the same text, one by one; common
types take a fast path that works on a whole column. NULL and the empty string stay distinct. Runs
in Spark's tasks: needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv

from headrace.contract import scalars
from headrace.contract.exact import Inexact
from headrace.contract.values import Converter, may_be_inexact, text

Row = dict[str, Any]
Values = list[Any]
# Index of a row → column → PostgreSQL's text.
Exact = dict[int, dict[str, str]]
# pyarrow publishes no types, and third-party stubs lack calls that are used here.
Array = Any
pc: Any = pyarrow.compute

_TO_THE_END = 2**31 - 1
# The end of a common timestamp, and its replacement in the contract.
_TIMESTAMP_ENDINGS: Final[Mapping[Converter, tuple[str, str]]] = {
    scalars.timestamp_utc: ("+00", "Z"),
    scalars.timestamp: ("", ""),
}


class CsvRows:
    """Parses whole rows of COPY's CSV."""

    def __init__(self, names: Sequence[str], converters: Sequence[Converter]) -> None:
        self._columns = [_reader(converter) for converter in converters]
        self._may_be_inexact = [may_be_inexact(converter) for converter in converters]
        self._names = names
        self._row = _row_maker(names)
        places = [str(place) for place in range(len(names))]
        types = {place: kind for place, (kind, _) in zip(places, self._columns, strict=True)}
        # One block leaves nothing to divide, and Spark has a task for each core.
        self._read = csv.ReadOptions(use_threads=False, column_names=places)
        # The NULL of a table with one column is an empty line.
        self._parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        self._convert = csv.ConvertOptions(
            column_types=types,
            # COPY writes NULL as nothing, and the empty string as two quotes.
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        )

    def rows(self, data: bytes) -> tuple[list[Row], Exact]:
        """The rows of `data`, which contains only whole rows; and the texts that their native forms
        lose.
        """
        exact: Exact = {}
        columns = enumerate(self.columns(data))
        return self._row(*(self.natives(place, column, exact) for place, column in columns)), exact

    def columns(self, data: bytes) -> list[Array]:
        """The columns of `data` as pyarrow parses them."""
        # One block: a row must not be cut, however large it is.
        self._read.block_size = len(data) + 1
        table = csv.read_csv(
            pa.BufferReader(data),  # type: ignore[arg-type]  # the stubs know files only
            read_options=self._read,
            parse_options=self._parse,
            convert_options=self._convert,
        )
        return [_only_chunk(column) for column in table.columns]

    def values(self, place: int, column: Array) -> Values:
        """The values of the column at `place` in the contract's forms."""
        return _filled(self._columns[place][1](column), column)

    def natives(self, place: int, column: Array, exact: Exact) -> Values:
        """The same in native forms; the texts that these lose go into `exact`."""
        values = self.values(place, column)
        if self._may_be_inexact[place]:
            for row, value in enumerate(values):
                if type(value) is Inexact:
                    exact.setdefault(row, {})[self._names[place]] = value.text
                    values[row] = value.native
        return values


def _only_chunk(column: Array) -> Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()


def _row_maker(names: Sequence[str]) -> Callable[..., list[Row]]:
    """A function from columns to rows, generated for these names: twice as fast as dict(zip(…))."""
    arguments = ", ".join(f"v{place}" for place in range(len(names)))
    columns = ", ".join(f"c{place}" for place in range(len(names)))
    items = ", ".join(f"{name!r}: v{place}" for place, name in enumerate(names))
    target = f"({arguments},)"
    source = f"lambda {columns}: [{{{items}}} for {target} in zip({columns})]"
    # Names go in as quoted literals, and nothing else varies.
    made: Callable[..., list[Row]] = eval(source)  # noqa: S307
    return made


def _filled(values: Values, column: Array) -> Values:
    """NULLs as None, where the column's reader can't represent them."""
    if column.null_count:
        for place in column.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
            values[place] = None
    return values


Reader = Callable[[Array], Values]


def _objects(array: Array) -> Values:
    values: Values = array.to_numpy(zero_copy_only=False).tolist()
    return values


def _numbers(filler: float) -> Reader:
    def read(array: Array) -> Values:
        # NumPy has no NULL among numbers: `_filled` restores them.
        full = array.fill_null(filler) if array.null_count else array
        values: Values = full.to_numpy(zero_copy_only=False).tolist()
        return values

    return read


def iso_timestamps(column: Array, converter: Converter) -> Array | None:
    """A column rewritten as a whole; None unless all years have four digits."""
    ending, replaced = _TIMESTAMP_ENDINGS[converter]
    # The 11th character is a space only after a year of four digits.
    plain = pc.and_(
        pc.starts_with(pc.binary_slice(column.cast(pa.binary()), 10, 11), " "),
        _ends(column, ending),
    )
    # None if every value is NULL: such a column needs no other path.
    if pc.all(plain).as_py() is False:
        return None
    with_t = pc.binary_replace_slice(column, 10, 11, "T")
    if ending:
        return pc.binary_replace_slice(with_t, -len(ending), _TO_THE_END, replaced)
    return with_t


def _timestamps(converter: Converter) -> Reader:
    """Rewrites a column as a whole if all years have four digits, else value by value."""

    def read(array: Array) -> Values:
        iso = iso_timestamps(array, converter)
        if iso is None:
            return [
                None if value is None else converter(value.encode()) for value in _objects(array)
            ]
        return _objects(iso)

    return read


def _ends(array: Array, ending: str) -> Array:
    if ending:
        return pc.ends_with(array, ending)
    return pc.invert(pc.ends_with(array, " BC"))


def _one_by_one(converter: Converter) -> Reader:
    def read(array: Array) -> Values:
        return [None if value is None else converter(value) for value in _objects(array)]

    return read


_SHORTCUTS: Final[Mapping[Converter, tuple[pa.DataType, Reader]]] = {
    scalars.integer: (pa.int64(), _numbers(0)),
    scalars.number: (pa.float64(), _numbers(0.0)),
    scalars.boolean: (pa.bool_(), _objects),
    text: (pa.string(), _objects),
    scalars.timestamp_utc: (pa.string(), _timestamps(scalars.timestamp_utc)),
    scalars.timestamp: (pa.string(), _timestamps(scalars.timestamp)),
}


def _reader(converter: Converter) -> tuple[pa.DataType, Reader]:
    """The type that pyarrow parses a column as, and the conversion to Python values."""
    return _SHORTCUTS.get(converter) or (pa.binary(), _one_by_one(converter))
