"""Columns of a run of rows, as Arrow has them. Pure.

Made of buffers and lists alone: pyarrow's functions (`take`, `cast`) would cost the process 15 MiB,
and numpy's arrays, where pyarrow is handed them as they are, another part of numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.archive.columns import SCHEMA


def batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Columns of any making as a batch of the archive's schema."""
    arrays = []
    for field in SCHEMA:
        made = columns[field.name]
        arrays.append(made if isinstance(made, pa.Array) else pa.array(made, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def numbers(values: Any, kind: Any = None) -> Any:
    """A numpy array of 64-bit numbers, without a copy."""
    kind = kind or pa.int64()
    held: Any = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(held)])


def times(each: Sequence[int | None], lengths: Any) -> Any:
    """Microseconds since 1970, each as often as its length says."""
    kind = pa.timestamp("us", tz="UTC")
    if None not in each:
        return numbers(np.repeat(np.array(each, np.int64), lengths), kind)
    repeated = [
        time for time, length in zip(each, lengths.tolist(), strict=True) for _ in range(length)
    ]
    return pa.array(repeated, kind)


def chosen(values: Sequence[Any], places: Sequence[int], kind: Any) -> Any:
    """For each row the value at its place."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), len(places))
    return pa.array([values[place] for place in places], kind)


def sparse(values: Mapping[int, Any], count: int, kind: Any) -> Any:
    """Values of a few rows, or of none."""
    if not values:
        return pa.nulls(count, kind)
    return [values.get(place) for place in range(count)]
