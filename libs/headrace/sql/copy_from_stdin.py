"""Rows of the copy as lines of COPY … FROM STDIN, so that PostgreSQL can hold them itself. Pure.

Values that the copy can't hold come from the texts next to their rows: PostgreSQL gets every value
of the lake, or the table is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.sql.errors import NotProvenEqualError
from headrace.sql.relations import LakeRelation, RelationColumn
from headrace.sql.result_rows import DEFAULT_SETTINGS
from headrace.sql.storage_types import exported, storage
from headrace.sql.stored_rows import EXACT, UNKNOWN
from headrace.sql.value_forms.arrow import Array, as_binary, pc
from headrace.sql.value_forms.by_type import text_form

_NULL = b"\\N"
# The backslash comes first: the others begin with one.
_ESCAPES = ((b"\\", b"\\\\"), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))


def rows_query(relation: LakeRelation, columns: Sequence[RelationColumn]) -> str:
    """The copy's query for these columns: the values, then the texts of those that it can't hold,
    and whether the row has a text of which nobody knows the column.
    """
    values = [exported(each.copy, storage(each.type_oid, each.modifier).duckdb) for each in columns]
    texts = [_text_of(each.copy.strip('"')) for each in columns if not each.held]
    if texts:
        texts.append(f"{_text_of(UNKNOWN)} IS NOT NULL")
    listed = ", ".join(
        f"{expression} AS v{number}" for number, expression in enumerate([*values, *texts])
    )
    return f"SELECT {listed or 'NULL AS v0'} FROM {relation.copy}"


def _text_of(column: str) -> str:
    return f"map_extract({EXACT}, '{column}')[1]"


class CopyLines:
    """Makes the lines of one table; without columns, each is a null."""

    def __init__(self, columns: Sequence[RelationColumn]) -> None:
        self._columns = columns
        self._forms = [text_form(each.type_oid, DEFAULT_SETTINGS) for each in columns]

    def of(self, batch: pa.RecordBatch) -> bytes:
        """The lines of a batch of `rows_query`'s rows."""
        rows = batch.num_rows
        if not rows:
            return b""
        if not self._columns:
            return (_NULL + b"\n") * rows
        texts = iter(batch.columns[len(self._columns) :])
        cells = []
        for column, form, values in zip(self._columns, self._forms, batch.columns, strict=False):
            cell = _bytes(form(values))
            if not column.held:
                cell = pc.coalesce(cell, _bytes(next(texts)))
            cells.append(_escaped(cell))
        unknown = next(texts, None)
        if unknown is not None and pc.any(unknown).as_py():
            raise NotProvenEqualError("a value that the copy lacks")
        lines: Any = pc.binary_join_element_wise(
            *cells, pa.scalar(b"\t", pa.binary()), null_handling="replace", null_replacement=_NULL
        )
        return b"\n".join(lines.to_pylist()) + b"\n"


def _bytes(column: Array) -> Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return as_binary(column.cast(pa.string()) if pa.types.is_null(column.type) else column)


def _escaped(cell: Array) -> Array:
    for character, escape in _ESCAPES:
        cell = pc.replace_substring(cell, pattern=character, replacement=escape)
    return cell
