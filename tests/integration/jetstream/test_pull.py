"""A pull from a real nats-server returns every message once and in order, despite faults in
between.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import OutboundBufferLimitError
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from headrace.consumer import (
    MemoryWatermarks,
    ReaderTakenOverError,
    RetentionGapError,
    Subscription,
    Transactions,
    follow,
    pull,
)
from headrace.consumer.pull import Delivered, Pull
from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.embedded.nats import EmbeddedNats
from headrace.jetstream.publishing import wire
from headrace.lsn import Position
from headrace.testing.proxy import Proxy

PATIENCE_S = 60.0
STREAM = StreamConfig(name="CDC", subjects=["cdc.>"])


async def connect(url: str, **options: Any) -> Client:
    return await nats.connect(url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, **options)


@pytest.fixture
async def client(server: EmbeddedNats) -> AsyncIterator[Client]:
    connection = await connect(server.url)
    await connection.jetstream().add_stream(STREAM)
    yield connection
    # A server that was killed just now may not take leave.
    with contextlib.suppress(OSError):
        await connection.close()


async def fill(client: Client, number: int, *, first: int = 0, size: int = 20) -> None:
    """So many messages, each with its number; half of them with headers, a third of them on another
    subject.
    """
    bodies = (b"%d " % one + b"x" * size for one in range(first, first + number))
    commands = [
        wire.with_headers(
            f"cdc.{'b' if one % 3 else 'a'}.insert",
            "",
            {"Nats-Msg-Id": str(one)} if one % 2 else {},
            body,
        )
        for one, body in enumerate(bodies, first)
    ]
    end = (await client.jetstream().stream_info("CDC")).state.messages + number
    for part in wire.parts(commands):
        await wire.hand_over(client, b"".join(part), len(part))
        await client.flush()
    async with asyncio.timeout(PATIENCE_S):
        while (await client.jetstream().stream_info("CDC")).state.messages < end:  # noqa: ASYNC110  # no event for it
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def reading(
    client: Client, *, durable: str | None = None, start: int | None = None, **more: Any
) -> AsyncIterator[Pull]:
    info = await client.jetstream().stream_info("CDC")
    made = Pull(client, "CDC", more.pop("filters", ()), durable, start, **more)
    await made.open(info.created)
    yield made
    await made.close()


async def read(
    pulled: Pull, number: int, meanwhile: Callable[[int], Awaitable[None]] | None = None
) -> list[Delivered]:
    """So many messages; `meanwhile` gets their number after each reading."""
    found: list[Delivered] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < number:
            found += await pulled.read(0.5)
            if meanwhile is not None:
                await meanwhile(len(found))
    return found


def numbers(found: list[Delivered]) -> list[int]:
    return [int(payload.split(b" ", 1)[0]) for _, _, payload, _ in found]


async def test_what_is_read_is_what_nats_pys_fetch_gives(client: Client) -> None:
    await fill(client, 100_000)
    async with reading(client) as pulled:
        found = await read(pulled, 100_000)
        assert await pulled.outstanding() == 0
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, filter_subjects=["cdc.b.>"])
    oracle = await client.jetstream().pull_subscribe("", stream="CDC", config=config)
    expected: list[tuple[int, bytes, bytes]] = []
    while len(expected) < 20_000:
        fetched = await oracle.fetch(1000)
        expected += [
            (one.metadata.sequence.stream, one.subject.encode(), one.data) for one in fetched
        ]
    assert [one[:3] for one in found if one[1] == b"cdc.b.insert"][: len(expected)] == expected
    assert numbers(found) == list(range(100_000))
    assert [seq for seq, *_ in found] == list(range(1, 100_001))
    async with reading(client, filters=("cdc.b.>",), start=30_001) as pulled:
        some = await read(pulled, 10_000)
    assert some == [one for one in found[30_000:] if one[1] == b"cdc.b.insert"][: len(some)]


@pytest.mark.parametrize("durable", [None, "reader"])
async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_while_it_sends(
    server: EmbeddedNats, client: Client, durable: str | None
) -> None:
    await fill(client, 20_000)
    killed_at: list[int] = []

    async def kill(came: int) -> None:
        if came // 6000 > len(killed_at):
            killed_at.append(came)
            await server.kill()
            await server.start()

    async with reading(client, durable=durable) as pulled:
        found = await read(pulled, 20_000, kill)
    assert len(killed_at) == 3
    assert numbers(found) == list(range(20_000))


async def test_nothing_is_lost_when_connections_break_with_messages_on_their_way(
    server: EmbeddedNats, client: Client
) -> None:
    """Their consumer needs no acknowledgement: what was sent into the broken connection never comes
    again on its own.
    """
    await fill(client, 20_000, size=500)
    cuts = 0

    async def cut(came: int) -> None:
        nonlocal cuts
        if came // 3000 > cuts:
            cuts += 1
            proxy.cut()

    async with Proxy(lambda: server.port) as proxy:
        through = await connect(f"nats://127.0.0.1:{proxy.port}")
        async with reading(through) as pulled:
            found = await read(pulled, 20_000, cut)
        await through.close()
    assert cuts > 3
    assert numbers(found) == list(range(20_000))


async def test_a_reader_that_always_has_something_left_takes_nothing_from_the_consumer_of_a_connection_before(
    server: EmbeddedNats, client: Client
) -> None:
    """The server may have come back with an older store, and the consumer's count be the same by
    chance.
    """
    await fill(client, 12_000)
    async with Proxy(lambda: server.port) as proxy:
        through = await connect(f"nats://127.0.0.1:{proxy.port}")
        async with reading(through) as pulled:
            found, held = await read(pulled, 1), pulled._held
            async with asyncio.timeout(PATIENCE_S):
                while len(found) + len(held) < pull.MESSAGES_MAX:  # noqa: ASYNC110  # no event for it
                    await asyncio.sleep(0.01)
            before, reconnects = pulled._name, through.stats["reconnects"]
            proxy.cut()
            async with asyncio.timeout(PATIENCE_S):
                while through.stats["reconnects"] == reconnects:  # noqa: ASYNC110  # nats-py has only a callback
                    await asyncio.sleep(0.01)
            # Half of the room is free again, and more is asked for.
            while len(held) > pull.MESSAGES_MAX // 2:
                found += await pulled.read(0)
            await through.flush()
            await client.flush()
            async with asyncio.timeout(PATIENCE_S):
                while (await client.jetstream().consumer_info("CDC", before)).num_waiting:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.01)
            assert len(found) + len(held) == pull.MESSAGES_MAX
            found += await read(pulled, 12_000 - len(found))
            assert pulled._name != before
        await through.close()
    assert numbers(found) == list(range(12_000))


@pytest.mark.parametrize("durable", [None, "reader"])
async def test_a_consumer_that_is_deleted_is_made_anew_where_it_was(
    client: Client, durable: str | None
) -> None:
    await fill(client, 20_000)
    deleted = 0

    async def delete(came: int) -> None:
        nonlocal deleted
        if came // 8000 > deleted:
            deleted += 1
            for info in await client.jetstream().consumers_info("CDC"):
                await client.jetstream().delete_consumer("CDC", info.name)

    async with reading(client, durable=durable) as pulled:
        found = await read(pulled, 20_000, delete)
    assert deleted == 2
    assert numbers(found) == list(range(20_000))


def forgetting(monkeypatch: pytest.MonkeyPatch, *lost: int) -> set[int]:
    """Messages of these numbers don't arrive, once; which of them are still to be lost."""
    heard, left = Pull._hear, set(lost)

    def forgetful(self: Pull, arrivals: list[Any]) -> None:
        known = [(int(one[3].split(b" ", 1)[0]) if one[1] else -1, one) for one in arrivals]
        kept = [one for number, one in known if number not in left]
        left.difference_update(number for number, _ in known)
        heard(self, kept)

    monkeypatch.setattr(Pull, "_hear", forgetful)
    return left


async def all_read(client: Client, count: int, left: set[int]) -> None:
    """All messages are read, though those that are left are forgotten once."""
    await fill(client, count)
    async with reading(client) as pulled:
        found = await read(pulled, count)
    assert not left
    assert numbers(found) == list(range(count))


async def test_a_message_that_does_not_arrive_is_noticed_and_asked_for_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await all_read(client, 3000, forgetting(monkeypatch, 500, 501, 1700))


async def test_the_last_message_that_does_not_arrive_is_noticed_by_a_heartbeat(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "HEARTBEAT_S", 0.5)
    await all_read(client, 30, forgetting(monkeypatch, 29))


async def test_a_server_that_falls_silent_is_asked_anew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "SILENCE_S", 0.2)
    async with reading(client) as pulled:
        name = pulled._name
        async with asyncio.timeout(PATIENCE_S):
            while pulled._name == name:
                assert await pulled.read(0.3) == []
        await fill(client, 10)
        assert numbers(await read(pulled, 10)) == list(range(10))


async def test_consumers_that_are_not_needed_any_more_do_not_stay(client: Client) -> None:
    await fill(client, 100)
    async with reading(client) as pulled:
        await read(pulled, 100)
        for _ in range(3):
            await client.jetstream().delete_consumer("CDC", pulled._name)
            await fill(client, 1, first=100)
            await read(pulled, 1)
    async with asyncio.timeout(PATIENCE_S):
        while await client.jetstream().consumers_info("CDC"):  # noqa: ASYNC110  # no event for it
            await asyncio.sleep(0.02)


async def test_a_slow_reader_holds_no_more_than_its_room(client: Client) -> None:
    await fill(client, 5000, size=2000)
    async with reading(client, messages_max=1000) as pulled:
        found = 0
        while found < 5000:
            found += len(await read(pulled, 1))
            await client.flush()
            info = await client.jetstream().consumer_info("CDC", pulled._name)
            assert info.delivered is not None
            assert info.delivered.consumer_seq - found <= 1000
    async with reading(client) as pulled:
        pulled._room.bytes_max = 200_000
        await pulled.read(PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while len(await read(pulled, 1)) and pulled._received < 5000:
                await client.flush()
                assert (
                    sum(len(payload) for _, _, payload, _ in pulled._held)
                    <= 200_000 + pull.BYTES_MAX * 2
                )


async def test_a_reading_that_fails_after_messages_came_leaves_them_to_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 40)
    async with reading(client, messages_max=10) as pull:

        async def full(*_: object, **__: object) -> None:
            raise OutboundBufferLimitError

        async with asyncio.timeout(PATIENCE_S):
            while len(pull._held) < 10:  # noqa: ASYNC110  # no event for it; the room must be full
                await asyncio.sleep(0.01)
        with monkeypatch.context() as patched:
            patched.setattr(client, "publish", full)
            with pytest.raises(OutboundBufferLimitError):
                await pull.read(1)
        await pull.client.jetstream().stream_info("CDC")
        found: list[Delivered] = []
        async with asyncio.timeout(60):
            while len(found) < 40:
                found += await pull.read(1)
    assert [one[0] for one in found] == list(range(1, 41))


async def test_a_message_larger_than_the_room_comes_too_and_those_around_it(client: Client) -> None:
    await fill(client, 10)
    await fill(client, 3, first=10, size=500_000)
    await fill(client, 10, first=13)
    info = await client.jetstream().stream_info("CDC")
    pulled = Pull(client, "CDC", (), None, None)
    pulled._room.bytes_max = 100_000
    await pulled.open(info.created)
    found = await read(pulled, 23)
    await pulled.close()
    assert numbers(found) == list(range(23))


async def test_what_is_given_again_for_want_of_an_acknowledgement_is_not_given_out_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "ACK_WAIT_S", 0.3)
    await fill(client, 200)
    async with reading(client, durable="reader") as pulled:
        found = await read(pulled, 200)
        async with asyncio.timeout(PATIENCE_S):
            while (await client.jetstream().consumer_info("CDC", "reader")).num_redelivered == 0:
                assert await pulled.read(0.2) == []
        await pulled.done(found[-1][0])
        await fill(client, 5, first=200)
        assert numbers(await read(pulled, 5)) == list(range(200, 205))


async def test_what_is_not_done_can_be_acknowledged_after_the_consumer_was_made_anew(
    client: Client,
) -> None:
    await fill(client, 300)
    async with reading(client, durable="reader") as pulled:
        await read(pulled, 300)
        await pulled.done(100)
        await client.jetstream().delete_consumer("CDC", "reader")
        await fill(client, 1, first=300)
        assert numbers(await read(pulled, 1)) == [300]
        info = await client.jetstream().consumer_info("CDC", "reader")
        assert info.ack_floor is not None
        assert info.ack_floor.stream_seq == 100
        await pulled.done(250)
        async with asyncio.timeout(PATIENCE_S):
            while info.ack_floor is None or info.ack_floor.stream_seq < 250:
                await asyncio.sleep(0.02)
                info = await client.jetstream().consumer_info("CDC", "reader")
        assert info.ack_floor.stream_seq == 250


async def test_a_reader_whose_name_another_opens_is_told_and_the_other_reads_all(
    client: Client,
) -> None:
    await fill(client, 100)
    async with follow(client, Subscription(durable="reader"), MemoryWatermarks()):
        first = Pull(client, "CDC", (), "reader", None)
        await client.jetstream().delete_consumer("CDC", "reader")
        await first.open((await client.jetstream().stream_info("CDC")).created)
        await read(first, 10)
        second = Pull(client, "CDC", (), "reader", None)
        await client.jetstream().delete_consumer("CDC", "reader")
        await second.open((await client.jetstream().stream_info("CDC")).created)
        with pytest.raises(ReaderTakenOverError):
            await read(first, 1000)
        assert numbers(await read(second, 100)) == list(range(100))
        await first.close()
        await second.close()


async def test_a_stream_made_anew_while_it_is_followed_is_told(client: Client) -> None:
    await fill(client, 20)
    async with reading(client) as pulled:
        await read(pulled, 20)
        await client.jetstream().delete_stream("CDC")
        await client.jetstream().add_stream(STREAM)
        await fill(client, 30, first=500)
        with pytest.raises(RetentionGapError) as caught:
            await read(pulled, 100)
    assert caught.value.rewritten


async def test_an_older_copy_of_the_stream_is_told_also_when_it_has_grown_past_what_was_read(
    server: EmbeddedNats, client: Client, tmp_path: Path
) -> None:
    await fill(client, 20)
    await server.stop()
    shutil.copytree(server.folder / "jetstream", tmp_path / "copy")
    await server.start()
    async with asyncio.timeout(PATIENCE_S):
        while not client.is_connected:  # noqa: ASYNC110  # a test's own patience
            await asyncio.sleep(0.02)
    await fill(client, 10, first=20)
    writer = await connect(server.url)
    async with Proxy(lambda: server.port) as proxy:
        through = await connect(f"nats://127.0.0.1:{proxy.port}")
        async with reading(through) as pulled:
            await read(pulled, 30)
            proxy.refuse()
            await server.stop()
            shutil.rmtree(server.folder / "jetstream")
            shutil.copytree(tmp_path / "copy", server.folder / "jetstream")
            await server.start()
            async with asyncio.timeout(PATIENCE_S):
                while not writer.is_connected:  # noqa: ASYNC110  # a test's own patience
                    await asyncio.sleep(0.02)
            # As many as were lost and more: the numbers show no loss.
            await fill(writer, 50, first=700)
            proxy.restore()
            with pytest.raises(RetentionGapError) as caught:
                await read(pulled, 100)
        await through.close()
    await writer.close()
    assert caught.value.rewritten


async def test_a_durable_reader_takes_a_transaction_of_more_messages_than_a_server_leaves_unacknowledged_by_default(
    client: Client,
) -> None:
    count = 25_000
    payload = {
        "table": "a",
        "schema": "public",
        "operation": "INSERT",
        "source": "s",
        "data": {"id": 1},
    }
    bodies = [
        events.encode(
            payload | {"tx": events.transaction(9, Position(9, seq), None, last=seq == count - 1)},
            Encoding.MSGPACK,
        )
        for seq in range(count)
    ]
    for part in wire.parts(wire.with_headers("cdc.a.insert", "", {}, body) for body in bodies):
        await wire.hand_over(client, b"".join(part), len(part))
        await client.flush()
    async with (
        asyncio.timeout(PATIENCE_S),
        follow(client, Subscription(durable="r"), MemoryWatermarks()) as consumer,
    ):
        async for transaction in Transactions(consumer):
            assert [event.position.seq for event in transaction.events] == list(range(count))
            break
