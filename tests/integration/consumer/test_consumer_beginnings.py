"""The start of a consumer, and its errors: nothing is skipped, and no gap is reported if nothing is
missing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from headrace.consumer import (
    Consumer,
    MemoryWatermarks,
    RetentionGapError,
    Start,
    Subscription,
    Watermark,
    follow,
)
from headrace.consumer.pull import Delivered, Pull
from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.embedded.nats import EmbeddedNats
from headrace.lsn import Position

PATIENCE_S = 60.0


class AsItWas(MemoryWatermarks):
    """The store of an owner that dies before it stores anything: a mirror that has not committed
    yet.
    """

    def __init__(self, marks: Mapping[str, Watermark]) -> None:
        super().__init__()
        self._lanes.update(marks)


@pytest.fixture
async def client(server: EmbeddedNats) -> AsyncIterator[Client]:
    connection = await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
    await connection.jetstream().add_stream(
        StreamConfig(name="CDC", subjects=["cdc.>"], max_msgs=100)
    )
    yield connection
    await connection.close()


async def put(client: Client, *lsns: int, table: str = "users") -> None:
    for lsn in lsns:
        tx = events.transaction(1, Position(lsn, 0), "2025-12-12T12:00:34.338547Z", last=True)
        names = {"table": table, "schema": "public", "operation": "INSERT", "source": "s"}
        body = events.encode({**names, "data": {"id": lsn}, "tx": tx}, Encoding.MSGPACK)
        await client.jetstream().publish(f"cdc.{table}.insert", body)


async def take(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            if (event := await consumer.next()) is not None:
                found.append(event.position.lsn)
                await consumer.done(event)
    return found


async def passed(consumer: Consumer, stream_seq: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while consumer.seen_seq < stream_seq:
            assert await consumer.next(0.05) is None


async def test_a_store_that_has_seen_nothing_counts_for_more_than_what_was_acknowledged(
    client: Client,
) -> None:
    kept = {"": Watermark()}
    async with follow(client, Subscription(durable="mirror"), AsItWas(kept)) as consumer:
        await put(client, *range(1, 51))
        assert await take(consumer, 50) == list(range(1, 51))
    # Its owner was killed before it committed any of that.
    async with follow(client, Subscription(durable="mirror"), AsItWas(kept)) as consumer:
        assert await take(consumer, 50) == list(range(1, 51))


async def test_a_durable_reader_of_what_is_new_is_given_again_what_it_did_not_acknowledge(
    client: Client,
) -> None:
    subscription = Subscription(durable="billing", start=Start.NEW)
    async with follow(client, subscription, MemoryWatermarks()) as consumer:
        await put(client, 1, 2)
        assert (await consumer.next(PATIENCE_S)) is not None
    async with follow(client, subscription, MemoryWatermarks()) as consumer:
        assert await take(consumer, 2) == [1, 2]


async def test_what_is_discarded_behind_an_empty_streams_end_is_told_to_who_begins_there(
    client: Client,
) -> None:
    await put(client, *range(1, 121))
    with pytest.raises(RetentionGapError) as caught:
        async with follow(
            client, Subscription(start_seq=1), AsItWas({"": Watermark()})
        ) as consumer:
            await take(consumer, 1)
    assert (caught.value.first_lost, caught.value.last_lost) == (1, 20)


@pytest.mark.parametrize("durable", [None, "quiet"])
async def test_a_table_that_is_quiet_for_longer_than_the_stream_keeps_is_no_gap_when_the_connection_breaks(
    server: EmbeddedNats, client: Client, monkeypatch: pytest.MonkeyPatch, durable: str | None
) -> None:
    monkeypatch.setattr(sys.modules[follow.__module__], "GAP_CHECK_S", 0.0)
    subscription = Subscription(filters=("cdc.users.>",), durable=durable)
    await put(client, 1)
    async with follow(client, subscription, MemoryWatermarks()) as consumer:
        assert await take(consumer, 1) == [1]
        for first in (2, 102, 202):
            await put(client, *range(first, first + 100), table="noise")
            await passed(consumer, first + 99)
        await server.kill()
        await server.start()
        async with asyncio.timeout(PATIENCE_S):
            while not client.is_connected:  # noqa: ASYNC110  # its owner tells nobody else
                await asyncio.sleep(0.05)
        assert await consumer.next(0.1) is None
        await put(client, 400)
        assert await take(consumer, 1) == [400]


async def test_a_table_that_is_followed_in_addition_is_no_sign_of_another_stream(
    client: Client,
) -> None:
    marks = MemoryWatermarks()
    await put(client, 1)
    await put(client, 2, 3, table="other")
    await marks.save("s", Watermark(Position(1, 0), 1))
    await marks.save("", Watermark(stream_seq=3))
    async with follow(
        client, Subscription(filters=("cdc.users.>", "cdc.other.>")), marks
    ) as consumer:
        await put(client, 4, table="other")
        assert await take(consumer, 1) == [4]


@pytest.mark.parametrize("filters", [(), ("cdc.users.>",)])
async def test_a_message_that_only_the_streams_leader_has_is_not_passed_over(
    client: Client, filters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that delivers is behind: it has nothing more, while the stream's state does."""

    async def nothing(_: Pull, _wait_s: float) -> list[Delivered]:
        return []

    async def none_left(_: Pull) -> int:
        return 0

    await put(client, 10)
    async with follow(client, Subscription(filters=filters), MemoryWatermarks()) as consumer:
        first = await consumer.next(PATIENCE_S)
        assert first is not None
        await consumer.done(first)
        with monkeypatch.context() as behind:
            behind.setattr(Pull, "read", nothing)
            behind.setattr(Pull, "outstanding", none_left)
            await put(client, 20, table="others" if filters else "users")
            await put(client, 30)
            consumer._checked_at = 0.0
            assert await consumer.peek(0) is None
            assert consumer.seen_seq == (2 if filters else 1)
        found = await consumer.next(PATIENCE_S)
        assert found is not None
        assert found.stream_seq == (3 if filters else 2)
