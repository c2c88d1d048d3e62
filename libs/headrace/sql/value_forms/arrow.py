"""Pieces of Arrow columns that the forms are made of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

# pyarrow's stubs lack calls that are used here.
pc: Any = pyarrow.compute
Array = Any
Numbers = np.ndarray[Any, np.dtype[Any]]
Form = Callable[[Array], Array]


def integers(column: Array) -> Numbers:
    """The 64-bit numbers of a column of numbers, dates or times; 0 where it is null."""
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        column = column.view(pa.int64())
    found: Numbers = filled(column, 0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64, copy=False)


def filled(column: Array, value: Any) -> Array:
    """A column without nulls."""
    return pc.fill_null(column, pa.scalar(value, column.type)) if column.null_count else column


def valid(column: Array) -> Numbers:
    """Where a column is not null."""
    found: Numbers = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def with_nulls_of(values: Array, column: Array) -> Array:
    """The values, null where the column is."""
    if not column.null_count:
        return values
    return pc.if_else(column.is_valid(), values, pa.scalar(None, values.type))


def replaced(values: Array, rows: Sequence[int], others: Sequence[Any]) -> Array:
    """The values with others in some rows."""
    if not len(rows):
        return values
    places: Any = np.arange(len(values))
    places[np.asarray(rows)] = len(values) + np.arange(len(rows))
    return pa.concat_arrays([values, pa.array(others, values.type)]).take(pa.array(places))


def each(function: Callable[[Any], bytes | str], kind: Any = None) -> Form:
    """A form of single values, for types that are rare."""
    stored = kind or pa.binary()

    def form(column: Array) -> Array:
        values = [None if value is None else function(value) for value in column.to_pylist()]
        return pa.array(values, stored)

    return form


def matrix(rows: Numbers) -> Array:
    """Rows of bytes, all equally long, as an array of bytes."""
    count, width = rows.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(rows, np.uint8)
    return pa.Array.from_buffers(pa.binary(), count, [None, buffer(ends), buffer(data)])


def buffer(numbers: Numbers) -> Any:
    """The memory of numbers for Arrow, which doesn't copy it."""
    view: Any = numbers
    return pa.py_buffer(view)


def big_endian(numbers: Numbers, kind: str) -> Array:
    """Numbers in network order, such as `>i4`."""
    ordered = np.ascontiguousarray(numbers.astype(kind))
    return matrix(ordered.view(np.uint8).reshape(len(numbers), ordered.dtype.itemsize))


def lengths(column: Array) -> Numbers:
    """The number of bytes of each value; 0 where it is null."""
    ends = np.frombuffer(column.buffers()[1], np.int32)
    # Arrow allows bytes behind a null, which are nobody's.
    found: Numbers = np.diff(ends[column.offset : column.offset + len(column) + 1])
    return np.where(valid(column), found, 0) if column.null_count else found


def joined(parts: Sequence[Any]) -> Array:
    """Each row's parts, one after the other, without nulls."""
    # The last argument is what stands between the parts.
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def as_binary(texts: Array) -> Array:
    """Texts as their bytes."""
    return texts.cast(pa.binary())
