"""Reads rows of the archive, which are JSON objects, as a table of the lake's columns.

Promises that nothing is lost: a value that its column's type can't hold is null there, and its text
is in `_headrace_exact`. Documents keep their own text. A batch that Arrow's JSON reader can't read
(a number `NaN`, a domain over a number) is read in a slower way, with the same result. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.archive.metadata import ColumnInfo
from headrace.contract import type_oids
from headrace.lake.column_types import arrow_schema, arrow_type
from headrace.lake.exact_texts import exact_column
from headrace.lake.json_columns import JsonColumns
from headrace.lake.typed_values import (
    DOCUMENT_OIDS,
    Array,
    Found,
    Misfits,
    Reader,
    from_json_forms,
    from_postgres,
    parsed_as,
)

_FLOATS = frozenset({type_oids.FLOAT4, type_oids.FLOAT8})

Exact = Sequence[Mapping[str, str] | None]


class JsonRows:
    """Reads rows with these columns; members of other names are ignored."""

    def __init__(self, columns: Sequence[ColumnInfo]) -> None:
        self._schema = arrow_schema(columns)
        self._names = [column.name for column in columns]
        self._readers = [from_json_forms(column) for column in columns]
        self._exact_readers = [_exact_reader(column) for column in columns]
        self._ways = _ways(columns)

    def read(self, texts: pa.Array[Any], exact: Exact | None) -> pa.Table:
        """A row for each text; `exact` has PostgreSQL's texts of values that JSON doesn't represent
        completely, by column.
        """
        rows = len(texts)
        if not rows:
            return self._schema.empty_table()
        columns = next(one for way in self._ways if (one := way.read(texts)) is not None)
        found = [
            _typed(columns[name], read)
            for name, read in zip(self._names, self._readers, strict=True)
        ]
        if exact is not None:
            found = self._corrected(found, exact)
        arrays = [values for values, _ in found]
        arrays.append(exact_column(self._names, [misfits for _, misfits in found], rows))
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _corrected(self, found: list[Found], exact: Exact) -> list[Found]:
        """With the values of PostgreSQL's texts in place of JSON's."""
        texts: dict[str, dict[int, str]] = {}
        for row, by_column in enumerate(exact):
            for name, text in (by_column or {}).items():
                texts.setdefault(name, {})[row] = text
        return [
            _replaced(one, texts[name], read) if name in texts else one
            for name, read, one in zip(self._names, self._exact_readers, found, strict=True)
        ]


def _ways(columns: Sequence[ColumnInfo]) -> list[JsonColumns]:
    """Each reads rows that the one before can't read, and the last one all."""
    kinds = {column.name: parsed_as(arrow_type(column)) for column in columns}
    documents = {column.name for column in columns if column.type_oid in DOCUMENT_OIDS}
    # A domain may have any JSON type, and a float is a string if it isn't finite.
    varying = {
        column.name
        for column in columns
        if column.type_oid >= type_oids.FIRST_USER or column.type_oid in _FLOATS
    }
    aparts = [documents, documents | varying, set(kinds)]
    return [JsonColumns(kinds, apart, documents) for apart in aparts]


def _typed(column: Array, read: Reader) -> Found:
    """Arrow's JSON reader made other types than strings already."""
    if column.type == pa.string():
        return read(column)
    return column, {}


def _replaced(found: Found, texts: Misfits, read: Reader) -> Found:
    """A column with other values in the rows of `texts`."""
    values, misfits = found
    others, unfit = read(pa.array(texts.values(), pa.string()))
    rows = list(texts)
    places = list(range(len(values)))
    for at, row in enumerate(rows):
        places[row] = len(values) + at
    kept = {row: text for row, text in misfits.items() if row not in texts}
    kept |= {rows[at]: text for at, text in unfit.items()}
    return pa.concat_arrays([values, others]).take(pa.array(places)), kept


def _exact_reader(column: ColumnInfo) -> Reader:
    # A string has any text; only for other types does it have to be read.
    if arrow_type(column) == pa.string():
        return from_json_forms(column)
    return from_postgres(column, {})
