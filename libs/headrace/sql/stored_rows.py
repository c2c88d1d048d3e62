"""Rows of the lake's data files as the copy stores them. Pure.

Columns are found by their field IDs, so that a renamed column is the same one. Texts in
`_headrace_exact` become values where DuckDB's type has them; the others stay next to the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.contract.arrays import parse_array
from headrace.contract.values import text as plain_text
from headrace.errors import DecodeError
from headrace.lake.column_types import ARROW_EXACT, arrow_type
from headrace.lake.columns import whole
from headrace.lake.tables import LakeColumn, LakeTable
from headrace.sql import moments
from headrace.sql.storage_types import BPCHAR_OID, TypeStorage, storage

# pyarrow's stubs lack calls that are used here.
pc: Any = pyarrow.compute
Array = Any

FILE = "f"
POSITION = "p"
EXACT = "x"
"""The copy's own columns: the number of the data file, the position in it, and texts of values that
the copy can't hold, by the column's name in the copy. Columns of tables have other names.
"""
UNKNOWN = "?"
"""In place of a column's name: some column, nobody knows which one."""

# A type modifier of characters is their number, and this.
_HEADER_BYTES = 4
# Of an interval's text, which has the form of ISO 8601.
_INTERVAL = (
    "to_months(CAST(12 * {years} + {months} AS INTEGER)) + to_days(CAST({days} AS INTEGER)) + "
    "to_microseconds({hours} * 3600000000 + {minutes} * 60000000 + "
    "CAST({seconds} * 1000000 AS BIGINT))"
)


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of the copy."""

    column: LakeColumn
    storage: TypeStorage

    @property
    def name(self) -> str:
        """Its name in the copy, which it keeps when it is renamed."""
        return column_name(self.column.field_id)

    @property
    def arrow(self) -> Any:
        """The type of its values in the lake."""
        return arrow_type(self.column.info)


def column_name(field_id: int) -> str:
    """The name of a field's column in the copy."""
    return f"c{field_id}"


def stored_columns(table: LakeTable) -> tuple[StoredColumn, ...]:
    """The columns of a table in the copy."""
    return tuple(
        StoredColumn(column, storage(column.info.type_oid, column.info.type_modifier))
        for column in table.columns
    )


def insert_expressions(columns: Sequence[StoredColumn]) -> list[str]:
    """The SQL that turns each column's Arrow values, under its name, into the copy's types."""
    return [_expression(column.name, column.storage) for column in columns]


def _expression(value: str, stored: TypeStorage) -> str:
    if stored.element is not None:
        if stored.element.duckdb == "INTERVAL":
            return f"list_transform({value}, lambda e: {_expression('e', stored.element)})"
        return f"CAST({value} AS {stored.duckdb})"
    if stored.duckdb == "INTERVAL":
        return f"CASE WHEN {value} IS NOT NULL THEN {_interval(value)} END"
    return f"CAST({value} AS {stored.duckdb})"


def _interval(value: str) -> str:
    def part(unit: str, kind: str, time: str) -> str:
        # Months and minutes have the same letter, on either side of T.
        half = f"split_part({value}, 'T', {time})"
        digits = f"regexp_extract({half}, '(-?[0-9.]+){unit}', 1)"
        return f"coalesce(TRY_CAST({digits} AS {kind}), 0)"

    return _INTERVAL.format(
        years=part("Y", "BIGINT", "1"),
        months=part("M", "BIGINT", "1"),
        days=part("D", "BIGINT", "1"),
        hours=part("H", "BIGINT", "2"),
        minutes=part("M", "BIGINT", "2"),
        seconds=part("S", "DECIMAL(18,6)", "2"),
    )


class FileRows:
    """Reads rows of one data file."""

    def __init__(
        self,
        columns: Sequence[StoredColumn],
        names: Mapping[str, int],
        former_names: Mapping[str, int],
    ) -> None:
        """`names` are the file's columns with their field IDs: its texts are under these names,
        or, if a file was rewritten after a column was renamed, under `former_names`.
        """
        self._columns = columns
        self._names = {number: name for name, number in names.items()}
        self._ids = {**former_names, **names}
        self._by_id = {column.column.field_id: column for column in columns}

    def read(self, rows: pa.Table, exact: Array, count: int) -> pa.Table:
        """The columns as they are inserted, and `EXACT`; `exact` has the texts of `count` rows."""
        texts = self._texts(exact)
        found = [self._values(column, rows, count, texts) for column in self._columns]
        left = _texts_left(texts, count)
        names = [column.name for column in self._columns]
        return pa.Table.from_arrays([*found, left], names=[*names, EXACT])

    def _texts(self, exact: Array) -> dict[str, dict[int, str]]:
        """Texts by the column in the copy and the row."""
        texts: dict[str, dict[int, str]] = {}
        if exact is None or exact.null_count == len(exact):
            return texts
        for row in pc.indices_nonzero(exact.is_valid()).to_pylist():
            for name, text in exact[row].as_py():
                number = self._ids.get(name)
                # A name that no schema has: the text belongs to some column, and no value can be
                # trusted.
                if number is None:
                    texts.setdefault(UNKNOWN, {})[row] = text
                elif number in self._by_id:
                    texts.setdefault(column_name(number), {})[row] = text
        return texts

    def _values(
        self, column: StoredColumn, rows: pa.Table, count: int, texts: dict[str, dict[int, str]]
    ) -> Array:
        name = self._names.get(column.column.field_id)
        # The file is older than the column.
        if name is None:
            return pa.nulls(count, column.arrow)
        values = whole(rows.column(name))
        length = _characters(column.column)
        if length is not None:
            values = _padded(values, length)
        if column.storage.duckdb.startswith("INTERVAL"):
            values = _without_infinity(values, texts, column)
        known = texts.get(column.name)
        if known is None:
            return values
        held: dict[int, Any] = {}
        for row, text in list(known.items()):
            value = held_value(text, column.storage)
            if value is not None:
                held[row] = value
                # The copy has the value now, so its text is not needed next to the row.
                del known[row]
        return _replaced(values, held, column.arrow)


def _characters(column: LakeColumn) -> int | None:
    """The length of all values of character(n); None of other types."""
    info = column.info
    if info.type_oid != BPCHAR_OID or info.type_modifier < 0:
        return None
    return info.type_modifier - _HEADER_BYTES


def _padded(values: Array, length: int) -> Array:
    """With as many blanks as PostgreSQL has, by any writer's files: comparisons and groups rely on
    it.
    """
    found = pc.min_max(pc.utf8_length(values))
    if {found["min"].as_py(), found["max"].as_py()} <= {length, None}:
        return values
    return pc.utf8_rpad(pc.utf8_rtrim(values, characters=" "), width=length, padding=" ")


def held_value(text: str, stored: TypeStorage) -> Any:
    """PostgreSQL's text as the number by which Arrow has the value; None if the copy lacks it."""
    if stored.element is not None:
        return _held_list(text, stored.element)
    match stored.duckdb:
        case "DATE":
            return moments.days(text)
        case "TIMESTAMP" | "TIMESTAMPTZ":
            return moments.microseconds(text)
    return None


def _held_list(literal: str, element: TypeStorage) -> list[Any] | None:
    # Arrow's lists have one dimension, and begin at 1.
    if literal.startswith(("[", "{{")):
        return None
    try:
        parts = parse_array(literal.encode(), plain_text)
    except DecodeError:
        return None
    values: list[Any] = []
    for part in parts:
        if not isinstance(part, str | None):
            return None
        value = None if part is None else held_value(part, element)
        if value is None and part is not None:
            return None
        values.append(value)
    return values


def _replaced(values: Array, held: Mapping[int, Any], kind: Any) -> Array:
    """The values with others, which are numbers for Arrow, in some rows."""
    if not held:
        return values
    if pa.types.is_list(kind):
        others = _lists(list(held.values()), kind)
    else:
        others = _moments(list(held.values()), kind)
    places = list(range(len(values)))
    for at, row in enumerate(held):
        places[row] = len(values) + at
    return pa.concat_arrays([values.cast(kind), others]).take(pa.array(places))


def _moments(numbers: Sequence[int | None], kind: Any) -> Array:
    return pa.array(numbers, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)


def _lists(values: Sequence[list[int | None]], kind: Any) -> Array:
    ends = [0]
    for each in values:
        ends.append(ends[-1] + len(each))
    elements = _moments([number for each in values for number in each], kind.value_type)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements).cast(kind)


def _without_infinity(
    values: Array, texts: dict[str, dict[int, str]], column: StoredColumn
) -> Array:
    """Intervals without the infinite ones of PostgreSQL 17, which become texts."""
    flat = values.flatten() if column.storage.element is not None else values
    # Nearly always: the loop below is for few columns.
    if not pc.any(pc.match_substring(flat, "infinity")).as_py():
        return values
    kept = values.to_pylist()
    for row, value in enumerate(kept):
        if value is not None and "infinity" in value:
            texts.setdefault(column.name, {})[row] = (
                value if isinstance(value, str) else _literal(value)
            )
            kept[row] = None
    return pa.array(kept, values.type)


def _literal(values: Sequence[str | None]) -> str:
    """A list of intervals, whose texts need no quotes, as PostgreSQL's literal."""
    return f"{{{','.join('NULL' if value is None else value for value in values)}}}"


def _texts_left(texts: Mapping[str, Mapping[int, str]], rows: int) -> Array:
    """The texts next to each row; null for most."""
    if not any(texts.values()):
        return pa.nulls(rows, ARROW_EXACT)
    left: list[list[tuple[str, str]] | None] = [None] * rows
    for name, by_row in texts.items():
        for row, text in by_row.items():
            left[row] = [*(left[row] or ()), (name, text)]
    return pa.array(left, ARROW_EXACT)
