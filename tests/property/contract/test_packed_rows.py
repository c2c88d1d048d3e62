"""Rows that are packed by column are equal to those of the plain converter, and the bytes of a row
depend only on the row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.contract import type_oids
from headrace.contract.values import Converter, ValueOptions, converter, text
from headrace.snapshot_responder.chunks import Block
from headrace.snapshot_responder.packed_rows import PackedRows
from headrace.spark.csv_rows import CsvRows

TEXT = 25
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
powers = [1 << power for power in (5, 7, 8, 15, 16, 31, 32, 62)]
edges = [sign * power + step for power in powers for sign in (-1, 1) for step in (-1, 0, 1)]
integers = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from(edges)
floats = st.floats().map(lambda value: repr(value).replace("inf", "Infinity").replace("nan", "NaN"))
texts = st.text(characters, max_size=40) | st.sampled_from([31, 32, 255, 256, 65535, 65536]).map(
    lambda size: "ä" * size
)
stamps = st.datetimes().map(str) | st.sampled_from(
    ["infinity", "-infinity", "0044-03-15 00:00:00 BC"]
)
TYPES: dict[int, st.SearchStrategy[str]] = {
    type_oids.INT8: integers.map(str),
    type_oids.FLOAT8: floats,
    type_oids.BOOL: st.sampled_from(["t", "f"]),
    TEXT: texts,
    type_oids.TIMESTAMP: stamps,
    type_oids.TIMESTAMPTZ: stamps.map(lambda stamp: stamp if stamp[-1] in "yC" else f"{stamp}+00"),
    type_oids.BYTEA: st.binary(max_size=9).map(lambda value: f"\\x{value.hex()}"),
    type_oids.JSONB: st.sampled_from(
        ["null", "[]", '{"a": [1, 1e400, "x,\\"y"]}', '{"k": 12, "tag": "v1"}']
    )
    | st.sampled_from(
        [
            "[" * 501 + "]" * 501,
            '{"a": 1, "a": 2}',
            '"\\ud800"',
            "123456789012345678901234",
            "-1.50",
        ]
    )
    | st.recursive(
        st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts, st.lists
    ).map(json.dumps),
}
Cells = list[str | None]


def csv_line(cells: Cells) -> bytes:
    """As COPY prints it."""
    return (",".join(_quoted(cell) for cell in cells) + "\n").encode()


def _quoted(cell: str | None) -> str:
    if cell is None:
        return ""
    if not cell or any(mark in cell for mark in ',"\r\n') or cell == "\\.":
        return '"' + cell.replace('"', '""') + '"'
    return cell


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[Cells]]:
    oids = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=5))
    rows = draw(
        st.lists(
            st.tuples(*(st.none() | TYPES[oid] for oid in oids)).map(list), min_size=1, max_size=12
        )
    )
    return oids, rows


def elements(block: Block) -> list[bytes]:
    edges = zip(block.offsets[:-1], block.offsets[1:], strict=True)
    return [bytes(block.data[first:end]) for first, end in edges]


def packings(oids: Sequence[int]) -> tuple[CsvRows, PackedRows]:
    names = [f"column {place}" for place in range(len(oids))]
    converters: list[Converter] = [converter(oid, ValueOptions(), lambda _: None) for oid in oids]
    return CsvRows(names, converters), PackedRows(names, converters)


@given(tables())
@example(([type_oids.INT8], [[str(edge)] for edge in edges]))
@example(([TEXT], [["x" * 65536], ["x"], [None]]))
@example(([type_oids.TIMESTAMPTZ], [["infinity"], ["2025-12-12 12:00:34+00"], [None]]))
@example(
    (
        [type_oids.JSONB],
        [[json.dumps({"k": place, "tag": str(place % 10)})] for place in range(1030)],
    )
)
@example(([type_oids.BOOL, type_oids.BOOL], [[None, None]]))
def test_packed_rows_are_the_plain_ones_however_they_arrive(
    table: tuple[list[int], list[Cells]],
) -> None:
    oids, rows = table
    lines = [csv_line(cells) for cells in rows]
    plain, packed = packings(oids)
    block = packed.block(b"".join(lines))
    together, exact = elements(block), dict(block.exact)
    assert repr([msgpack.unpackb(element) for element in together]) == repr(
        plain.rows(b"".join(lines))[0]
    )
    assert exact == plain.rows(b"".join(lines))[1]
    alone = [packed.block(line) for line in lines]
    assert together == [element for one in alone for element in elements(one)]
    assert exact == {place: one.exact[0] for place, one in enumerate(alone) if one.exact}


def test_a_table_of_many_columns_and_a_long_name_is_packed_too() -> None:
    names = [f"c{place:04}" + "ü" * 28 for place in range(1600)]
    rows = b",".join(b"%d" % place for place in range(1600)) + b"\n" + b"," * 1599 + b"\n"
    made = PackedRows(names, [text] * 1600).block(rows)
    assert [msgpack.unpackb(element) for element in elements(made)] == [
        {name: str(place) for place, name in enumerate(names)},
        dict.fromkeys(names),
    ]
