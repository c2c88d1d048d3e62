"""The consumer library against a real nats-server: exactly once by position, gaps never silent."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from headrace.consumer import (
    Consumer,
    Event,
    FileWatermarks,
    MemoryWatermarks,
    RetentionGapError,
    Subscription,
    Watermark,
    follow,
)
from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.lsn import Position


def payload(
    lsn: int, seq: int = 0, table: str = "users", source: str = "s", operation: str = "INSERT"
) -> events.Payload:
    return {
        "table": table,
        "schema": "public",
        "operation": operation,
        "data": {"id": lsn},
        "source": source,
        "tx": events.transaction(1, Position(lsn, seq), "2025-12-12T12:00:34.338547Z", last=True),
    }


async def put(
    client: Client, *payloads: events.Payload, encoding: Encoding = Encoding.MSGPACK
) -> None:
    for body in payloads:
        subject = f"cdc.{body['table']}.{body['operation'].lower()}"
        await client.jetstream().publish(subject, events.encode(body, encoding))


async def take(consumer: Consumer, count: int) -> list[Event]:
    found = []
    async with asyncio.timeout(10):
        async for event in consumer:
            found.append(event)
            await consumer.done(event)
            if len(found) == count:
                break
    return found


async def test_both_encodings_give_the_same_event(client: Client) -> None:
    await put(client, payload(10))
    await put(client, payload(11), encoding=Encoding.JSON)
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        first, second = await take(consumer, 2)
    assert (first.position, second.position) == (Position(10, 0), Position(11, 0))
    assert first.data == {"id": 10}
    assert second.data == {"id": 11}
    assert (first.table, first.operation, first.source) == (
        second.table,
        second.operation,
        second.source,
    )


async def test_an_event_at_or_before_the_watermark_is_never_given_out_again(client: Client) -> None:
    await put(client, payload(10), payload(10, 1), payload(10), payload(10, 1), payload(12))
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        found = await take(consumer, 3)
    assert [event.position for event in found] == [
        Position(10, 0),
        Position(10, 1),
        Position(12, 0),
    ]


async def test_each_source_has_a_watermark_of_its_own(client: Client) -> None:
    await put(
        client,
        payload(50, source="a"),
        payload(10, source="b"),
        payload(51, source="a"),
        payload(11, source="b"),
    )
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        found = await take(consumer, 4)
    assert [(event.source, event.position.lsn) for event in found] == [
        ("a", 50),
        ("b", 10),
        ("a", 51),
        ("b", 11),
    ]


async def test_a_schema_event_is_given_out_and_does_not_advance_the_watermark(
    client: Client,
) -> None:
    await put(client, payload(10, operation="SCHEMA"), payload(10))
    store = MemoryWatermarks()
    async with follow(client, Subscription(), store) as consumer:
        found = await take(consumer, 2)
    assert [event.operation for event in found] == ["SCHEMA", "INSERT"]
    assert (await store.load())["s"].position == Position(10, 0)


async def test_a_restart_goes_on_behind_the_stored_watermark(
    client: Client, tmp_path: Path
) -> None:
    await put(client, *(payload(lsn) for lsn in range(1, 21)))
    async with follow(
        client, Subscription(durable="billing"), FileWatermarks(tmp_path / "marks")
    ) as consumer:
        await take(consumer, 7)
        # Given out and not done: a crash here must bring it again.
        assert (await consumer.next()) is not None
    async with follow(
        client, Subscription(durable="billing"), FileWatermarks(tmp_path / "marks")
    ) as consumer:
        found = await take(consumer, 13)
    assert [event.position.lsn for event in found] == list(range(8, 21))


async def test_a_durable_consumer_without_a_store_goes_on_in_order_behind_what_it_acknowledged(
    client: Client,
) -> None:
    await put(client, *(payload(lsn) for lsn in range(1, 301)))
    async with follow(client, Subscription(durable="billing"), MemoryWatermarks()) as consumer:
        await take(consumer, 250)
    async with follow(client, Subscription(durable="billing"), MemoryWatermarks()) as consumer:
        found = await take(consumer, 50)
    assert [event.position.lsn for event in found] == list(range(251, 301))


async def test_the_events_of_a_batch_come_one_by_one_and_its_lane_is_the_table(
    client: Client,
) -> None:
    batch = [payload(10), payload(10, 1), payload(12)]
    await client.jetstream().publish("cdc.users.batch", events.encode(batch, Encoding.MSGPACK))
    store = MemoryWatermarks()
    await store.save("s/public.users", Watermark(Position(10, 0), 0))
    async with follow(client, Subscription(), store) as consumer:
        found = await take(consumer, 2)
    assert [event.position for event in found] == [Position(10, 1), Position(12, 0)]
    assert (await store.load())["s/public.users"] == Watermark(Position(12, 0), 1)


async def test_a_consumer_that_fell_behind_the_retention_is_told_at_its_start(
    client: Client, tmp_path: Path
) -> None:
    await put(client, *(payload(lsn) for lsn in range(1, 11)))
    async with follow(client, Subscription(), FileWatermarks(tmp_path / "marks")) as consumer:
        await take(consumer, 3)
    await client.jetstream().purge_stream("CDC", seq=8)
    with pytest.raises(RetentionGapError) as caught:
        async with follow(client, Subscription(), FileWatermarks(tmp_path / "marks")):
            pass
    assert (caught.value.first_lost, caught.value.last_lost) == (4, 7)


@contextlib.asynccontextmanager
async def overtaken(client: Client) -> AsyncIterator[Consumer]:
    """A consumer of messages that are gone before it has read them."""
    await put(client, payload(1))
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        await take(consumer, 1)
        # More than is read ahead.
        large = {"data": {"text": "x" * 900_000}}
        await put(client, *(payload(lsn) | large for lsn in range(2, 14)))
        await client.jetstream().purge_stream("CDC", seq=13)
        yield consumer


async def test_a_consumer_that_falls_behind_while_following_is_told(client: Client) -> None:
    async with overtaken(client) as consumer:
        with pytest.raises(RetentionGapError) as caught:
            await take(consumer, 12)
    assert consumer.seen_seq == caught.value.first_lost - 1
    assert 3 < caught.value.first_lost < 12
    assert caught.value.last_lost == 12


async def test_a_gap_is_told_also_when_the_look_for_it_failed_at_first(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with overtaken(client) as consumer:

        async def unanswered(*_: object) -> None:
            raise NatsTimeoutError

        with monkeypatch.context() as patched:
            patched.setattr(JetStreamContext, "stream_info", unanswered)
            with pytest.raises(NatsTimeoutError):
                await take(consumer, 12)
        with pytest.raises(RetentionGapError):
            await take(consumer, 12)


async def test_messages_that_no_filter_wants_may_be_discarded_without_a_gap(
    client: Client, tmp_path: Path
) -> None:
    subscription = Subscription(filters=("cdc.users.>",))
    await put(
        client, payload(1), *(payload(lsn, table="noise") for lsn in range(2, 30)), payload(30)
    )
    async with follow(client, subscription, FileWatermarks(tmp_path / "marks")) as consumer:
        await take(consumer, 2)
    await client.jetstream().purge_stream("CDC", seq=30)
    await put(client, payload(31))
    async with follow(client, subscription, FileWatermarks(tmp_path / "marks")) as consumer:
        found = await take(consumer, 1)
    assert found[0].position.lsn == 31


async def test_nothing_counts_as_seen_that_is_on_its_way(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at the stream that are as short as its answers take, so that messages come when nobody
    waits for them.
    """
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules[follow.__module__], "GAP_CHECK_S", 0.0)
    number = 0

    async def publish() -> None:
        nonlocal number
        while True:
            number += 1
            await put(client, payload(number))
            await asyncio.sleep(0.001 * (number % 7))

    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        publishing = asyncio.create_task(publish())
        given = 0
        async with asyncio.timeout(60):
            while given < 300:
                event = await consumer.next(0.002)
                if event is None:
                    assert consumer.seen_seq == given, "what was not given out yet"
                else:
                    assert event.stream_seq == given + 1
                    given = event.stream_seq
                    await consumer.done(event)
        publishing.cancel()


async def made_anew(
    client: Client, subscription: Subscription, *positions: int
) -> MemoryWatermarks:
    """Apply five changes, and make another stream of this name, with changes at these LSNs."""
    marks = MemoryWatermarks()
    await put(client, *(payload(lsn) for lsn in range(1, 6)))
    async with follow(client, subscription, marks) as consumer:
        await take(consumer, 5)
    await client.jetstream().delete_stream("CDC")
    await client.jetstream().add_stream(StreamConfig(name="CDC", subjects=["cdc.>"]))
    await put(client, *(payload(lsn) for lsn in positions))
    return marks


@pytest.mark.parametrize("durable", [None, "billing"])
async def test_a_stream_made_anew_that_has_grown_past_the_watermark_is_told_where_it_has_what_was_not_applied(
    client: Client, durable: str | None
) -> None:
    subscription = Subscription(durable=durable)
    marks = await made_anew(client, subscription, 4, 5, 6, 7, 8, 9, 10)
    with pytest.raises(RetentionGapError) as caught:
        async with follow(client, subscription, marks) as consumer:
            await take(consumer, 1)
    assert caught.value.rewritten


@pytest.mark.parametrize("durable", [None, "billing"])
async def test_a_stream_made_anew_that_has_nothing_new_before_the_watermark_is_followed_from_there(
    client: Client, durable: str | None
) -> None:
    subscription = Subscription(durable=durable)
    marks = await made_anew(client, subscription, 1, 2, 3, 3, 4, 5, 6, 7)
    async with follow(client, subscription, marks) as consumer:
        # Nothing is given out of what was there to see that it is the same.
        found = await take(consumer, 2)
        assert [event.position.lsn for event in found] == [6, 7]
        assert await consumer.next(0.1) is None


async def test_a_watermark_beyond_what_the_filters_want_is_no_sign_of_another_stream(
    client: Client,
) -> None:
    marks, subscription = MemoryWatermarks(), Subscription(filters=("cdc.users.>",))
    await put(client, payload(1), payload(2, table="noise"), payload(3, table="noise"))
    await marks.save("s", Watermark(Position(1, 0), 3))
    await put(client, payload(4))
    async with follow(client, subscription, marks) as consumer:
        assert [event.position.lsn for event in await take(consumer, 1)] == [4]
