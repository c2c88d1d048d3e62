"""Changes of a table without a key become numbers of rows that come and go."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headrace.lake.fold import NetChanges, fold

COLUMNS = ("operation", "key", "before", "after", "unchanged", "exact")
SCHEMA = pa.schema(
    [(name, pa.list_(pa.string()) if name == "unchanged" else pa.string()) for name in COLUMNS]
)


def row(number: int) -> str:
    return json.dumps({"a": number})


def folded(*changes: tuple[str, int | None, int | None], exact: Any = None) -> NetChanges:
    rows = [
        {
            "operation": operation,
            "before": None if before is None else row(before),
            "after": None if after is None else row(after),
            "exact": exact,
        }
        for operation, before, after in changes
    ]
    return fold(pa.Table.from_pylist(rows, SCHEMA), ())


def numbers(net: NetChanges) -> tuple[dict[int, int], list[int]]:
    """How many rows go, by their value, and those that come."""
    assert net.counts is not None
    gone = {json.loads(key)["a"]: count for key, count in zip(net.keys, net.counts, strict=True)}
    return gone, sorted(json.loads(text)["a"] for text in net.rows.to_pylist())


def test_equal_rows_that_go_are_counted() -> None:
    net = folded(("delete", 1, None), ("delete", 1, None), ("delete", 2, None))
    assert numbers(net) == ({1: 2, 2: 1}, [])
    assert not net.truncated


def test_rows_that_come_and_go_cancel_each_other() -> None:
    changes = [("insert", None, 1), ("insert", None, 1), ("delete", 1, None), ("delete", 2, None)]
    assert numbers(folded(*changes)) == ({2: 1}, [1])
    assert folded(("insert", None, 1), ("delete", 1, None)).empty


def test_an_update_is_a_row_that_goes_and_one_that_comes() -> None:
    assert numbers(folded(("update", 1, 2), ("update", 2, 3))) == ({1: 1}, [3])


def test_only_insertions_are_rows_in_their_order() -> None:
    net = folded(("insert", None, 3), ("insert", None, 1), ("insert", None, 3))
    assert (net.keys, net.counts) == ([], None)
    assert net.rows.to_pylist() == [row(3), row(1), row(3)]


def test_only_what_follows_a_truncate_counts() -> None:
    net = folded(("insert", None, 1), ("truncate", None, None), ("insert", None, 2))
    assert (net.truncated, net.rows.to_pylist()) == (True, [row(2)])


def test_rows_with_other_exact_texts_are_other_rows() -> None:
    exact = json.dumps({"before": {"a": "1.50"}, "after": {"a": "1.5"}})
    net = folded(("update", 1, 1), exact=exact)
    assert numbers(net) == ({1: 1}, [1])
    assert (net.exact_keys, net.exact) == ([{"a": "1.50"}], [{"a": "1.5"}])
