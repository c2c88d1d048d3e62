"""A consumer of the change stream: order, watermarks, acknowledgements and losses, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.js.errors import BadRequestError

from headrace.consumer import (
    Consumer,
    Event,
    MemoryWatermarks,
    ReaderTakenOverError,
    Start,
    Subscription,
    Watermark,
    follow,
)
from headrace.contract import dictionaries
from headrace.errors import DecodeError
from headrace.jetstream.object_store import ObjectStore
from headrace.lsn import Position
from tests.support.following import (
    ONLY_A,
    body,
    put,
    put_array,
    reading,
    rest,
)
from tests.support.virtual_nats import STREAMS, VirtualNats

# Order and watermarks.


def test_events_come_in_stream_order_each_once(nats: VirtualNats) -> None:
    put(nats, *range(1, 1001))
    assert reading(nats, rest) == list(range(1, 1001))


def test_events_that_are_stored_later_come_without_a_new_start(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> list[int]:
        assert (consumer.seen_seq, consumer.given_seq) == (0, 0)
        assert await consumer.next(0.5) is None
        put(nats, 1, 2)
        first = await rest(consumer)
        put(nats, 3)
        return first + await rest(consumer)

    assert reading(nats, use) == [1, 2, 3]


def test_an_event_that_is_peeked_at_stays(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> None:
        seen = await consumer.peek()
        assert seen is not None
        assert await consumer.peek() is seen
        assert await consumer.next() is seen
        await consumer.done(seen)
        following = await consumer.next()
        assert following is not None
        assert following.position.lsn == 2

    put(nats, 1, 2)
    reading(nats, use)


def test_iterating_gives_every_event(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> list[int]:
        found = []
        async for event in consumer:
            found.append(event.position.lsn)
            await consumer.done(event)
            if len(found) == 3:
                return found
        raise AssertionError

    put(nats, 1, 2, 3)
    assert reading(nats, use) == [1, 2, 3]


def test_only_the_event_given_out_last_can_be_done(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> None:
        first = await consumer.next()
        second = await consumer.next()
        assert first is not None
        assert second is not None
        with pytest.raises(AssertionError, match="given out last"):
            await consumer.done(first)
        await consumer.done(second, with_those_before=[first])

    put(nats, 1, 2)
    reading(nats, use)


def test_applied_events_are_never_given_out_again(nats: VirtualNats) -> None:
    put(nats, 10, 20, 30)
    marks = {"s": Watermark(Position(20, 0), 2)}
    assert reading(nats, rest, marks=marks) == [30]


def test_a_store_remembers_each_event_that_is_done(nats: VirtualNats) -> None:
    store = MemoryWatermarks()
    put(nats, 10, 20, 30)

    async def two(consumer: Consumer) -> None:
        for _ in range(2):
            event = await consumer.next()
            assert event is not None
            await consumer.done(event)

    reading(nats, two, marks=store)
    assert nats.do(store.load()) == {"s": Watermark(Position(20, 0), 2)}
    assert reading(nats, rest, marks=store) == [30]


def test_positions_of_one_source_skip_no_event_of_another(nats: VirtualNats) -> None:
    put(nats, 10)
    put(nats, 5, source="other")
    assert reading(nats, rest) == [10, 5]


def test_a_schema_event_is_given_out_again_and_moves_no_watermark(nats: VirtualNats) -> None:
    store = MemoryWatermarks()
    put(nats, 10)
    put(nats, 11, operation="SCHEMA")
    assert reading(nats, rest, marks=store) == [10, 11]
    assert nats.do(store.load()) == {"s": Watermark(Position(10, 0), 1)}


def test_an_older_event_before_a_later_start_is_skipped_by_its_position(nats: VirtualNats) -> None:
    """A replay in another message: only positions tell."""
    put(nats, 10, 20)
    put(nats, 10, 20, 30)
    assert reading(nats, rest) == [10, 20, 30]


def test_events_that_are_taken_as_done_are_each_given_out_once_and_remembered(
    nats: VirtualNats,
) -> None:
    store = MemoryWatermarks()

    async def use(consumer: Consumer) -> list[list[int]]:
        await asyncio.sleep(1.0)
        found = []
        while await consumer.peek(7.0) is not None:
            found.append([event.position.lsn for event in await consumer.take_done(3)])
        return found

    put(nats, 10)
    put(nats, 11, operation="SCHEMA")
    # A replay in other messages: only positions tell.
    put(nats, 10, 20, 20)
    put(nats, 5, source="other")
    put(nats, 30)
    assert reading(nats, use, marks=store) == [[10, 11, 20], [5, 30]]
    marks = nats.do(store.load())
    assert {lane: mark.position for lane, mark in marks.items()} == {
        "s": Position(30, 0),
        "other": Position(5, 0),
    }
    assert reading(nats, rest, marks=store) == []


def test_a_part_of_an_array_that_is_taken_as_done_does_not_finish_its_message(
    nats: VirtualNats,
) -> None:
    async def use(consumer: Consumer) -> list[int]:
        await consumer.peek()
        taken = await consumer.take_done(2)
        return [len(taken), consumer.seen_seq, len(await consumer.take_done(2)), consumer.seen_seq]

    put(nats, 10)
    put_array(nats, body(20), body(20, 1), body(20, 2))
    assert reading(nats, use) == [2, 1, 2, 2]


def test_events_are_taken_as_done_up_to_one_that_is_stored_elsewhere(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> list[int]:
        await asyncio.sleep(1.0)
        await consumer.peek()
        return [event.position.lsn for event in await consumer.take_done(9)]

    put(nats, 10)
    put(nats, 20, reference={"bucket": "large", "name": "x", "bytes": 5})
    assert reading(nats, use) == [10]


def test_several_events_are_taken_together(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> tuple[list[int], int, list[Event]]:
        await asyncio.sleep(1.0)
        taken = await consumer.take()
        return [event.position.lsn for event in taken], consumer.seen_seq, await consumer.take(0.1)

    put(nats, 10, 20, 30)
    marks = {"s": Watermark(Position(10, 0), 1)}
    assert reading(nats, use, marks=marks) == ([20, 30], 3, [])


# Arrays.


def test_an_arrays_events_have_a_lane_of_their_table_and_close_with_the_last(
    nats: VirtualNats,
) -> None:
    async def use(consumer: Consumer) -> list[tuple[str, bool, int, int]]:
        found = []
        while (event := await consumer.next(1.0)) is not None:
            await consumer.done(event)
            found.append((event.lane, event.closes, event.complete, consumer.seen_seq))
        return found

    put_array(nats, body(10), body(20), complete=25)
    assert reading(nats, use) == [("s/public.a", False, 0, 0), ("s/public.a", True, 25, 1)]


def test_a_half_applied_array_continues_in_the_middle(nats: VirtualNats) -> None:
    store = MemoryWatermarks()

    async def one(consumer: Consumer) -> None:
        event = await consumer.next()
        assert event is not None
        await consumer.done(event)

    put_array(nats, body(10), body(20), body(30))
    reading(nats, one, marks=store)
    assert nats.do(store.load()) == {"s/public.a": Watermark(Position(10, 0), 0)}
    assert reading(nats, rest, marks=store) == [20, 30]


def test_arrays_of_two_tables_are_applied_each_by_its_own_position(nats: VirtualNats) -> None:
    put_array(nats, body(30, table="b"))
    put_array(nats, body(10), body(20))
    marks = {"s/public.b": Watermark(Position(30, 0), 1)}
    assert reading(nats, rest, marks=marks) == [10, 20]


# Where a consumer starts.


def test_a_new_consumer_starts_with_all_messages_or_with_new_ones(nats: VirtualNats) -> None:
    async def after_more(consumer: Consumer) -> list[int]:
        put(nats, 30)
        return await rest(consumer)

    put(nats, 10, 20)
    assert reading(nats, rest) == [10, 20]
    assert reading(nats, after_more, Subscription(start=Start.NEW)) == [30]


def test_a_consumer_starts_at_its_sequence(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> tuple[int, int, list[int]]:
        return consumer.seen_seq, consumer.given_seq, await rest(consumer)

    put(nats, 10, 20, 30)
    assert reading(nats, use, Subscription(start_seq=2)) == (1, 1, [20, 30])


def test_messages_that_no_filter_matches_are_seen_without_being_given_out(
    nats: VirtualNats,
) -> None:
    async def use(consumer: Consumer) -> tuple[list[int], int, int]:
        lsns = await rest(consumer)
        return lsns, consumer.seen_seq, consumer.given_seq

    put(nats, 1)
    put(nats, 2, 3, table="b")
    put(nats, 4)
    put(nats, 5, 6, table="b")
    assert reading(nats, use, ONLY_A) == ([1, 4], 6, 4)


def test_an_event_in_work_is_not_counted_as_seen(nats: VirtualNats) -> None:
    """A quiet stream moves what is seen, though never past an event that was given out."""

    async def use(consumer: Consumer) -> tuple[int, int]:
        event = await consumer.next()
        assert event is not None
        assert await consumer.next(12.0) is None
        before = consumer.seen_seq
        await consumer.done(event)
        return before, consumer.seen_seq

    put(nats, 1)
    put(nats, 2, table="b")
    assert reading(nats, use, ONLY_A) == (0, 1)


def test_a_consumer_knows_whether_more_is_there(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> list[bool]:
        await asyncio.sleep(1.0)
        found = []
        for _ in range(3):
            event = await consumer.next()
            assert event is not None
            await consumer.done(event)
            found.append(consumer.has_more)
        return found

    put(nats, 1, 2, 3)
    assert reading(nats, use) == [True, True, False]


# A name that the server remembers.

NAMED = Subscription(durable="reader")


def test_a_named_reader_without_a_store_continues_after_what_it_acknowledged(
    nats: VirtualNats,
) -> None:
    async def two(consumer: Consumer) -> None:
        for _ in range(2):
            event = await consumer.next()
            assert event is not None
            await consumer.done(event)
        await consumer.acknowledge()

    put(nats, 1, 2, 3, 4)
    reading(nats, two, NAMED)
    nats.past(1.0)
    assert nats.server.streams["CDC"].consumers["reader"].acknowledged == 2
    assert reading(nats, rest, NAMED) == [3, 4]
    assert reading(nats, rest, NAMED) == []
    put(nats, 5)
    assert reading(nats, rest, NAMED) == [5]


def test_a_named_reader_that_acknowledged_nothing_starts_with_all(nats: VirtualNats) -> None:
    async def nothing(consumer: Consumer) -> None:
        assert await consumer.next() is not None

    put(nats, 1, 2)
    new = Subscription(durable="reader", start=Start.NEW)
    reading(nats, nothing, NAMED)
    assert reading(nats, rest, new) == [1, 2], "it is not new, so nothing may be left out"


def test_a_store_takes_precedence_over_acknowledgements(nats: VirtualNats) -> None:
    put(nats, 1, 2, 3)
    assert reading(nats, rest, NAMED) == [1, 2, 3]
    marks = {"s": Watermark(Position(1, 0), 1)}
    assert reading(nats, rest, NAMED, marks) == [2, 3]


def test_acknowledgements_are_sent_now_and_then_and_at_the_end(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> None:
        await asyncio.sleep(1.0)
        for _ in range(249):
            event = await consumer.next()
            assert event is not None
            await consumer.done(event)

    put(nats, *range(1, 251))
    reading(nats, use, NAMED)
    nats.past(1.0)
    acknowledged = [said for said in nats.server.asked if said.startswith("ACK")]
    assert acknowledged == ["ACK 100", "ACK 200", "ACK 249"]


def test_a_program_that_takes_events_acknowledges_them_when_it_settles(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> None:
        await asyncio.sleep(1.0)
        await consumer.take(1.0)
        await consumer.settle(2)

    put(nats, 1, 2, 3)
    reading(nats, use, NAMED)
    nats.past(1.0)
    assert [said for said in nats.server.asked if said.startswith("ACK")] == ["ACK 2"]


def test_events_skipped_by_position_are_acknowledged_too(nats: VirtualNats) -> None:
    put(nats, 1, 2)
    put(nats, 1, 2)
    assert reading(nats, rest, NAMED) == [1, 2]
    nats.past(1.0)
    assert nats.server.streams["CDC"].consumers["reader"].acknowledged == 4


def test_a_name_that_another_reader_opens_is_lost(nats: VirtualNats) -> None:
    async def work() -> None:
        async with follow(nats.client(), NAMED, MemoryWatermarks()) as consumer:
            while True:
                await consumer.next()

    first = nats.begin(work())
    nats.past(2.0)
    second = nats.begin(work())
    nats.until(first.done)
    with pytest.raises(ReaderTakenOverError):
        first.result()
    nats.past(30.0)
    assert not second.done()


def test_a_name_that_is_taken_while_it_is_opened_is_taken_over(nats: VirtualNats) -> None:
    stream = nats.server.streams["CDC"]
    created = nats.server._created
    others = [2]

    def taken(*given: Any) -> Any:
        if others[0]:
            others[0] -= 1
            created(stream, {"name": "reader", "metadata": {"headrace_reader": "another"}})
        return created(*given)

    nats.server._created = taken  # type: ignore[method-assign,assignment]  # another reader is faster
    put(nats, 1)
    assert reading(nats, rest, NAMED) == [1]


def test_an_unnamed_readers_consumer_is_deleted_at_the_end(nats: VirtualNats) -> None:
    put(nats, 1)
    reading(nats, rest)
    nats.past(1.0)
    assert nats.server.streams["CDC"].consumers == {}


# Messages.


def test_an_unreadable_message_is_an_error_each_time_and_never_skipped(nats: VirtualNats) -> None:
    async def use(consumer: Consumer) -> list[int]:
        first = await consumer.next()
        assert first is not None
        await consumer.done(first)
        nats.server.put("cdc.a.insert", b"\xc1")
        put(nats, 3)
        for _ in range(2):
            with pytest.raises(DecodeError):
                await consumer.next()
        return [first.position.lsn, consumer.given_seq]

    put(nats, 1)
    assert reading(nats, use) == [1, 1]


@pytest.mark.parametrize("together", [False, True])
def test_a_large_event_is_loaded_before_it_is_given_out(
    nats: VirtualNats, monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    async def get(store: ObjectStore, name: str) -> bytes:
        return json.dumps(body(20, data={"id": name})).encode()

    async def use(consumer: Consumer) -> list[Event]:
        if together:
            await asyncio.sleep(1.0)
            return await consumer.take()
        found = []
        while (event := await consumer.next()) is not None:
            found.append(event)
            await consumer.done(event)
        return found

    monkeypatch.setattr(ObjectStore, "get", get)
    put(nats, 10)
    put(nats, 20, reference={"bucket": "large", "name": "x", "bytes": 5})
    small, large = reading(nats, use)
    assert small.data == {"id": 10}
    assert large.data == {"id": "x"}


def test_a_large_event_that_is_unavailable_stays_the_next_one(
    nats: VirtualNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def get(store: ObjectStore, name: str) -> bytes:
        tries.append(name)
        if len(tries) == 1:
            raise OSError("away")
        return json.dumps(body(20)).encode()

    async def use(consumer: Consumer) -> int:
        with pytest.raises(OSError, match="away"):
            await consumer.next()
        event = await consumer.next()
        assert event is not None
        return event.position.lsn

    monkeypatch.setattr(ObjectStore, "get", get)
    put(nats, 20, reference={"bucket": "large", "name": "x", "bytes": 5})
    assert reading(nats, use) == 20


def test_a_name_that_is_always_taken_is_an_error(nats: VirtualNats) -> None:
    nats.server._created = lambda *_: {  # type: ignore[method-assign]  # others are faster
        "error": {"code": 400, "err_code": 10148, "description": "consumer already exists"}
    }
    with pytest.raises(BadRequestError):
        reading(nats, rest, NAMED)
    assert nats.server.asked.count("CONSUMER.CREATE") == 3
    with pytest.raises(BadRequestError):
        reading(nats, rest)
    assert nats.server.asked.count("CONSUMER.CREATE") == 4
    subscriptions = [len(one.subs) for one in nats.server.connections]
    nats.past(1.0)
    assert all(len(one.subs) == 1 for one in nats.server.connections), subscriptions


def test_a_compressed_event_is_read_with_its_dictionary(nats: VirtualNats) -> None:
    samples = [
        json.dumps(body(lsn, data={"id": lsn, "name": "x" * 50})).encode() for lsn in range(99)
    ]
    dictionary = dictionaries.train(samples * 10)
    assert dictionary is not None
    compressor = dictionaries.Compressor(dictionary)
    key = dictionaries.key(compressor.dictionary_id)
    nats.server.put(f"$KV.{STREAMS.state}.{key}", dictionary)
    nats.server.put("cdc.a.insert", compressor.compress(samples[7]))
    put(nats, 8)
    assert reading(nats, rest) == [7, 8]
