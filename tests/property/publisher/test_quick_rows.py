"""Rows read by code made for their relation are what the plain way reads, or are left to it."""

from __future__ import annotations

import struct
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.confirming.native_rows import native_rows
from headrace.confirming.relation_shape import RelationShape
from headrace.confirming.row_compiler import COLUMNS_MAX, compiled
from headrace.contract import events
from headrace.contract.values import Encoding, ValueOptions, converter
from headrace.errors import DecodeError
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import Insert, Relation, RelationColumn
from headrace.postgres.facts import TableFacts

RELATION = 16_385
WRITE = events.writer(Encoding.MSGPACK)
# bool, int8, text, numeric, timestamptz, jsonb, bytea, float8
TYPES = (16, 20, 25, 1700, 1184, 3802, 17, 701)
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name) | st.sampled_from(
    ["'", '"', "{x}", "\\"]
)
COLUMNS = st.lists(
    st.tuples(NAMES, st.sampled_from(TYPES)), min_size=1, max_size=6, unique_by=lambda one: one[0]
)
VALUES = st.one_of(
    st.none(),
    st.just("unchanged"),
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"t",
            b"42",
            b"-1.50",
            b"2026-01-01 00:00:00+00",
            b'{"a": 1}',
            b"\\x00ff",
            b"\xff",
            b"NaN",
            b"\xc3\xa9",
            b"null",
            b"[1.50]",
        ]
    ),
)


def message(values: list[bytes | str | None]) -> bytes:
    parts = [b"I", struct.pack(">IcH", RELATION, b"N", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, str):
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(parts)


def shape_of(columns: list[tuple[str, int]], hidden: frozenset[str] = frozenset()) -> RelationShape:
    relation = Relation(
        RELATION,
        "public",
        "t",
        "d",
        tuple(RelationColumn(False, name, oid, -1) for name, oid in columns),
    )
    shape = RelationShape.of(relation, TableFacts(), ValueOptions(Encoding.MSGPACK))
    return without(shape, hidden)


def without(shape: RelationShape, hidden: frozenset[str]) -> RelationShape:
    columns = ((name, None if name in hidden else convert) for name, convert in shape.columns)
    return replace(shape, columns=tuple(columns))


def plain(shape: RelationShape, data: bytes) -> tuple[bytes, bytes] | None:
    try:
        decoded = decode(data)
        assert isinstance(decoded, Insert)
        values = shape.row(decoded.new)
        assert not values.unchanged
        return None if values.exact else (WRITE(values.native), b"end")
    except (DecodeError, ValueError):
        return None


def agree(shape: RelationShape, data: bytes) -> None:
    for read in (
        compiled(shape.columns, WRITE, end=b"end"),
        native_rows(shape.columns, Encoding.MSGPACK, end=b"end"),
    ):
        # There is no accelerator, or it is off.
        if read is None:
            continue
        quick = read(data)
        assert quick is None or quick == plain(shape, data)


@given(COLUMNS, st.data())
def test_a_quick_row_is_the_plain_row(columns: list[tuple[str, int]], data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES, min_size=len(columns), max_size=len(columns)))
    hidden = data.draw(st.frozensets(st.sampled_from([name for name, _ in columns]), max_size=2))
    agree(shape_of(columns, hidden), message(values))


@given(st.binary(max_size=60), st.integers(0, 60))
@example(b"", 0)
def test_arbitrary_bytes_are_never_a_row_that_the_plain_way_refuses(tail: bytes, cut: int) -> None:
    shape = shape_of([("a", 25), ("b", 20)])
    whole = message([b"text", b"42"])
    agree(shape, whole[:cut] + tail)


def test_a_usual_row_is_read_the_quick_way() -> None:
    read = compiled(shape_of([("id", 20), ("name", 25), ("note", 25)]).columns, WRITE)
    assert read is not None
    assert read(message([b"7", "né".encode(), None])) == (
        WRITE({"id": 7, "name": "né", "note": None}),
        b"",
    )


def test_very_wide_tables_are_read_the_plain_way() -> None:
    convert = converter(25, ValueOptions(), lambda _: None)
    assert compiled([(f"c{index}", convert) for index in range(COLUMNS_MAX + 1)], WRITE) is None
