"""Result rows as messages of PostgreSQL's protocol, from Arrow batches.

Works on whole columns: a million rows of five columns take less than a second of CPU time. A form
that is not proven to be PostgreSQL's is refused, before the first row. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.sql.value_forms.arrow import (
    Array,
    as_binary,
    big_endian,
    filled,
    joined,
    lengths,
    matrix,
    valid,
)
from headrace.sql.value_forms.by_type import binary_form, text_form

BINARY_FORMAT: Final = 1
DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}

_PREFIX_BYTES = 4
_NULL = -1


class ResultColumn(Protocol):
    """A column of a result, as PostgreSQL describes it."""

    @property
    def type_oid(self) -> int:
        """Its type."""

    @property
    def modifier(self) -> int:
        """The type's modifier."""


class RowMessages:
    """Makes DataRow messages of one result."""

    def __init__(
        self,
        columns: Sequence[ResultColumn],
        formats: Sequence[int],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`formats` has one for each column; `settings` are the session's that forms depend on."""
        session = {**DEFAULT_SETTINGS, **(settings or {})}
        self._forms = []
        for column, form in zip(columns, formats, strict=True):
            if form == BINARY_FORMAT:
                self._forms.append(binary_form(column.type_oid))
            else:
                self._forms.append(text_form(column.type_oid, session))

    def of(self, batch: pa.RecordBatch | pa.Table) -> bytes:
        """A DataRow for each row."""
        try:
            return self._messages(batch)
        except pa.ArrowCapacityError:
            if batch.num_rows < 2:
                raise
        # The messages of a column must fit into 2 GiB.
        half = batch.num_rows // 2
        return self.of(batch.slice(0, half)) + self.of(batch.slice(half))

    def _messages(self, batch: pa.RecordBatch | pa.Table) -> bytes:
        rows = batch.num_rows
        if not rows:
            return b""
        cells = [
            form(_single(column)) for form, column in zip(self._forms, batch.columns, strict=True)
        ]
        sizes = [lengths(cell) for cell in cells]
        total = np.full(rows, 6 + _PREFIX_BYTES * len(cells), np.int64)
        parts = []
        for cell, size in zip(cells, sizes, strict=True):
            total += size
            prefix = np.where(valid(cell), size, _NULL) if cell.null_count else size
            parts += [big_endian(prefix, ">i4"), filled(as_binary(cell), b"")]
        head = _heads(total, len(cells))
        messages = joined([head, *parts])
        ends = np.frombuffer(messages.buffers()[1], np.int32)
        return bytes(memoryview(messages.buffers()[2])[ends[messages.offset] : ends[rows]])


def _heads(total: Any, columns: int) -> Array:
    """The beginning of each message: its letter, its size and the number of columns."""
    head = np.empty((len(total), 7), np.uint8)
    head[:, 0] = ord("D")
    head[:, 1:5] = total.astype(">i4").view(np.uint8).reshape(-1, 4)
    head[:, 5:7] = np.frombuffer(columns.to_bytes(2, "big"), np.uint8)
    return matrix(head)


def _single(column: Any) -> Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])
