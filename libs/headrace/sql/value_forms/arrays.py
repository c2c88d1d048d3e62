"""Arrays: PostgreSQL's literals and binary forms, from Arrow's lists of one dimension."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.sql.value_forms.arrow import (
    Array,
    Form,
    as_binary,
    big_endian,
    filled,
    joined,
    lengths,
    pc,
    valid,
    with_nulls_of,
)

# What array_out puts between quotes.
_QUOTED = r'^$|^[Nn][Uu][Ll][Ll]$|[{{}}"\\{delimiter} \t\n\r\x0b\x0c]'


def array_texts(element: Form, delimiter: str, column: Array) -> Array:
    """Literals such as `{{1,NULL}}`."""
    lists = _lists(column)
    texts = element(lists.flatten()).cast(pa.string())
    pattern = _QUOTED.format(delimiter=delimiter)
    quotes = pc.match_substring_regex(texts, pattern)
    if pc.any(quotes).as_py():
        escaped = pc.replace_substring_regex(texts, r'(["\\])', r"\\\1")
        between = pc.binary_join_element_wise('"', escaped, '"', "")
        texts = pc.if_else(quotes, between, texts)
    # After the quotes: a text NULL has them by now, and a null must not.
    shown = pc.fill_null(texts, "NULL")
    bodies = pc.binary_join(pa.ListArray.from_arrays(_ends(lists), shown), delimiter)
    return with_nulls_of(pc.binary_join_element_wise("{", bodies, "}", ""), column)


def array_binary(element: Form, element_oid: int, column: Array) -> Array:
    """The number of dimensions, whether there are nulls, the element's type, and the elements."""
    lists = _lists(column)
    values = as_binary(element(lists.flatten()))
    sizes = np.where(valid(values), lengths(values), -1)
    cells = joined([big_endian(sizes, ">i4"), filled(values, b"")])
    ends = _ends(lists)
    bodies = pc.binary_join(pa.ListArray.from_arrays(ends, cells), pa.scalar(b"", pa.binary()))
    bounds = ends.to_numpy()
    numbers = np.diff(bounds)
    nulls = np.concatenate([[0], np.cumsum(~valid(values))])
    rows = np.arange(len(lists))
    head = np.zeros((len(lists), 5), np.int64)
    head[:, 0] = numbers > 0
    head[:, 1] = nulls[bounds[rows + 1]] > nulls[bounds[rows]]
    head[:, 2] = element_oid
    head[:, 3] = numbers
    # The lower bound: an array with another one is no list in the copy, but a text.
    head[:, 4] = 1
    # An empty array has no dimension.
    heads = [big_endian(head[:, place], ">i4") for place in range(3)]
    dimension = joined([big_endian(head[:, 3], ">i4"), big_endian(head[:, 4], ">i4")])
    none = pa.scalar(b"", pa.binary())
    dimensions = pc.if_else(pa.array(numbers > 0), dimension, none)
    return with_nulls_of(joined([*heads, dimensions, bodies]), column)


def _lists(column: Array) -> Array:
    """The column with an empty list in place of null."""
    if not column.null_count:
        return column
    # `flatten` leaves out the elements of null lists, and the offsets would still count them.
    empty = pa.array([[]], column.type)
    places = np.where(valid(column), np.arange(len(column)), len(column))
    return pa.concat_arrays([column, empty]).take(pa.array(places))


def _ends(lists: Array) -> Array:
    """The end of each list's elements, among those of `flatten`."""
    # A slice has the offsets of the whole column, so they don't begin with 0.
    bounds = np.frombuffer(lists.buffers()[1], np.int32)
    found = bounds[lists.offset : lists.offset + len(lists) + 1]
    return pa.array(found - found[0])
