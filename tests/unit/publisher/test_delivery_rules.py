"""Which events are handed over, which are there already, and what of them counts as stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast
from unittest import mock

import pytest

from headrace.contract.events import POSITION_HEADER
from headrace.jetstream.publishing.message import Message
from headrace.jetstream.publishing.stream_tail import Tail
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.publisher.event_delivery import Delivery, lane_of
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.resume_point import Progress, ResumePoint
from headrace.publisher.transaction_delivery import SPLIT_HEADER, TransactionDelivery

SOURCE = "shop"


class Pipe:
    """Acknowledges as many messages as the test says; a group has at most four."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.acked = 0
        self.flying = False
        # After how many messages a group was sent.
        self.flushed: list[int] = []

    @property
    def published(self) -> int:
        return len(self.messages)

    async def publish(self, message: Message) -> None:
        self.messages.append(message)

    async def publish_all(self, messages: Sequence[Message]) -> None:
        self.messages += messages

    async def drain(self) -> None:
        self.acked = len(self.messages)

    async def flush(self) -> None:
        if self.messages and (not self.flushed or self.flushed[-1] < len(self.messages)):
            self.flushed.append(len(self.messages))

    def fits(self, messages: int, _size: int) -> bool:
        sent = self.flushed[-1] if self.flushed else 0
        return len(self.messages) - sent + messages <= 4

    def fits_alone(self, messages: int, _size: int) -> bool:
        return messages <= 4

    @property
    def ids(self) -> list[str]:
        return [message.msg_id for message in self.messages]

    @property
    def split(self) -> list[str]:
        """The messages that are parts of a transaction."""
        [(name, value)] = SPLIT_HEADER.items()
        return [one.msg_id for one in self.messages if one.headers.get(name) == value]


class Large:
    """The object store."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.put_after: dict[str, int] = {}

    async def put(self, msg_id: str, _: bytes) -> None:
        self.put_after[msg_id] = self._pipe.acked


class Line:
    def __init__(
        self,
        kind: type[Delivery] = Delivery,
        *,
        at: tuple[int, int] = (0, 0),
        ids_after: Sequence[str] = (),
        lanes: Mapping[str, Position] | None = None,
    ) -> None:
        self.pipe = Pipe()
        self.large = Large(self.pipe)
        self.stats = Counters()
        progress = Progress(position=Position(*at), msg_id="before")
        place = ResumePoint(progress, frozenset(ids_after), Tail(1, 0, ""), lanes=lanes or {})
        self.delivery = kind(
            cast("Any", self.pipe), cast("Any", self.large), place, self.stats, SOURCE
        )

    async def take(self, *events: PublishedEvent, together: bool = False) -> None:
        if together:
            await self.delivery.events(list(events))
        else:
            for one in events:
                await self.delivery.event(one)

    @property
    def skipped(self) -> float:
        return self.stats.number("skipped_events")


def event(lsn: int, seq: int = 0, *, table: str = "users", **more: Any) -> PublishedEvent:
    msg_id = f"{lsn}-{seq}"
    subject = f"cdc.{table}.insert"
    return PublishedEvent(subject, msg_id, b"{}", position=Position(lsn, seq), **more)


def schema(lsn: int, msg_id: str) -> PublishedEvent:
    position = Position(lsn, 0)
    return PublishedEvent("cdc.users.schema", msg_id, b"{}", advances=False, position=position)


both_ways = pytest.mark.parametrize("together", [True, False])


@both_ways
async def test_events_up_to_the_streams_position_are_skipped(together: bool) -> None:
    one = Line(at=(10, 1))
    await one.take(event(10, 0), event(10, 1), event(10, 2), event(11, 0), together=together)
    assert one.pipe.ids == ["10-2", "11-0"]
    assert one.skipped == 2
    assert one.delivery.position == Position(11, 0)
    assert one.delivery.reached_lsn == 11


async def test_an_event_that_takes_the_stream_nowhere_is_known_by_its_id() -> None:
    one = Line(at=(10, 0), ids_after=["s1"])
    await one.take(schema(11, "s1"), schema(11, "s2"), event(11))
    assert one.pipe.ids == ["s2", "11-0"]
    assert one.skipped == 1


@both_ways
async def test_what_is_acknowledged_is_stored_message_by_message(together: bool) -> None:
    one = Line(at=(10, 0))
    await one.take(*[event(11, seq) for seq in range(3)], together=together)
    await one.take(schema(12, "s"), event(12))
    stored = []
    for acked in range(6):
        one.pipe.acked = acked
        stored.append(one.delivery.stored()[1])
    assert stored == ["before", "11-0", "11-1", "11-2", "11-2", "12-0"]
    assert one.delivery.stored()[0] == Position(12, 0)


async def test_a_mark_counts_when_everything_before_it_is_acknowledged() -> None:
    one = Line()
    await one.take(event(11), event(11, 1))
    await one.delivery.mark(CompleteUpTo(12, whole=True))
    lsns = []
    for acked in range(3):
        one.pipe.acked = acked
        lsns.append(one.delivery.confirmable())
    assert lsns == [0, 0, 12]
    assert not one.delivery.waiting
    assert one.stats.number("transactions") == 1


async def test_transactions_are_counted_over_epochs_and_marks_of_one_end_with_it() -> None:
    one = Line()
    await one.delivery.mark(CompleteUpTo(12, whole=True))
    assert one.delivery.confirmable() == 12
    await one.take(event(20))
    await one.delivery.mark(CompleteUpTo(21, whole=True))
    waiting = [one.delivery.waiting]
    one.delivery.begin_epoch()
    assert [*waiting, one.delivery.waiting] == [True, False]
    assert one.delivery.confirmable() == 0
    await one.delivery.mark(CompleteUpTo(12, whole=True))
    one.pipe.acked = 1
    assert one.delivery.confirmable() == 12
    assert one.stats.number("transactions") == 2


@both_ways
async def test_a_large_event_is_in_the_object_store_before_it_is_published(together: bool) -> None:
    one = Line()
    await one.take(event(11), event(11, 1, large=b"large"), event(11, 2), together=together)
    assert one.pipe.ids == ["11-0", "11-1", "11-2"]
    assert one.large.put_after == {"11-1": 1}, "all before it are stored then"


LANES = {"users": Position(12, 0), "orders": Position(14, 0)}


async def test_behind_interrupted_arrays_only_what_their_tables_lack_is_published() -> None:
    one = Line(at=(10, 0), lanes=LANES)
    assert not one.delivery.past_lanes
    assert one.delivery.reached_lsn == 14
    await one.take(
        event(11),
        event(11, 1, table="orders"),
        event(12),
        event(12, 1),
        event(14, table="orders"),
        together=True,
    )
    assert one.pipe.ids == ["12-1"]
    assert one.skipped == 4
    (message,) = one.pipe.messages
    assert not message.advances, "after a crash those arrays must be met again"
    assert message.headers[POSITION_HEADER].startswith(SOURCE)
    one.pipe.acked = 1
    assert one.delivery.stored()[0] == Position(10, 0)
    await one.take(event(14, 1))
    assert one.pipe.messages[-1].advances
    one.pipe.acked = 2
    assert one.delivery.stored()[0] == Position(14, 1)
    assert one.delivery.past_lanes


def test_the_lane_of_a_subject_is_its_tables_token() -> None:
    assert lane_of("cdc.app=2Forders.insert") == "app=2Forders"


# Whole transactions.


def transaction(lsn: int, size: int, **more: Any) -> list[PublishedEvent]:
    return [event(lsn, seq, ends=seq == size - 1, **more) for seq in range(size)]


@both_ways
async def test_whole_transactions_join_a_group_as_far_as_they_fit(together: bool) -> None:
    one = Line(TransactionDelivery)
    for lsn, size in ((11, 2), (12, 2), (13, 3)):
        await one.take(*transaction(lsn, size), together=together)
        await one.delivery.mark(CompleteUpTo(lsn + 1, whole=True))
    assert one.pipe.flushed == [4]
    assert one.pipe.published == 7
    assert one.pipe.split == []
    await one.delivery.flush()
    assert one.pipe.flushed == [4, 7]


@both_ways
async def test_of_an_open_transaction_nothing_is_published_and_it_comes_again(
    together: bool,
) -> None:
    one = Line(TransactionDelivery)
    await one.take(*transaction(11, 3)[:2], together=together)
    assert one.pipe.ids == []
    assert one.delivery.accepted == 2
    assert one.delivery.position == Position(11, 1)
    one.delivery.begin_epoch()
    assert one.delivery.accepted == 0
    assert one.delivery.position == Position(0, 0)
    await one.take(*transaction(11, 3), together=together)
    await one.delivery.mark(CompleteUpTo(12, whole=True))
    assert one.pipe.ids == ["11-0", "11-1", "11-2"]
    assert one.skipped == 0


@both_ways
async def test_a_transaction_larger_than_a_group_is_published_in_parts_that_say_so(
    together: bool,
) -> None:
    one = Line(TransactionDelivery)
    await one.take(*transaction(10, 1), together=together)
    await one.take(*transaction(11, 7), together=together)
    await one.delivery.mark(CompleteUpTo(12, whole=True))
    await one.take(*transaction(13, 1), together=together)
    await one.delivery.mark(CompleteUpTo(14, whole=True))
    assert one.pipe.ids == ["10-0", *[f"11-{seq}" for seq in range(7)], "13-0"]
    assert one.pipe.split == [f"11-{seq}" for seq in range(7)]
    assert 1 in one.pipe.flushed, "what was whole is not in a group with a part"
    assert 8 in one.pipe.flushed


@both_ways
async def test_the_rest_of_a_transaction_of_which_a_part_is_stored_is_a_part_too(
    together: bool,
) -> None:
    one = Line(TransactionDelivery, at=(11, 0))
    await one.take(*transaction(11, 3), together=together)
    await one.delivery.mark(CompleteUpTo(12, whole=True))
    await one.take(*transaction(13, 2), together=together)
    assert one.pipe.ids == ["11-1", "11-2", "13-0", "13-1"]
    assert one.pipe.split == ["11-1", "11-2"]
    one.pipe.acked = 4
    assert one.delivery.stored() == (Position(13, 1), "13-1")


async def test_a_group_grows_while_another_is_stored_and_more_is_at_hand() -> None:
    one = Line(TransactionDelivery)
    await one.take(*transaction(11, 1))
    one.pipe.flying = True
    await one.delivery.rest(more=True)
    assert one.pipe.flushed == []
    await one.delivery.rest(more=False)
    assert one.pipe.flushed == [1]
    await one.take(*transaction(12, 1))
    one.pipe.flying = False
    await one.delivery.rest(more=True)
    assert one.pipe.flushed == [1, 2]


async def test_what_describes_an_event_is_stored_with_its_transaction() -> None:
    one = Line(TransactionDelivery)
    await one.take(schema(11, "s"), *transaction(11, 2))
    await one.delivery.mark(CompleteUpTo(12, whole=True))
    assert one.pipe.ids == ["s", "11-0", "11-1"]
    assert one.pipe.flushed == []
    one.pipe.acked = 3
    assert one.delivery.stored() == (Position(11, 1), "11-1")


@both_ways
@pytest.mark.parametrize("size", [5, 6])
async def test_of_a_transaction_that_grows_beyond_a_group_no_part_is_too_large(
    together: bool, size: int
) -> None:
    """The pipe refuses more than four; a part is handed over as soon as one more has come."""
    one = Line(TransactionDelivery)
    events = transaction(11, size)
    await one.take(*events[:4], together=together)
    assert one.pipe.ids == []
    await one.take(events[4], together=together)
    assert one.pipe.ids == [f"11-{seq}" for seq in range(5)]
    for last in events[5:]:
        await one.take(last, together=together)
    assert one.pipe.split == [f"11-{seq}" for seq in range(size)]


async def test_events_that_are_taken_at_once_are_looked_at_up_to_the_groups_size() -> None:
    one = Line(TransactionDelivery)
    await one.take(*transaction(11, 9)[:5], together=True)
    assert one.pipe.ids == [f"11-{seq}" for seq in range(5)]


async def test_the_bytes_of_an_open_transaction_that_comes_again_count_once() -> None:
    one = Line(TransactionDelivery)
    sizes: list[int] = []

    def fits_alone(_: int, size: int) -> bool:
        sizes.append(size)
        return True

    with mock.patch.object(one.pipe, "fits_alone", fits_alone):
        await one.take(*transaction(11, 3)[:2])
        one.delivery.begin_epoch()
        await one.take(*transaction(11, 3)[:2])
    assert sizes == [2, 4, 2, 4]


async def test_what_was_stored_is_forgotten_while_more_arrives() -> None:
    one = Line()
    await one.take(*[event(lsn) for lsn in range(1, 6)])
    one.pipe.acked = 3
    assert one.delivery.stored() == (Position(3, 0), "3-0")
    one.pipe.acked = 5
    assert one.delivery.stored() == (Position(5, 0), "5-0")
