"""Spark's filters exclude no row that the query wants, for any rows, filters and row groups."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.archive import file_format
from headrace.archive.columns import SCHEMA, entries
from headrace.archive.entry import RowEntry
from headrace.archive.file_format import ALL, RowSelection
from headrace.archive.metadata import WalFileInfo
from headrace.lsn import ORIGIN

spark = pytest.importorskip("pyspark.sql.datasource", reason="needs headrace[spark]")
from headrace.spark.archive_filters import narrowed  # noqa: E402  # not without pyspark's filters

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TABLES = ("items", "orders", "users", None)
LSNS = st.integers(0, 40) | st.just(2**63 - 1)
TIMES = st.integers(-5, 20).map(lambda second: EPOCH + timedelta(seconds=second))
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda value, other: bool(value == other),
    "EqualNullSafe": lambda value, other: bool(value == other),
    "GreaterThan": lambda value, other: bool(value > other),
    "GreaterThanOrEqual": lambda value, other: bool(value >= other),
    "LessThan": lambda value, other: bool(value < other),
    "LessThanOrEqual": lambda value, other: bool(value <= other),
    "In": lambda value, other: value in other,
}


@st.composite
def files(draw: st.DrawFn) -> list[dict[str, object]]:
    lsns = sorted(draw(st.lists(st.integers(1, 40), min_size=1, max_size=12)))
    rows: list[dict[str, object]] = []
    for number, lsn in enumerate(lsns):
        table = draw(st.sampled_from(TABLES))
        row: dict[str, object] = {
            "commit_lsn": lsn,
            "ordinal": number,
            "lsn": lsn,
            "xid": 1,
            "commit_time": draw(st.none() | TIMES),
        }
        name: dict[str, object] = {"schema": "public", "table": table} if table else {}
        rows.append(row | name | {"operation": "insert" if table else "message", "after": "{}"})
    return rows


@st.composite
def filters(draw: st.DrawFn) -> Any:
    column, values = draw(
        st.sampled_from(
            (("commit_lsn", LSNS), ("commit_time", TIMES), ("table", st.sampled_from(TABLES[:3])))
        )
    )
    kind = draw(st.sampled_from(sorted(COMPARED)))
    value = tuple(draw(st.lists(values, min_size=1, max_size=3))) if kind == "In" else draw(values)
    return getattr(spark, kind)((column,), value)


def wants(asked: Any, entry: RowEntry) -> bool:
    value: object = getattr(entry, asked.attribute[0])
    return value is not None and COMPARED[type(asked).__name__](value, asked.value)


@settings(max_examples=150)
@given(files(), st.lists(filters(), max_size=3), st.integers(1, 5))
def test_a_row_that_every_filter_wants_is_read(
    rows: list[dict[str, object]], asked: list[Any], group: int
) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    writer = file_format.WalFileEncoder()
    for first in range(0, len(rows), group):
        writer.add(table.slice(first, group))
    data, _ = writer.finish(
        WalFileInfo(1, "a", 1, "w", "s", "d", "1", 1, 1, 2, len(rows), ORIGIN, ORIGIN)
    )
    every = [entry for batch in file_format.batches(data, ALL) for entry in entries(batch)]
    due = [entry.position for entry in every if all(wants(each, entry) for each in asked)]
    selection = narrowed(RowSelection(), [*asked, spark.Not(spark.EqualTo(("table",), "items"))])
    read = [
        entry.position for batch in file_format.batches(data, selection) for entry in entries(batch)
    ]
    assert set(due) <= set(read)
    assert read == sorted(read)


def test_a_filter_leaves_out_what_it_can() -> None:
    asked = [
        spark.GreaterThan(("commit_lsn",), 100),
        spark.LessThanOrEqual(("commit_lsn",), 200),
        spark.GreaterThanOrEqual(("commit_time",), EPOCH),
        spark.In(("table",), ("orders", "items")),
        spark.EqualTo(("operation",), "delete"),
    ]
    found = narrowed(RowSelection(tables=(("public", "orders"), ("public", "users"))), asked)
    assert found == RowSelection(
        (("public", "orders"),), after=(100, 1 << 62), before_lsn=201, from_time_us=0
    )
