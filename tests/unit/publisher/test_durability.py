"""An acknowledged LSN is held back for the whole interval, and at most one step longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.publisher.durability import Hold


def test_without_an_interval_what_is_acknowledged_is_confirmed_at_once() -> None:
    assert Hold(0).confirmable(7, 0.0) == 7


def test_an_lsn_is_confirmed_when_its_interval_is_over_and_not_before() -> None:
    hold = Hold(10)
    assert hold.confirmable(100, 0.0) == 0
    assert hold.confirmable(200, 9.9) == 0
    assert hold.confirmable(200, 10.0) == 100
    assert hold.confirmable(200, 20.0) == 200


def test_an_lsn_that_is_acknowledged_again_is_not_held_longer() -> None:
    hold = Hold(10)
    for now in (0.0, 0.1, 5.0, 9.9):
        assert hold.confirmable(100, now) == 0
    assert hold.confirmable(100, 10.0) == 100


def test_a_new_epoch_confirms_nothing_that_has_not_come_by_again() -> None:
    hold = Hold(10)
    hold.confirmable(100, 0.0)
    assert hold.confirmable(100, 10.0) == 100
    assert hold.confirmable(0, 11.0) == 0
    assert hold.confirmable(60, 12.0) == 60


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50)), max_size=200))
def test_nothing_is_confirmed_before_it_was_acknowledged_for_an_interval(
    steps: list[tuple[float, int]],
) -> None:
    hold, now, lsn = Hold(10), 0.0, 0
    acknowledged: list[tuple[float, int]] = []
    for pause, more in steps:
        now, lsn = now + pause, lsn + more
        acknowledged.append((now, lsn))
        confirmed = hold.confirmable(lsn, now)
        assert confirmed <= max((old for at, old in acknowledged if at + 10 <= now), default=0)
        # A step's worth later than the earliest that is allowed, at most; and memory is bounded.
        assert confirmed >= max(
            (old for at, old in acknowledged if at + 10 * (1 + 2 / 64) + 3 <= now), default=0
        )
        assert len(hold._steps) <= 140
