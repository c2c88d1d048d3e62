"""The functions on holes, compared with sets of sequences."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.jetstream.holes import Hole, jumps, merged, within, without

HOLES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))),
    max_size=6,
)


def sequences(holes: list[Hole]) -> set[int]:
    return {seq for first, last in holes for seq in range(first, last + 1)}


@given(HOLES)
def test_merged_holes_are_the_same_sequences_in_order_with_something_between_them(
    holes: list[Hole],
) -> None:
    found = merged(holes)
    assert sequences(found) == sequences(holes)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))


@given(HOLES, HOLES)
def test_what_is_known_is_taken_out_and_nothing_else(holes: list[Hole], known: list[Hole]) -> None:
    assert sequences(without(holes, known)) == sequences(holes) - sequences(known)


@given(HOLES, st.integers(1, 40), st.integers(1, 40))
def test_a_part_of_holes_is_what_lies_between_its_bounds(
    holes: list[Hole], first: int, last: int
) -> None:
    assert sequences(within(holes, first, last)) == sequences(holes) & set(range(first, last + 1))


@given(st.sets(st.integers(1, 40)), st.integers(0, 10))
def test_jumps_are_all_that_was_not_read(read: set[int], after: int) -> None:
    behind = sorted(seq for seq in read if seq > after)
    wanted = set(range(after + 1, max(behind, default=0))) - set(behind)
    assert sequences(jumps(behind, after)) == wanted
