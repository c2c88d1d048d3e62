"""The comparison of two tables: digests, differing ranges, and what is wrong with rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from headrace.verify import comparison
from headrace.verify.comparison import HashedHere, compared
from headrace.verify.digest import (
    RANGES,
    Difference,
    Digests,
    RowFault,
    differing,
    key_of,
    range_of,
)
from headrace.verify.types import SqlType, _type

Row = tuple[Any, ...]
NAMES = ["id", "name"]


def side(rows: Sequence[Row], *forms: Any, together: int = 3) -> HashedHere:
    async def read() -> AsyncIterator[list[Row]]:
        for at in range(0, len(rows), together):
            yield list(rows[at : at + together])

    return HashedHere(read, forms or [None] * len(NAMES))


def result(
    source: HashedHere, mirror: HashedHere, key: Sequence[str] = ("id",)
) -> comparison.Comparison:
    return asyncio.run(compared(source, mirror, NAMES, key))


ROWS = [(number, f"row {number}") for number in range(500)]


def test_equal_tables_in_any_order_are_equal() -> None:
    found = result(side(ROWS), side(ROWS[::-1], together=7))
    assert found == comparison.Comparison(500)


def test_each_kind_of_fault_is_named_by_the_key() -> None:
    mirror = [*ROWS[1:5], (5, "changed"), *ROWS[6:], (900, "extra"), ROWS[7]]
    found = result(side(ROWS), side(mirror))
    assert found.rows == 500
    assert found.ranges == 4
    assert Counter(found.found) == Counter(
        [
            Difference(RowFault.MISSING, (0,)),
            Difference(RowFault.CHANGED, (5,), ("name",)),
            Difference(RowFault.EXTRA, (900,)),
            Difference(RowFault.EXTRA, (7,)),
        ]
    )
    # A repair writes these.
    assert Counter(found.missing) == Counter([ROWS[0], ROWS[5]])
    assert Counter(found.extra) == Counter([(5, "changed"), (900, "extra"), ROWS[7]])


def test_without_a_key_whole_rows_are_named() -> None:
    found = result(side([(1, "a"), (1, "a")]), side([(1, "a"), (2, "b")]), key=())
    assert Counter(found.found) == Counter(
        [Difference(RowFault.MISSING, (1, "a")), Difference(RowFault.EXTRA, (2, "b"))]
    )


def test_a_key_may_be_any_columns() -> None:
    found = result(side([(1, "a"), (2, "b")]), side([(3, "a"), (2, "b")]), key=("name",))
    assert found.found == (Difference(RowFault.CHANGED, ("a",), ("id",)),)


def test_rows_are_compared_in_their_forms_and_null_has_none() -> None:
    source = side([("1", "A"), ("2", None)], int, str.lower)
    assert result(source, side([(1, "a"), (2, None)])).ranges == 0
    assert result(source, side([(1, "a"), (2, "none")])).ranges == 1


def test_no_more_ranges_are_compared_than_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "ROWS_COMPARED_MAX", 10)
    apart = list({range_of(row[:1]): row for row in ROWS}.values())
    found = result(side(apart), side([]))
    assert found.ranges == len(apart)
    assert len(found.found) == 10
    # One range is compared however large it is.
    many = [(1, "x")] * 50
    assert len(result(side(many), side([])).found) == 50


def test_an_error_of_one_side_ends_the_comparison_and_the_other_side() -> None:
    ended = []

    class Slow:
        async def digests(self, _: Sequence[int]) -> Digests:
            try:
                await asyncio.sleep(30)
            finally:
                ended.append("slow")
            return Digests()

        async def within(self, *_: Any) -> list[Row]:
            return []

    class Broken(Slow):
        async def digests(self, _: Sequence[int]) -> Digests:
            raise OSError("broken")

    async def work() -> None:
        with pytest.raises(OSError, match="broken"):
            await compared(Slow(), Broken(), NAMES, ())
        assert ended == ["slow"], "its connection may be closed now"

    asyncio.run(work())


# Digests.


def test_sums_of_a_server_add_up_like_its_rows() -> None:
    """Halves of 64 bits, which PostgreSQL has as signed numbers."""
    whole = Digests()
    parts = Digests()
    for value in (2**127 + 5, 2**64 - 1, 3):
        whole.add_sums(4, 1, value & (2**64 - 1), value >> 64)
    low = sum(value & (2**64 - 1) for value in (2**127 + 5, 2**64 - 1, 3))
    high = sum(value >> 64 for value in (2**127 + 5, 2**64 - 1, 3))
    parts.add_sums(4, 3, low - 2**64, high + 1)
    assert differing(whole, parts) == frozenset()
    assert whole.rows == parts.rows == 3
    assert whole.sums[4] == (2**127 + 5 + 2**64 - 1 + 3) % 2**128
    parts.add_sums(5, 1, 0, 0)
    assert differing(whole, parts) == {5}, "a row whose hash is zero counts"


def test_rows_fall_into_ranges_by_their_key_alone() -> None:
    digests = Digests([0])
    digests.add([(1, "a"), (1, "b")])
    assert digests.counts[range_of((1,))] == 2
    assert 0 <= range_of((1,)) < RANGES
    assert len({range_of((number,)) for number in range(1000)}) > 300
    assert key_of((1, "a", None), [2, 0]) == (None, 1)
    assert key_of((1, "a"), []) == (1, "a")


def test_values_of_different_types_have_different_hashes() -> None:
    values: list[Any] = [1, "1", b"1", None, "None", 1.5, "1.5"]
    digests = [Digests([0]) for _ in values]
    for digest, value in zip(digests, values, strict=True):
        digest.add([(value,)])
    assert len({tuple(digest.sums) for digest in digests}) == len(values)


# Types.


def test_domains_and_arrays_are_resolved() -> None:
    known = {
        1: ("integer", 0, 0, ","),
        2: ("box", 0, 0, ";"),
        3: ("box[]", 0, 2, ","),
        4: ("boxes", 3, 0, ","),
        5: ("outer", 4, 0, ","),
    }
    box = SqlType("box", None, ";")
    assert _type(known, 1) == SqlType("integer")
    assert _type(known, 3) == SqlType("box[]", box, ";")
    assert _type(known, 5) == SqlType("box[]", box, ";")
