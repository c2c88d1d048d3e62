"""Telemetry's calculations: rates, projections, a consumer's remaining retention, histograms,
bounded series.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.jetstream.publishing.message import Outgoing
from headrace.metrics.counters import OTHER, SERIES_MAX, Counters, Stats, one_of, quantile
from headrace.metrics.exposition import exposition
from headrace.process.tracing import Traces
from headrace.publisher.lag import AckLag, Frame
from headrace.publisher.tally import tally
from headrace.settings import WatchSettings
from headrace.telemetry.retention import Standing, StreamView, WritingPace, judge
from headrace.telemetry.slot_watch import alarm
from headrace.telemetry.suite import SlotView
from headrace.telemetry.trend import WINDOW_S, Trend, seconds_left

STREAM = StreamView("CDC", 1000, 100_000, 501, 1500, 1, 200_000, 0, 3600.0, True)
BEHIND = Standing("app", pending=900, unacknowledged=10, floor_seq=590, subject=">")
SLOT = SlotView(True, "reserved", 0, 0, 0, None)


def test_a_pace_is_told_only_after_some_seconds_and_forgets_what_is_old() -> None:
    trend = Trend()
    trend.add(0, 0)
    trend.add(1, 1000)
    assert trend.per_second == 0
    trend.add(10, 1000)
    assert trend.per_second == 100
    trend.add(WINDOW_S + 5, 1000)
    assert trend.per_second == 0


def test_what_does_not_shrink_is_never_used_up() -> None:
    assert seconds_left(100, 10) == 10
    assert seconds_left(100, 0) is None
    assert seconds_left(100, -1) is None


def test_a_change_of_the_average_message_is_no_writing() -> None:
    """Of ten billion messages ever written, one byte more in the average is no 10 GB."""
    pace = WritingPace()
    old = replace(STREAM, last_seq=10**10)
    for second in range(60):
        pace.add(second, replace(old, bytes=STREAM.bytes + second * STREAM.messages))
    assert pace.bytes_per_s == 0
    # 10 messages a second, of the average size at that time.
    for second in range(60, 120):
        pace.add(second, replace(old, last_seq=old.last_seq + 10 * (second - 59)))
    assert pace.bytes_per_s == pytest.approx(600 * 100 / 119)


def test_a_stream_that_was_created_again_is_written_from_its_beginning() -> None:
    pace = WritingPace()
    for second in range(20):
        pace.add(second, replace(STREAM, last_seq=10**9 + second))
    for second in range(20, 40):
        pace.add(second, replace(STREAM, last_seq=second))
    assert pace.bytes_per_s == pytest.approx(100)


def test_a_consumer_has_left_what_the_tightest_bound_leaves_it() -> None:
    view = judge(STREAM, BEHIND, oldest_age_s=900, bytes_per_s=1000)
    # 100 kB of room, and 90 messages of 100 bytes in front of its next one.
    assert view.left_bytes == 109_000
    assert view.left_s == 109
    assert view.left_ratio == 0.545
    assert view.lost == 0
    by_age = judge(STREAM, BEHIND, oldest_age_s=3500, bytes_per_s=1)
    assert (by_age.left_s, by_age.left_ratio) == (100, 0.0278)
    by_number = judge(replace(STREAM, messages_max=1000, bytes_max=0), BEHIND, 0, 0)
    assert by_number.left_ratio == 0.09


def test_a_consumer_that_has_everything_loses_nothing_whatever_its_place() -> None:
    idle = Standing("app", pending=0, unacknowledged=0, floor_seq=10, subject="cdc.users.>")
    view = judge(STREAM, idle, 0, 1000)
    assert (view.left_ratio, view.left_s, view.lag_s, view.lost) == (1.0, None, 0.0, 0)


def test_what_was_discarded_before_a_consumer_had_it_is_counted() -> None:
    assert judge(STREAM, replace(BEHIND, floor_seq=400), 0, 0).lost == 100


def test_a_stream_that_refuses_new_messages_takes_none_from_a_consumer_by_size() -> None:
    view = judge(replace(STREAM, discards_old=False), BEHIND, oldest_age_s=1800, bytes_per_s=1000)
    assert (view.left_bytes, view.left_ratio, view.left_s) == (None, 0.5, 1800)


@pytest.mark.parametrize(
    ("slot", "level"),
    [
        (SLOT, "ok"),
        (replace(SLOT, lag_bytes=512 << 20), "warning"),
        (replace(SLOT, loss_s=100.0), "warning"),
        (replace(SLOT, lag_bytes=1 << 30), "critical"),
        (replace(SLOT, wal_status="lost"), "lost"),
    ],
)
def test_the_verdict_on_a_slot_follows_its_lag_its_projection_and_its_state(
    slot: SlotView, level: str
) -> None:
    assert alarm(slot, WatchSettings()) == level


def test_series_are_bounded_and_the_rest_is_added_up_in_one() -> None:
    stats = Counters()
    for number in range(SERIES_MAX + 50):
        stats.count_in("table_events", f"t{number} insert")
    held = stats.values()["table_events"]
    assert isinstance(held, dict)
    assert len(held) == SERIES_MAX + 1
    assert held[f"{OTHER} insert"] == 50
    stats.count_in("table_events", "t0 insert")
    assert held["t0 insert"] == 2


def test_a_histogram_is_exposed_with_cumulative_buckets_and_its_sum() -> None:
    stats = Counters()
    for seconds in (0.0005, 0.004, 0.004, 1e6):
        stats.observe("ack_lag_seconds", seconds)
    text = exposition({"publisher": stats.values()}, "headrace").decode()
    labels = 'service="publisher",source="headrace"'
    assert f'headrace_ack_lag_seconds_bucket{{le="0.001",{labels}}} 1.0' in text
    assert f'headrace_ack_lag_seconds_bucket{{le="0.005",{labels}}} 3.0' in text
    assert f'headrace_ack_lag_seconds_bucket{{le="+Inf",{labels}}} 4.0' in text
    assert f"headrace_ack_lag_seconds_sum{{{labels}}} 1.0000000085e+06" in text
    assert (
        0.0025 < (quantile("ack_lag_seconds", stats.values()["ack_lag_seconds"], 0.5) or 0) < 0.005
    )


def test_labels_are_escaped_and_states_have_a_series_each() -> None:
    stats: Stats = {
        "wal_alarm": one_of(("ok", "lost"), "lost"),
        "consumer_left_ratio": {'CDC a"b': 0.5},
    }
    text = exposition({"telemetry": stats}, "s").decode()
    assert 'headrace_wal_alarm{level="lost",service="telemetry",source="s"} 1.0' in text
    assert 'headrace_wal_alarm{level="ok",service="telemetry",source="s"} 0.0' in text
    assert 'consumer="a\\"b",service="telemetry",source="s",stream="CDC"} 0.5' in text


def test_a_batch_counts_its_events_and_not_its_messages() -> None:
    stats = Counters()
    tally(
        stats,
        [
            Outgoing("cdc.users.batch", "16f-users-insert-batch-40", b""),
            Outgoing("cdc.a.insert", "1-a-2", b""),
        ],
    )
    assert stats.number("cdc_events") == 41
    assert stats.values()["table_events"] == {"users batch": 40, "a insert": 1}


def test_a_frame_is_noted_when_all_of_it_is_acknowledged_and_not_before() -> None:
    stats = Counters()
    lag = AckLag(stats, Traces())
    lag.handed_over(Frame("e-1", 10, 0.0, 100, 0.0))
    assert lag.acknowledged(9, 0.0, 500) == []
    lag.refresh(stats)
    assert stats.number("lag_seconds") != 0
    assert [frame.name for frame in lag.acknowledged(10, 0.0, 500)] == ["e-1"]
    lag.refresh(stats)
    assert stats.number("lag_seconds") == 0
    bytes_lag = stats.values()["ack_lag_bytes"]
    assert isinstance(bytes_lag, list)
    assert bytes_lag[0] == 400
