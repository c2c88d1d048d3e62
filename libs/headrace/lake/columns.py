"""Arrow columns as single arrays, and the types by which the lake's modules pass them. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

# pyarrow's stubs are generic in ways that say nothing here.
Column = Any
Ints = np.ndarray[Any, np.dtype[np.int64]]


def whole(column: Column) -> Column:
    """A column of a table as one array."""
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined


def places(numbers: Ints) -> Column:
    """Places of rows, for `take`."""
    return pa.array(numbers, pa.int64())


def taken(rows: Column, numbers: Ints) -> Column:
    """The rows of a table or a column at these places, which are in order; not copied if these are
    all of them.
    """
    if len(numbers) == len(rows):
        return rows
    return rows.take(places(numbers))
