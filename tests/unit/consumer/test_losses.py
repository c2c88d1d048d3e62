"""Losses that a consumer of the change stream reports: at its start, while it follows, anywhere."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from headrace.consumer import (
    Consumer,
    RetentionGapError,
    StreamMissingError,
    Subscription,
    Watermark,
)
from headrace.lsn import Position
from tests.support.following import (
    ONLY_A,
    lost,
    put,
    reading,
    rest,
)
from tests.support.virtual_nats import VirtualNats

# Losses.


def test_a_missing_stream_is_named(nats: VirtualNats) -> None:
    with pytest.raises(StreamMissingError, match="OTHER"):
        reading(nats, rest, Subscription(stream="OTHER"))


def test_messages_discarded_before_the_start_are_reported(nats: VirtualNats) -> None:
    put(nats, 1, 2, 3, 4, 5)
    nats.server.discard("CDC", 4)
    marks = {"s": Watermark(Position(1, 0), 1)}
    error = lost(nats, marks=marks)
    assert (error.first_lost, error.last_lost, error.rewritten, error.damaged) == (
        2,
        3,
        False,
        False,
    )
    # Nothing is lost between the mark and the first message.
    assert reading(nats, rest, marks={"s": Watermark(Position(3, 0), 3)}) == [4, 5]


def test_a_discarded_start_is_reported(nats: VirtualNats) -> None:
    put(nats, 1, 2, 3)
    nats.server.discard("CDC", 3)
    error = lost(nats, Subscription(start_seq=2))
    assert (error.first_lost, error.last_lost) == (2, 2)
    assert reading(nats, rest, Subscription(start_seq=3)) == [3]


def test_a_new_consumer_starts_with_the_first_message_that_there_is(nats: VirtualNats) -> None:
    put(nats, 1, 2, 3)
    nats.server.discard("CDC", 3)
    assert reading(nats, rest) == [3]


def test_messages_discarded_while_following_are_reported(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> None:
        event = await consumer.next()
        assert event is not None
        await consumer.done(event)
        nats.server.holds_back = True
        put(nats, 2, 3, 4)
        nats.server.discard("CDC", 4)
        nats.server.give_out_again()
        await consumer.next(10.0)

    put(nats, 1)
    with pytest.raises(RetentionGapError) as found:
        reading(nats, use)
    assert (found.value.first_lost, found.value.last_lost) == (2, 3)


def test_messages_discarded_on_a_quiet_stream_are_reported(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> None:
        await consumer.next()
        nats.server.holds_back = True
        put(nats, 2, 3)
        nats.server.discard("CDC", 4)
        for _ in range(10):
            assert await consumer.next() is None

    put(nats, 1)
    with pytest.raises(RetentionGapError) as found:
        reading(nats, use)
    assert (found.value.first_lost, found.value.last_lost) == (2, 3)


def test_a_hole_is_reported_after_the_messages_before_it(nats: VirtualNats) -> None:
    put(nats, 1, 2, 3, 4, 5)
    nats.server.streams["CDC"].delete(3)
    found: list[int] = []

    async def use(consumer: Consumer) -> None:
        while (event := await consumer.next()) is not None:
            found.append(event.position.lsn)
            await consumer.done(event)

    with pytest.raises(RetentionGapError) as error:
        reading(nats, use)
    assert found == [1, 2]
    assert (error.value.first_lost, error.value.last_lost, error.value.damaged) == (3, 3, True)
    assert "3 to 3 are missing from the middle" in str(error.value)


def test_a_hole_is_reported_to_a_filtered_reader_if_the_server_lists_it(nats: VirtualNats) -> None:
    put(nats, 1)
    put(nats, 2, table="b")
    put(nats, 3, 4)
    assert reading(nats, rest, ONLY_A) == [1, 3, 4]
    nats.server.streams["CDC"].delete(3)
    error = lost(nats, ONLY_A)
    assert (error.first_lost, error.last_lost, error.damaged) == (3, 3, True)


def test_a_hole_at_the_end_of_a_quiet_stream_is_reported(nats: VirtualNats) -> None:
    put(nats, 1)
    put(nats, 2, 3, table="b")
    nats.server.streams["CDC"].delete(2)
    error = lost(nats, ONLY_A)
    assert (error.first_lost, error.last_lost, error.damaged) == (2, 2, True)


def test_a_stream_that_keeps_some_messages_per_subject_has_no_holes(nats: VirtualNats) -> None:
    nats.server.streams["CDC"].per_subject = 1
    put(nats, 1)
    put(nats, 2, table="b")
    put(nats, 3, 4)
    assert reading(nats, rest) == [2, 4]


def test_another_stream_of_the_same_name_is_noticed_by_its_length(nats: VirtualNats) -> None:
    put(nats, 1)
    error = lost(nats, marks={"s": Watermark(Position(9, 0), 5)})
    assert (error.first_lost, error.last_lost, error.rewritten) == (2, 5, True)


def test_another_stream_of_the_same_name_is_noticed_by_its_message(nats: VirtualNats) -> None:
    put(nats, 10, 20, 30)
    error = lost(nats, marks={"s": Watermark(Position(15, 0), 2)})
    assert (error.first_lost, error.last_lost, error.rewritten) == (2, 2, True)


def test_a_mark_that_names_its_message_is_no_other_stream(nats: VirtualNats) -> None:
    put(nats, 10, 20, 30)
    marks = {"s": Watermark(Position(20, 0), 2), "": Watermark(stream_seq=2)}
    assert reading(nats, rest, marks=marks) == [30]


def test_messages_up_to_the_furthest_mark_are_passed_over(nats: VirtualNats) -> None:
    async def one_by_one(consumer: Consumer) -> list[int]:
        events = [await consumer.next() for _ in range(60)]
        return [event.position.lsn for event in events if event is not None]

    put(nats, 10)
    put(nats, *range(20, 60), source="other")
    put(nats, 60, source="other")
    marks = {"s": Watermark(Position(10, 0), 1), "": Watermark(stream_seq=41)}
    assert reading(nats, rest, marks=marks) == [60]
    moments = itertools.count()
    nats.server.latency = lambda: 0.001 * next(moments)  # type: ignore[method-assign]
    assert reading(nats, one_by_one, marks=marks) == [60]


# Where a loss hides.


def test_a_single_discarded_message_is_reported(nats: VirtualNats) -> None:
    put(nats, 1, 2, 3)
    nats.server.discard("CDC", 3)
    error = lost(nats, marks={"s": Watermark(Position(1, 0), 1)})
    assert (error.first_lost, error.last_lost) == (2, 2)


def test_a_first_message_that_no_filter_matches_is_no_loss(nats: VirtualNats) -> None:
    put(nats, 1, 2, 3)
    put(nats, 4, table="b")
    put(nats, 5)
    nats.server.discard("CDC", 4)
    assert reading(nats, rest, ONLY_A, {"s": Watermark(Position(3, 0), 3)}) == [5]


@pytest.mark.parametrize("filters", [(), ("cdc.>",), ("cdc.a.>", "cdc.>")])
def test_a_hole_that_no_server_lists_is_seen_by_who_follows_everything(
    nats: VirtualNats, filters: tuple[str, ...]
) -> None:
    put(nats, 1, 2, 3)
    nats.server.streams["CDC"].delete(2)
    nats.server.lists_holes = False
    error = lost(nats, Subscription(filters=filters))
    assert (error.first_lost, error.last_lost, error.damaged) == (2, 2, True)
    assert reading(nats, rest, ONLY_A) == [1, 3], "nobody can say what it was"


def test_a_message_that_a_lagging_server_lacks_is_not_passed(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> tuple[int, list[int]]:
        first = await consumer.next()
        assert first is not None
        await consumer.done(first)
        nats.server.holds_back = True
        nats.server.lags = True
        put(nats, 2, table="b")
        put(nats, 3)
        put(nats, 4, table="b")
        assert await consumer.next(12.0) is None
        before = consumer.seen_seq
        nats.server.lags = False
        nats.server.give_out_again()
        return before, await rest(consumer)

    put(nats, 1)
    assert reading(nats, use, ONLY_A) == (2, [3])


def test_a_hole_before_a_message_that_a_lagging_server_lacks_is_reported(
    nats: VirtualNats,
) -> None:
    async def use(consumer: Consumer) -> None:
        await consumer.next()
        nats.server.holds_back = True
        nats.server.lags = True
        put(nats, 2, table="b")
        put(nats, 3)
        nats.server.streams["CDC"].delete(2)
        for _ in range(12):
            assert await consumer.next() is None

    put(nats, 1)
    with pytest.raises(RetentionGapError) as found:
        reading(nats, use, ONLY_A)
    assert (found.value.first_lost, found.value.last_lost) == (2, 2)


def test_what_was_seen_may_be_discarded_before_anything_is_read(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> list[int]:
        await asyncio.sleep(0.5)
        stream = nats.server.streams["CDC"]
        nats.server.deleted(stream, next(iter(stream.consumers)))
        return await rest(consumer)

    put(nats, 1, 2, 3)
    put(nats, 4)
    nats.server.discard("CDC", 4)
    nats.server.holds_back = True
    marks = {"s": Watermark(Position(1, 0), 1), "": Watermark(stream_seq=3)}
    nats.after(2.0, nats.server.give_out_again)
    assert reading(nats, use, marks=marks) == [4]
