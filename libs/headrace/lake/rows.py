"""Reads rows of the archive, which are JSON objects, as a table of the lake's columns.

Promises that nothing is lost: a value that its column's type can't hold is null there, and its text
is in `_headrace_exact`. Documents keep their own text. A batch that Arrow's JSON reader can't read
(a number `NaN`, a domain over a number) is read member by member, with the same result. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import json

from headrace.archive.metadata import ColumnInfo
from headrace.lake.column_types import arrow_schema, arrow_type
from headrace.lake.exact_texts import exact_column
from headrace.lake.json_members import Members
from headrace.lake.typed_values import (
    DOCUMENT_OIDS,
    Array,
    Found,
    Misfits,
    Reader,
    from_json_forms,
    from_postgres,
    only_chunk,
    to_list,
    unquoted,
)

pc: Any = pyarrow.compute

Exact = Sequence[Mapping[str, str] | None]


class JsonRows:
    """Reads rows with these columns; members of other names are ignored."""

    def __init__(self, columns: Sequence[ColumnInfo]) -> None:
        self._schema = arrow_schema(columns)
        self._names = [column.name for column in columns]
        self._kinds = [_parsed_as(arrow_type(column)) for column in columns]
        self._readers = [from_json_forms(column) for column in columns]
        self._exact_readers = [_exact_reader(column) for column in columns]
        documents = [column.name for column in columns if column.type_oid in DOCUMENT_OIDS]
        self._documents = Members(documents)
        self._all = Members(self._names)
        self._document_places = {name: place for place, name in enumerate(documents)}
        parsed = zip(self._names, self._kinds, strict=True)
        self._parse = json.ParseOptions(
            explicit_schema=pa.schema(
                [pa.field(*field) for field in parsed if field[0] not in self._document_places]
            ),
            unexpected_field_behavior="ignore",
        )

    def read(self, texts: pa.Array[Any], exact: Exact | None) -> pa.Table:
        """A row for each text; `exact` has PostgreSQL's texts of values that JSON doesn't represent
        completely, by column.
        """
        rows = len(texts)
        if not rows:
            return self._schema.empty_table()
        found = self._quickly(texts)
        if found is None:
            found = self._member_by_member(texts)
        if exact is not None:
            found = self._corrected(found, exact)
        arrays = [values for values, _ in found]
        arrays.append(exact_column(self._names, [misfits for _, misfits in found], rows))
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _quickly(self, texts: Array) -> list[Found] | None:
        """None unless every value has the JSON type of its column."""
        lines = pa.ListArray.from_arrays([0, len(texts)], pc.fill_null(texts, "{}"))
        try:
            data = pc.binary_join(lines, "\n")[0].as_buffer()
            table = json.read_json(
                pa.BufferReader(data),  # type: ignore[arg-type]  # the stubs know files only
                # One block: a row must not be cut, however large it is.
                read_options=json.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=self._parse,
            )
        except pa.ArrowInvalid:
            return None
        documents = self._documents.columns(to_list(texts)) if self._document_places else []
        found: list[Found] = []
        for name, kind, read in zip(self._names, self._kinds, self._readers, strict=True):
            place = self._document_places.get(name)
            if place is not None:
                found.append((pa.array(documents[place], pa.string()), {}))
            elif kind == pa.string():
                found.append(read(only_chunk(table[name])))
            else:
                found.append((only_chunk(table[name]), {}))
        return found

    def _member_by_member(self, texts: Array) -> list[Found]:
        found = []
        columns = self._all.columns(to_list(texts))
        for name, read, members in zip(self._names, self._readers, columns, strict=True):
            if name in self._document_places:
                texts_there = members
            else:
                texts_there = [member if member is None else unquoted(member) for member in members]
            found.append(read(pa.array(texts_there, pa.string())))
        return found

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


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """Values as Arrow's JSON reader reads them; all others are strings in JSON."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind
    return pa.string()
