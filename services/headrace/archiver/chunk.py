"""Rows of the open file, and their columns as Arrow has them. Pure.

Uses only buffers and lists: pyarrow's functions (`take`, `cast`) would cost the process 15 MiB, and
passing numpy's arrays to pyarrow directly would load another part of numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.archive.columns import SCHEMA


@dataclass(frozen=True, slots=True)
class SharedColumns:
    """The columns that all rows of one kind share."""

    schema: str | None
    table: str | None
    operation: str
    version: int | None


@dataclass(slots=True)
class RowChunk:
    """Rows of the open file, column by column, as they come."""

    lsns: list[int] = field(default_factory=list)
    # Each an index into the file's kinds.
    kinds: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    afters: list[bytes | None] = field(default_factory=list)
    # Of a few rows, by their index.
    befores: dict[int, bytes] = field(default_factory=dict)
    exacts: dict[int, bytes] = field(default_factory=dict)
    unchanged: dict[int, list[str]] = field(default_factory=dict)
    # The runs of positions without a step: index of the first row, its commit LSN and ordinal,
    # transaction, time.
    runs: list[tuple[int, int, int, int, int | None]] = field(default_factory=list)

    def batch(self, known: Sequence[SharedColumns]) -> pa.RecordBatch:
        """The rows as the archive has them; `known` are the file's kinds."""
        count = len(self.lsns)
        kinds = self.kinds
        runs = self.runs
        starts = np.array([run[0] for run in runs])
        lengths = np.diff(np.append(starts, count))
        ordinals = np.arange(count) + np.repeat(
            np.array([run[2] for run in runs]) - starts, lengths
        )
        columns: dict[str, Any] = {
            "commit_lsn": _numbers(np.repeat(np.array([run[1] for run in runs]), lengths)),
            "ordinal": _numbers(ordinals),
            "lsn": self.lsns,
            "xid": _numbers(np.repeat(np.array([run[3] for run in runs]), lengths)),
            "commit_time": _times([run[4] for run in runs], lengths),
            "schema": _chosen([kind.schema for kind in known], kinds, pa.string()),
            "table": _chosen([kind.table for kind in known], kinds, pa.string()),
            "operation": _chosen([kind.operation for kind in known], kinds, pa.string()),
            "key": self.keys,
            "before": _sparse(self.befores, count, pa.string()),
            "after": self.afters,
            "unchanged": _sparse(self.unchanged, count, pa.list_(pa.string())),
            "schema_version": _chosen([kind.version for kind in known], kinds, pa.int32()),
            "exact": _sparse(self.exacts, count, pa.string()),
        }
        arrays = []
        for column in SCHEMA:
            made = columns[column.name]
            arrays.append(made if isinstance(made, pa.Array) else pa.array(made, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _numbers(values: Any, kind: Any = None) -> Any:
    """A numpy array of 64-bit numbers, without a copy."""
    kind = kind or pa.int64()
    held: Any = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(held)])


def _times(each: Sequence[int | None], lengths: Any) -> Any:
    """Microseconds since 1970, each repeated as often as its length says."""
    kind = pa.timestamp("us", tz="UTC")
    if None not in each:
        return _numbers(np.repeat(np.array(each, np.int64), lengths), kind)
    repeated = [
        time for time, length in zip(each, lengths.tolist(), strict=True) for _ in range(length)
    ]
    return pa.array(repeated, kind)


def _chosen(values: Sequence[Any], places: Sequence[int], kind: Any) -> Any:
    """For each row the value at its place."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), len(places))
    return pa.array([values[place] for place in places], kind)


def _sparse(values: Mapping[int, Any], count: int, kind: Any) -> Any:
    """Values of a few rows, or of none."""
    if not values:
        return pa.nulls(count, kind)
    return [values.get(place) for place in range(count)]
