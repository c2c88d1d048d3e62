"""`--delivery batch` cuts a table's array at its number of events, its bytes and its age. Its
headers say how far the stream is.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from headrace.contract.events import COMPLETE_HEADER, POSITION_HEADER
from headrace.jetstream.publishing.message import Message
from headrace.jetstream.publishing.stream_tail import Tail
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.publisher import batch_delivery
from headrace.publisher.batch_delivery import BatchDelivery
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.resume_point import Progress, ResumePoint
from headrace.settings import load


class Written:
    """A pipe that stores everything immediately."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    @property
    def acked(self) -> int:
        return len(self.messages)

    published = acked

    async def publish(self, message: Message) -> None:
        self.messages.append(message)

    async def publish_all(self, messages: Any) -> None:
        self.messages += messages

    async def drain(self) -> None:
        """Everything is stored already."""

    def arrays(self) -> list[tuple[str, list[int]]]:
        return [(one.subject, msgpack.unpackb(one.payload)) for one in self.messages]


def delivery(
    pipe: Written,
    *,
    events_max: int = 3,
    bytes_max: int = 1000,
    payload_max: int = 1000,
    **place: Any,
) -> BatchDelivery:
    settings = load({})
    limits = replace(settings.delivery, batch_events_max=events_max, batch_bytes_max=bytes_max)
    return BatchDelivery(
        cast("Any", pipe),
        cast("Any", None),
        ResumePoint(Progress(), frozenset(), Tail(1, 0, ""), **place),
        Counters(),
        replace(settings, delivery=limits),
        payload_max,
    )


def event(at: int, table: str = "t", size: int = 1) -> PublishedEvent:
    payload = msgpack.packb(at) if size == 1 else msgpack.packb(b"x" * (size - 2))
    assert len(payload) == size
    return PublishedEvent(f"cdc.{table}.insert", f"id{at}", payload, position=Position(at, 0))


def wait_s(taken: BatchDelivery) -> Any:
    """Read again each time, which mypy does not expect of a property."""
    return taken.wait_s


@pytest.mark.parametrize("together", [True, False])
async def test_an_array_ends_at_its_number_of_events(together: bool) -> None:
    pipe = Written()
    taken = delivery(pipe)
    subject = event(1).subject
    events = [event(at)._replace(subject=subject) for at in range(1, 8)]
    if together:
        await taken.events(events)
    else:
        for one in events:
            await taken.event(one)
    assert [array for _, array in pipe.arrays()] == [[1, 2, 3], [4, 5, 6]]
    assert taken.accepted == 3
    await taken.flush()
    assert [array for _, array in pipe.arrays()][2:] == [[7]]
    assert [message.msg_id for message in pipe.messages] == [
        "id3-batch-3",
        "id6-batch-3",
        "id7-batch-1",
    ]
    assert (taken.accepted, taken.stored()) == (3, (Position(7, 0), "id7-batch-1"))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("bytes_max", "payload_max"), [(33, 1000), (1000, 33)])
async def test_an_array_ends_at_its_bytes_and_at_those_of_a_message(
    bytes_max: int, payload_max: int, together: bool
) -> None:
    """Each event is counted with a separator, of which the last needs none."""
    pipe = Written()
    taken = delivery(pipe, events_max=100, bytes_max=bytes_max, payload_max=payload_max)
    subject = event(1).subject
    events = [event(at, size=10)._replace(subject=subject) for at in range(1, 7)]
    if together:
        await taken.events(events)
    else:
        for one in events:
            await taken.event(one)
    await taken.flush()
    assert [len(array) for _, array in pipe.arrays()] == [3, 3]


async def test_an_event_that_has_exactly_the_room_that_is_left_is_still_taken() -> None:
    pipe = Written()
    taken = delivery(pipe, events_max=100, bytes_max=21)
    for at in (1, 2):
        await taken.event(event(at, size=10))
    await taken.flush()
    assert [len(array) for _, array in pipe.arrays()] == [2]


async def test_a_flush_sends_the_arrays_of_all_tables_and_the_last_carries_the_floor() -> None:
    pipe = Written()
    taken = delivery(pipe)
    for at, table in ((1, "a"), (2, "b"), (3, "a")):
        await taken.event(event(at, table))
    await taken.mark(CompleteUpTo(40, whole=True))
    assert (taken.waiting, taken.confirmable()) == (True, 0)
    await taken.flush()
    assert pipe.arrays() == [("cdc.a.batch", [1, 3]), ("cdc.b.batch", [2])]
    first, last = pipe.messages
    assert (first.advances, last.advances) == (False, True)
    assert first.headers[POSITION_HEADER] != last.headers[POSITION_HEADER]
    assert COMPLETE_HEADER not in first.headers
    assert last.headers[COMPLETE_HEADER] == "40"
    assert (taken.waiting, taken.confirmable()) == (True, 40)


async def test_an_older_mark_after_a_new_beginning_takes_nothing_back() -> None:
    pipe = Written()
    taken = delivery(pipe)
    await taken.mark(CompleteUpTo(40, whole=True))
    taken.begin_epoch()
    await taken.event(event(50))
    await taken.mark(CompleteUpTo(30, whole=True))
    await taken.flush()
    assert pipe.messages[0].headers[COMPLETE_HEADER] == "40"


async def test_an_array_waits_for_its_age_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(batch_delivery, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    pipe = Written()
    taken = delivery(pipe)
    age_s = load({}).delivery.batch_age_max_s
    assert wait_s(taken) is None
    await taken.event(event(1))
    assert wait_s(taken) == pytest.approx(age_s)
    clock[0] += age_s / 2
    await taken.event(event(2, "other"))
    await taken.rest(more=False)
    assert (pipe.messages, wait_s(taken)) == ([], pytest.approx(age_s / 2))
    clock[0] = 100.0 + age_s * 1.01
    assert wait_s(taken) == 0.001
    await taken.rest(more=True)
    assert (len(pipe.messages), wait_s(taken)) == (2, None)
    await taken.event(event(3))
    assert wait_s(taken) == pytest.approx(age_s)


async def test_an_event_that_advances_nothing_comes_behind_everything_before_it() -> None:
    pipe = Written()
    taken = delivery(pipe)
    await taken.event(event(1))
    standing = event(2, "u")._replace(advances=False, msg_id="schema")
    await taken.event(standing)
    await taken.event(event(3))
    assert [message.msg_id for message in pipe.messages] == ["id1-batch-1", "schema"]
    assert pipe.messages[0].advances


async def test_behind_arrays_that_a_crash_cut_off_nothing_is_a_floor() -> None:
    pipe = Written()
    taken = delivery(pipe, lanes={"t": Position(5, 0)})
    await taken.event(event(3, "u"))
    await taken.event(event(4))
    await taken.flush()
    assert [message.advances for message in pipe.messages] == [False]
    await taken.event(event(5, "u"))
    await taken.flush()
    assert [message.advances for message in pipe.messages] == [False, True]


async def test_the_first_event_of_an_array_takes_its_room_too() -> None:
    pipe = Written()
    taken = delivery(pipe, events_max=100, bytes_max=31)
    for at in range(1, 4):
        await taken.event(event(at, size=10))
    # Each takes its bytes and a separator's.
    assert [len(array) for _, array in pipe.arrays()] == [2]
    await taken.flush()
    assert [len(array) for _, array in pipe.arrays()] == [2, 1]
