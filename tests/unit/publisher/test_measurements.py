"""The publisher's measurements: events by table, and the time from a commit to its storage."""

from __future__ import annotations

import time

import pytest

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream.publishing.message import Outgoing
from headrace.lsn import Gap, Position
from headrace.metrics.counters import Counters
from headrace.process.tracing import Traces
from headrace.publisher.gaps import gap_event
from headrace.publisher.lag import AckLag, Frame, unix_s
from headrace.publisher.tally import tally
from tests.support.virtual_time import on_virtual_time


def stored(subject: str, msg_id: str) -> Outgoing:
    return Outgoing(subject, msg_id, b"")


def test_events_are_counted_by_table_and_operation_and_each_of_a_batch() -> None:
    stats = Counters()
    tally(
        stats,
        [
            stored("cdc.users.insert", "1-0"),
            stored("cdc.users.insert", "1-1"),
            stored("cdc.orders.delete", "1-2"),
            stored("cdc.users.batch", "1-3-10"),
            stored("cdc.users.batch", "2-0-5"),
            stored("cdc.orders.batch", "3-0-x"),
        ],
    )
    values = stats.values()
    assert values["cdc_events"] == 3 + 15 + 1
    assert values["table_events"] == {
        "users insert": 2,
        "orders delete": 1,
        "users batch": 15,
        "orders batch": 1,
    }


def test_postgresql_counts_from_2000_on() -> None:
    assert unix_s(0) == 946_684_800
    assert unix_s(1_500_000) == 946_684_801.5


class Lag:
    """Frames that were handed over, with the first sent a second after its commit."""

    def __init__(self) -> None:
        self.stats = Counters()
        self.traces = Traces()
        self.lag = AckLag(self.stats, self.traces)

    def hand_over(self, name: str, accepted: int, *, lsn: int = 0) -> None:
        now = time.time()
        self.lag.handed_over(Frame(name, accepted, now - 1.0, lsn, now - 0.75))

    def acknowledged(self, acked: int, *, reached_lsn: int = 0) -> list[str]:
        frames = self.lag.acknowledged(acked, time.monotonic() - 0.5, reached_lsn)
        return [frame.name for frame in frames]

    def histogram(self, key: str) -> tuple[float, float]:
        """The sum and the number of what was observed."""
        held = self.stats.values()[key]
        assert isinstance(held, list)
        return held[0], sum(held[1:])

    @property
    def seconds(self) -> object:
        self.lag.refresh(self.stats)
        return self.stats.values()["lag_seconds"]


@on_virtual_time
async def test_a_frame_is_measured_once_all_its_messages_are_acknowledged() -> None:
    one = Lag()
    one.hand_over("a-1", 3, lsn=100)
    one.hand_over("a-2", 5, lsn=150)
    assert one.acknowledged(2, reached_lsn=180) == []
    assert one.acknowledged(3, reached_lsn=180) == ["a-1"]
    total_s, number = one.histogram("ack_lag_seconds")
    assert (round(total_s, 6), number) == (0.5, 1)
    assert one.histogram("ack_lag_bytes") == (80, 1)
    assert one.acknowledged(9, reached_lsn=180) == ["a-2"]
    assert one.histogram("ack_lag_bytes") == (110, 2)
    assert one.acknowledged(9, reached_lsn=180) == []


@on_virtual_time
async def test_clocks_that_differ_give_no_negative_times() -> None:
    one = Lag()
    ahead = time.time() + 60
    one.lag.handed_over(Frame("a-1", 1, ahead, 200, ahead))
    assert one.seconds == 0
    assert one.acknowledged(1, reached_lsn=100) == ["a-1"]
    assert one.histogram("ack_lag_seconds") == (0, 1)
    assert one.histogram("ack_lag_bytes") == (0, 1)


@on_virtual_time
async def test_the_lag_is_the_age_of_the_oldest_frame_that_is_not_acknowledged() -> None:
    one = Lag()
    assert one.seconds == 0
    now = time.time()
    one.lag.handed_over(Frame("a-1", 1, now - 1.23456, 0, now))
    one.lag.handed_over(Frame("a-2", 2, now, 0, now))
    assert one.seconds == 1.235
    one.acknowledged(1)
    assert one.seconds == 0
    one.hand_over("a-3", 3)
    one.lag.forget()
    assert one.acknowledged(9) == []


@on_virtual_time
async def test_traced_frames_have_a_span_of_the_whole_and_one_of_the_publishing() -> None:
    one = Lag()
    one.traces.every = 2
    one.hand_over("a-1", 1)
    one.hand_over("a-2", 2)
    one.acknowledged(2)
    spans = one.traces.taken()
    assert [(span.name, span.frame) for span in spans] == [("change", "a-2"), ("publish", "a-2")]
    took = [span.ended_s - span.began_s for span in spans]
    assert took == [pytest.approx(0.5), pytest.approx(0.25)]


def test_a_gap_takes_no_consumer_forward_and_says_what_is_missing() -> None:
    event = gap_event(Gap(0x100, 0x200, "slot_moved"), "shop", Encoding.JSON)
    assert (event.advances, event.ends) == (False, True)
    assert event.position == Position(0x200, 0)
    body = events.decode(event.payload)
    assert (body["after"], body["up_to"], body["lsn"]) == ("0/100", "0/200", 0x200)
    assert (body["operation"], body["source"], body["reason"]) == ("GAP", "shop", "slot_moved")
    assert body["tx"]["xid"] == 0
    assert body["tx"]["last"] is False
    assert not events.advances(body)
