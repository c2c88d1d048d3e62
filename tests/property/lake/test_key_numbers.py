"""The rows that have one of some keys are found, and no others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.lake.locate import Needles

PARTS = st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", "c", None]))


@given(st.lists(PARTS, min_size=1, unique=True), st.lists(PARTS), st.integers(1, 2))
def test_a_row_has_the_number_of_its_key_and_others_have_none(
    keys: list[tuple[int, str | None]], rows: list[tuple[int, str | None]], width: int
) -> None:
    some = sorted({key[:width] for key in keys if None not in key[:width]}, key=repr)
    types = (pa.int64(), pa.string())[:width]

    def columns(values: list[tuple[int | str | None, ...]]) -> list[pa.Array[Any]]:
        return [pa.array([row[n] for row in values], kind) for n, kind in enumerate(types)]

    needles = Needles(pa.table(columns(list(some)), names=["x", "y"][:width]))
    numbers = dict(zip(some, needles.codes.tolist(), strict=True))
    assert len({*numbers.values()}) == len(some)
    every = [row[:width] for row in (*keys, *rows)]
    assert needles.codes_of(columns(list(every))).tolist() == [
        numbers.get(row, -1) for row in every
    ]
