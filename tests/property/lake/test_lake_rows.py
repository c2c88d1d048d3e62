"""A row of a snapshot is equal to the same row of a change, and neither loses anything, whichever
way its batch is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.archive.metadata import ColumnInfo
from headrace.archiver.archived_table import OPTIONS, ArchivedTable, exact, text
from headrace.confirming.relation_shape import RelationShape
from headrace.contract.values import TypeInfo, TypeKind
from headrace.lake.column_types import ITEM_EXACT
from headrace.lake.copy_rows import CopyRows
from headrace.lake.rows import JsonRows, _typed
from headrace.pgoutput.messages import Relation, RelationColumn
from headrace.postgres.facts import TableFacts

# PostgreSQL's text of a value, and the value of the lake's column; None if the text is in
# `_headrace_exact` instead.
Pair = tuple[str, Any]
NUMERIC_6_2 = (6 << 16 | 2) + 4
TYPES = {
    20001: TypeInfo(TypeKind.DOMAIN, base_oid=23),
    20002: TypeInfo(TypeKind.DOMAIN, base_oid=701),
    20003: TypeInfo(TypeKind.DOMAIN, base_oid=16),
    20004: TypeInfo(TypeKind.DOMAIN, base_oid=3802),
    20005: TypeInfo(TypeKind.DOMAIN, base_oid=17),
    20006: TypeInfo(TypeKind.DOMAIN, base_oid=1184),
    20007: TypeInfo(TypeKind.ENUM),
    20008: TypeInfo(TypeKind.ARRAY, element_oid=20007),
}

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(characters, max_size=12) | st.sampled_from(
    ["null", "NULL", "", "{}", "[", '"', "\\", "\\.", "a,b", "\n", "\r\n", " x ", "é\u2028😀"]
)


def same(values: st.SearchStrategy[str]) -> st.SearchStrategy[Pair]:
    return values.map(lambda value: (value, value))


def unfit(*values: str) -> st.SearchStrategy[Pair]:
    return st.sampled_from(values).map(lambda value: (value, None))


def stamp(moment: datetime) -> str:
    """As PostgreSQL prints it, without zeros at the end of a fraction."""
    printed = moment.replace(tzinfo=None).isoformat(" ")
    return printed.rstrip("0") if moment.microsecond else printed


def money(value: int) -> Pair:
    amount = Decimal(value).scaleb(-2)
    sign = "-" if value < 0 else ""
    return f"{sign}${abs(amount):,.2f}", amount


def floating(value: float) -> str:
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


def literal(elements: list[str | None]) -> str:
    quoted = [
        "NULL" if one is None else '"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for one in elements
    ]
    return "{" + ",".join(quoted) + "}"


def lists(pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    """One dimension, or a value that no list is."""
    one = st.lists(st.none() | pairs, max_size=4).map(
        lambda found: (
            literal([None if pair is None else pair[0] for pair in found]),
            None
            if any(pair is not None and pair[1] is None for pair in found)
            else [None if pair is None else pair[1] for pair in found],
        )
    )
    return one | pairs.map(lambda pair: ("[0:0]=" + literal([pair[0]]), None))


integers = st.integers(-(2**31), 2**31 - 1).map(lambda value: (str(value), value))
longs = st.integers(-(2**63), 2**63 - 1).map(lambda value: (str(value), value))
moments = st.datetimes()
zoned = moments.map(lambda at: (stamp(at) + "+00", at.replace(tzinfo=UTC))) | unfit(
    "infinity", "-infinity", "10000-01-01 00:00:00+00", "0044-03-15 12:00:00.5+00 BC"
)
cents = st.integers(-999999, 999999).map(lambda value: Decimal(value).scaleb(-2))
amounts = cents.map(lambda value: (f"{value:.2f}", value)) | unfit("NaN", "Infinity", "1.555")
blobs = st.binary(max_size=9).map(lambda value: ("\\x" + value.hex(), value))
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
).map(json.dumps) | st.sampled_from(
    ["null", "  null ", "[ 1 ,\n 2.50 ]", '{"k": 1, "k": 2}', "1e400", '"\\ud800"', "[" * 501 + "]" * 501]
)  # fmt: skip
# fmt: off
COLUMNS: dict[tuple[int, int], st.SearchStrategy[Pair]] = {
    (16, -1): st.booleans().map(lambda value: ("ft"[value], value)),
    (17, -1): blobs,
    (20, -1): longs,
    (23, -1): integers,
    (25, -1): same(texts),
    (114, -1): same(documents),
    (3802, -1): same(documents),
    (700, -1): st.floats(width=32).map(lambda value: (floating(value), value)),
    (701, -1): st.floats().map(lambda value: (floating(value), value)),
    (790, -1): st.integers(-(2**63), 2**63 - 1).map(money),
    (1082, -1): st.dates().map(lambda day: (str(day), day))
    | unfit("infinity", "0044-03-15 BC", "5874897-12-31"),
    (1114, -1): moments.map(lambda at: (stamp(at), at)) | unfit("-infinity", "10000-01-01 00:00:00"),
    (1184, -1): zoned,
    (1266, -1): st.sampled_from([("12:00:34.5+02", "12:00:34.5+02:00"), ("24:00:00-05:30",) * 2]),
    (1700, -1): same(st.sampled_from(["1.10", "NaN", "0.0000000000000000000000000000000000000001"])),
    (1700, NUMERIC_6_2): amounts,
    (2950, -1): same(st.uuids().map(str)),
    (1007, -1): lists(integers) | unfit("{{1,2},{3,NULL}}"),
    (1009, -1): lists(same(texts)) | unfit('{{"a"}}'),
    (1001, -1): lists(blobs),
    (1185, -1): lists(zoned),
    (1231, NUMERIC_6_2): lists(amounts),
    (20001, -1): integers.map(lambda pair: (pair[0],) * 2),
    (20002, -1): st.sampled_from([("0.1", "0.1"), ("1e+300", "1e+300"), ("NaN", "NaN"), ("5", "5.0")]),
    (20003, -1): st.sampled_from([("t", "true"), ("f", "false")]),
    (20004, -1): st.sampled_from([('{"a": 1.50}',) * 2, ("null",) * 2, (' "x" ', "x"), (" 5 ",) * 2]),
    (20005, -1): st.just(("\\x00ff", "AP8=")),
    (20006, -1): st.sampled_from([("2020-01-01 00:00:00+00", "2020-01-01T00:00:00Z"), ("infinity",) * 2]),
    (20007, -1): same(texts),
    (20008, -1): same(st.sampled_from(["{a,b}", "{{a},{b}}"])),
}
# fmt: on


@dataclass(frozen=True)
class Generated:
    """Columns, and rows of pairs, or None for NULL."""

    columns: list[ColumnInfo]
    rows: list[list[Pair | None]]

    @property
    def archived(self) -> tuple[list[str], list[dict[str, str] | None]]:
        """The rows as the archive has them."""
        relation = Relation(
            7,
            "public",
            "t",
            "d",
            tuple(
                RelationColumn(False, column.name, column.type_oid, column.type_modifier)
                for column in self.columns
            ),
        )
        shape = RelationShape.of(relation, TableFacts(types=TYPES), OPTIONS)
        table = ArchivedTable.of(shape)
        values = [
            table.shape.row(tuple(None if pair is None else pair[0].encode() for pair in row))
            for row in self.rows
        ]
        exacts = [json.loads(exact(value, None) or b"{}").get("after") for value in values]
        return [(text(value) or b"{}").decode() for value in values], exacts

    @property
    def csv(self) -> bytes:
        """The rows as COPY prints them."""
        return "".join(
            ",".join("" if pair is None else quoted(pair[0]) for pair in row) + "\n"
            for row in self.rows
        ).encode()

    @property
    def due(self) -> list[dict[str, Any]]:
        """The rows as the lake has to have them."""
        return [self._due(row) for row in self.rows]

    def _due(self, row: list[Pair | None]) -> dict[str, Any]:
        named = {column.name: pair for column, pair in zip(self.columns, row, strict=True)}
        lost = [(name, pair[0]) for name, pair in named.items() if pair and pair[1] is None]
        found = {name: None if pair is None else pair[1] for name, pair in named.items()}
        return {**found, ITEM_EXACT: lost or None}


def quoted(value: str) -> str:
    if not value or value == "\\." or any(mark in value for mark in ',"\r\n'):
        return '"' + value.replace('"', '""') + '"'
    return value


@st.composite
def tables(draw: st.DrawFn) -> Generated:
    names = draw(st.lists(texts.filter(bool), min_size=1, max_size=5, unique=True))
    kinds = [draw(st.sampled_from(list(COLUMNS))) for _ in names]
    columns = [
        ColumnInfo(name, oid, modifier, "?", False)
        for name, (oid, modifier) in zip(names, kinds, strict=True)
    ]
    rows = draw(
        st.lists(
            st.tuples(*(st.none() | COLUMNS[kind] for kind in kinds)).map(list),
            min_size=1,
            max_size=8,
        )
    )
    return Generated(columns, rows)


def one_column(oid: int, *pairs: Pair | None, modifier: int = -1) -> Generated:
    return Generated([ColumnInfo("c", oid, modifier, "?", False)], [[pair] for pair in pairs])


def by_archive(generated: Generated) -> pa.Table:
    rows, exacts = generated.archived
    return JsonRows(generated.columns).read(pa.array(rows), exacts)


def by_copy(generated: Generated) -> pa.Table:
    return CopyRows(generated.columns, TYPES).read(generated.csv)


def listed(table: pa.Table) -> list[str]:
    table.validate(full=True)
    return shown(table.to_pylist())


def shown(rows: list[dict[str, Any]]) -> list[str]:
    """In a form that can be compared: repr tells -0.0 from 0, and knows one NaN."""
    return [repr({name: _same_zone(value) for name, value in row.items()}) for row in rows]


def _same_zone(value: Any) -> Any:
    """Libraries have different objects for UTC."""
    if isinstance(value, list):
        return [_same_zone(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value


examples: list[Callable[..., Any]] = [
    example(one_column(1184, ("infinity", None), None, ("2025-12-12 12:00:34+00", datetime(2025, 12, 12, 12, 0, 34, tzinfo=UTC)))),
    example(one_column(701, ("NaN", math.nan), None, ("-0", -0.0))),
    example(one_column(20004, ("null", "null"), None)),
    example(one_column(25, ("", ""), None, ("null", "null"))),
]  # fmt: skip


def with_examples(test: Callable[..., None]) -> Callable[..., None]:
    for one in examples:
        test = one(test)
    return test


@with_examples
@given(tables())
def test_a_row_of_the_archive_is_in_its_columns_or_exact(generated: Generated) -> None:
    assert listed(by_archive(generated)) == shown(generated.due)


@with_examples
@given(tables())
def test_a_row_of_copy_is_in_its_columns_or_exact(generated: Generated) -> None:
    assert listed(by_copy(generated)) == shown(generated.due)


@given(tables())
def test_both_ways_have_one_schema(generated: Generated) -> None:
    assert by_archive(generated).schema == by_copy(generated).schema


@given(tables(), st.data())
def test_rows_that_are_read_together_are_those_read_alone(
    generated: Generated, data: st.DataObject
) -> None:
    rows, exacts = generated.archived
    reader = JsonRows(generated.columns)
    cut = data.draw(st.integers(0, len(rows)))
    parts = [
        reader.read(pa.array(rows[piece], pa.string()), exacts[piece])
        for piece in (slice(cut), slice(cut, None))
    ]
    assert listed(pa.concat_tables(parts)) == listed(reader.read(pa.array(rows), exacts))


@given(tables())
def test_every_way_of_reading_json_has_the_same_result(generated: Generated) -> None:
    rows = pa.array(generated.archived[0])
    reader = JsonRows(generated.columns)
    *quicker, last = reader._ways
    due = shown_columns(reader, last.read(rows))
    for way in quicker:
        columns = way.read(rows)
        assert columns is None or shown_columns(reader, columns) == due


def shown_columns(reader: JsonRows, columns: dict[str, Any] | None) -> list[tuple[str, Any]]:
    assert columns is not None
    typed = [
        _typed(columns[name], read)
        for name, read in zip(reader._names, reader._readers, strict=True)
    ]
    return [(repr(values.to_pylist()), misfits) for values, misfits in typed]


@pytest.mark.parametrize(
    ("oid", "pair", "way"),
    [
        (20, ("1", 1), 0),
        (25, ("x", "x"), 0),
        (1700, ("NaN", "NaN"), 0),
        (1184, ("infinity", None), 0),
        (114, ("[1]", "[1]"), 0),
        (20007, ("x", "x"), 0),
        (701, ("NaN", math.nan), 1),
        (20001, ("1", "1"), 1),
    ],
)
def test_rows_are_read_in_the_quickest_way_that_can(oid: int, pair: Pair, way: int) -> None:
    generated = one_column(oid, pair)
    ways = JsonRows(generated.columns)._ways
    rows = pa.array(generated.archived[0])
    assert [found.read(rows) is not None for found in ways].index(True) == way
