"""The schema of every file, and its rows as Python values. Pure.

The schema is the same for all tables, so that any Parquet reader can read the archive: everything
that differs between tables is JSON text in `key`, `before` and `after`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.archive.entry import RowEntry

_FIELDS: list[pa.Field[Any]] = [
    pa.field("commit_lsn", pa.int64(), nullable=False),
    pa.field("ordinal", pa.int64(), nullable=False),
    pa.field("lsn", pa.int64(), nullable=False),
    pa.field("xid", pa.int64(), nullable=False),
    pa.field("commit_time", pa.timestamp("us", tz="UTC")),
    pa.field("schema", pa.string()),
    pa.field("table", pa.string()),
    pa.field("operation", pa.string(), nullable=False),
    pa.field("key", pa.string()),
    pa.field("before", pa.string()),
    pa.field("after", pa.string()),
    pa.field("unchanged", pa.list_(pa.string())),
    pa.field("schema_version", pa.int32()),
    pa.field("exact", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
NAMES = tuple(SCHEMA.names)
# These have few distinct values: written and read as dictionaries.
WORDS = ("schema", "table", "operation")
# The maximum size of a row group.
GROUP_ROWS = 65_536
_ROW = partial(tuple.__new__, RowEntry)


def completed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with the column that older files lack."""
    if "exact" in batch.schema.names:
        return batch
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.nulls(batch.num_rows, pa.string())],
        names=[*batch.schema.names, "exact"],
    )


def entries(batch: pa.RecordBatch) -> Iterator[RowEntry]:
    """A batch's rows."""
    rows: Iterator[RowEntry] = map(
        _ROW, zip(*(_values(batch.column(name)) for name in NAMES), strict=True)
    )
    return rows


def _values(column: Any) -> Any:
    """A column's values, by the fastest way for its type."""
    if column.null_count == len(column):
        return repeat(None, len(column))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_dictionary(column.type):
        return _words(column)
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.to_numpy().tolist()
    if pa.types.is_string(column.type):
        return column.to_numpy(zero_copy_only=False).tolist()
    return column.to_pylist()


def _words(column: Any) -> list[str | None]:
    words = np.array([*column.dictionary.to_pylist(), None], dtype=object)
    if column.null_count:
        places = column.indices.fill_null(len(words) - 1)
    else:
        places = column.indices
    found: list[str | None] = words[places.to_numpy()].tolist()
    return found
