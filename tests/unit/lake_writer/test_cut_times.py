"""Cuts keep the interval, and only a cut makes the next change wait."""

from __future__ import annotations

import pytest

from headrace.lake_writer.cut_times import BACKLOG_CUTS, BACKLOG_S_MAX, CutTimes

START = 1000.0
INTERVAL = 2.0


@pytest.fixture
def times() -> CutTimes:
    """Of a lake-writer that has just made its first cut, within a tenth of a second."""
    times = CutTimes(INTERVAL)
    assert times.due(START, changed=True, behind=False), "the first cut waits for nothing"
    times.applied(START)
    assert times.cut(START, START + 0.1) == pytest.approx(0.1)
    return times


def test_a_change_right_after_a_cut_waits_for_the_interval(times: CutTimes) -> None:
    assert not times.due(START + 2.0, changed=True, behind=False)
    assert times.due(START + 2.2, changed=True, behind=False)


def test_a_change_does_not_wait_because_the_last_cut_just_got_a_later_lsn(times: CutTimes) -> None:
    times.advanced(START + 10)
    assert times.due(START + 10.1, changed=True, behind=False)


def test_a_later_lsn_waits_for_the_interval_after_a_cut_and_after_the_last_one(
    times: CutTimes,
) -> None:
    assert not times.due(START + 2.0, changed=False, behind=False)
    assert times.due(START + 2.2, changed=False, behind=False)
    times.advanced(START + 2.2)
    assert not times.due(START + 4.1, changed=False, behind=False)
    assert times.due(START + 4.3, changed=False, behind=False)


def test_a_bursts_first_part_waits_for_the_rest(times: CutTimes) -> None:
    assert not times.due(START + 60, changed=True, behind=True)
    times.applied(START + 60)
    times.applied(START + 61)
    assert not times.due(START + 61.9, changed=True, behind=True)
    assert times.due(START + 62, changed=True, behind=True), "the first file has waited enough"
    assert times.due(START + 60, changed=True, behind=False), "or the burst is over"


def test_after_a_cut_or_a_later_lsn_a_backlog_is_counted_from_the_next_file(
    times: CutTimes,
) -> None:
    for act in (times.advanced, lambda now: times.cut(now, now)):
        times.applied(START + 10)
        act(START + 11)
        times.applied(START + 12)
        assert not times.due(START + 13, changed=True, behind=True)
        assert times.due(START + 14, changed=True, behind=True)


def test_a_backlogs_cuts_take_a_fifth_of_the_time(times: CutTimes) -> None:
    times.cut(START + 20, START + 22)
    times.applied(START + 22)
    assert not times.due(START + 22 + BACKLOG_CUTS * 2 - 0.1, changed=True, behind=True)
    assert times.due(START + 22 + BACKLOG_CUTS * 2, changed=True, behind=True)


def test_a_backlogs_cut_comes_at_least_every_half_a_minute(times: CutTimes) -> None:
    times.cut(START + 20, START + 60)
    times.applied(START + 60)
    assert not times.due(START + 59.9 + BACKLOG_S_MAX, changed=True, behind=True)
    assert times.due(START + 60 + BACKLOG_S_MAX, changed=True, behind=True)
