"""Reads rows of COPY … CSV as a table of the lake's columns.

Promises the same values as `JsonRows` for the same row: a row of a snapshot is equal to one of a
change. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyarrow import csv

from headrace.archive.metadata import ColumnInfo
from headrace.contract.values import TypeInfo
from headrace.errors import DecodeError
from headrace.lake.column_types import arrow_schema, arrow_type
from headrace.lake.exact_texts import exact_column
from headrace.lake.typed_values import Array, Found, from_postgres, only_chunk, parsed_as


class CopyRows:
    """Reads rows of these columns, in this order; `types` describes types of users.

    The session that copies must have `headrace.spark.session.COPY_SESSION`.
    """

    def __init__(self, columns: Sequence[ColumnInfo], types: Mapping[int, TypeInfo]) -> None:
        self._schema = arrow_schema(columns)
        self._names = [column.name for column in columns]
        self._readers = [from_postgres(column, types) for column in columns]
        self._kinds = [parsed_as(arrow_type(column)) for column in columns]
        self._places = [str(place) for place in range(len(columns))]
        self._parse = csv.ParseOptions(
            newlines_in_values=True,
            # The NULL of a table with one column is an empty line.
            ignore_empty_lines=False,
        )

    def read(self, data: bytes) -> pa.Table:
        """The rows of `data`, which contains only whole rows."""
        if not data:
            return self._schema.empty_table()
        found = self._found(data)
        arrays = [values for values, _ in found]
        arrays.append(exact_column(self._names, [misfits for _, misfits in found], len(arrays[0])))
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _found(self, data: bytes) -> list[Found]:
        try:
            columns = self._columns(data, self._kinds)
        except pa.ArrowInvalid:
            # A value that its column's declared type doesn't have: only this block is read again,
            # as texts.
            return self._read(self._strings(data), [pa.string()] * len(self._kinds))
        return self._read(columns, self._kinds)

    def _strings(self, data: bytes) -> list[Array]:
        try:
            return self._columns(data, [pa.string()] * len(self._kinds))
        except pa.ArrowInvalid:
            # Its message contains values, and errors are logged.
            raise DecodeError(
                f"{len(data)} bytes of COPY are not {len(self._kinds)} columns of CSV in UTF-8"
            ) from None

    def _columns(self, data: bytes, kinds: Sequence[pa.DataType]) -> list[Array]:
        table = csv.read_csv(
            pa.BufferReader(data),  # type: ignore[arg-type]  # the stubs know files only
            read_options=csv.ReadOptions(
                use_threads=False,
                column_names=self._places,
                # One block: a row must not be cut, however large it is.
                block_size=len(data) + 1,
            ),
            parse_options=self._parse,
            convert_options=csv.ConvertOptions(
                column_types=dict(zip(self._places, kinds, strict=True)),
                # COPY writes NULL as nothing, and the empty string as two quotes.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
        return [only_chunk(column) for column in table.columns]

    def _read(self, columns: Sequence[Array], kinds: Sequence[pa.DataType]) -> list[Found]:
        return [
            read(column) if kind == pa.string() else (column, {})
            for column, kind, read in zip(columns, kinds, self._readers, strict=True)
        ]
