"""Atomic groups against a real nats-server: whole or not at all, in order, once; nothing behind
what was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy, StreamConfig

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.embedded.nats import EmbeddedNats
from headrace.jetstream.publishing.errors import FencedError, IngestError, StreamFullError
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Window
from headrace.jetstream.publishing.stream_tail import StreamTail, TailError
from headrace.metrics.counters import Counters
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.resume_point import reader_of
from headrace.testing.oracle import stored
from headrace.testing.proxy import Proxy

STREAM = "CHAIN"
CONFIG = StreamConfig(name=STREAM, subjects=["chain.>"], duplicate_window=0.1, allow_atomic=True)
PATIENCE_S = 60.0


async def connect(url: str) -> Client:
    return await nats.connect(url, reconnect_time_wait=0.05, max_reconnect_attempts=-1)


@pytest.fixture
async def client(server: EmbeddedNats) -> AsyncIterator[Client]:
    connection = await connect(server.url)
    await connection.jetstream().add_stream(CONFIG)
    yield connection
    with contextlib.suppress(OSError):
        await connection.close()


def event(source: str, lsn: int, pad: int = 10) -> Outgoing:
    names = {
        "operation": "INSERT",
        "table": source,
        "source": source,
        "msg_id": f"{lsn:x}-{source}-insert",
    }
    payload = {**names, "tx": {"lsn": lsn, "seq": 0}, "pad": "x" * pad}
    return Outgoing(
        f"chain.{source}", str(names["msg_id"]), events.encode(payload, Encoding.MSGPACK)
    )


@contextlib.asynccontextmanager
async def piped(
    client: Client, source: str = "a", ack_timeout_s: float = 5.0
) -> AsyncIterator[tuple[AtomicPipe, int]]:
    """A pipe as the publisher has it, and the next number of its source."""
    tail = StreamTail(client.jetstream(), STREAM, reader_of(source))
    pipe = AtomicPipe(client, tail, Counters(), Window(100, 1 << 20, ack_timeout_s))
    found = await tail.after(0)
    await pipe.open(found)
    try:
        yield pipe, 1 + (found.position.lsn if found.position else 0)
    finally:
        await pipe.close()


async def lsns(url: str, source: str = "a") -> list[int]:
    return [
        one.payload["tx"]["lsn"]
        for one in await stored(url, STREAM)
        if one.payload["source"] == source
    ]


async def test_nothing_is_stored_behind_a_group_that_was_refused(
    client: Client, server: EmbeddedNats
) -> None:
    await client.jetstream().update_stream(
        CONFIG.evolve(discard=DiscardPolicy.NEW, max_bytes=20_000)
    )
    async with piped(client) as (pipe, _):
        await pipe.publish_all([event("a", lsn, 900) for lsn in range(1, 91)])
        await pipe.flush()
        # This message would fit.
        await pipe.publish(event("a", 91))
        for _ in range(3):
            with pytest.raises(StreamFullError):
                await pipe.drain()
        assert pipe.acked == 0
    assert await lsns(server.url) == []


async def test_groups_and_strangers_messages_in_between_keep_their_order(
    client: Client, server: EmbeddedNats
) -> None:
    async def strangers() -> None:
        # Not without end: on a slow machine no group would come between two of them.
        for _ in range(50):
            await client.jetstream().publish("chain.other", event("other", 1).payload)
            await asyncio.sleep(0.01)

    other = asyncio.create_task(strangers())
    async with piped(client) as (pipe, _), asyncio.timeout(PATIENCE_S):
        for lsn in range(1, 601):
            await pipe.publish(event("a", lsn))
            if lsn % 7 == 0 and not pipe.flying:
                await pipe.flush()
        await pipe.drain()
        assert pipe.acked == pipe.published == 600
    await other
    # The server lets a stream have 1,000 of them.
    assert await client.jetstream().consumers_info(STREAM) == []
    assert await lsns(server.url) == list(range(1, 601))


async def test_groups_are_stored_once_and_in_order_when_the_server_is_killed_again_and_again(
    client: Client, server: EmbeddedNats
) -> None:
    async def life(last: int) -> None:
        async with piped(client) as (pipe, first):
            for lsn in range(first, last + 1):
                await pipe.publish(event("a", lsn, 500))
                if lsn % 37 == 0:
                    await pipe.flush()
            await pipe.drain()

    async def killing() -> None:
        for pause in (0.05, 0.11, 0.02):
            await asyncio.sleep(pause)
            await server.kill()
            await server.start()

    killer = asyncio.create_task(killing())
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await life(5000)
                break
            except (IngestError, TailError, NatsError, TimeoutError):
                await asyncio.sleep(0.05)
    await killer
    assert await lsns(server.url) == list(range(1, 5001))


async def test_a_group_whose_end_comes_late_is_refused_when_another_life_has_gone_on(
    client: Client, server: EmbeddedNats
) -> None:
    async with Proxy(lambda: server.port) as proxy:
        through = await connect(f"nats://127.0.0.1:{proxy.port}")
        async with piped(through, ack_timeout_s=1.0) as (pipe, _):
            proxy.hold_at = b"Nats-Batch-Commit"
            await pipe.publish_all([event("a", lsn) for lsn in range(1, 51)])
            with pytest.raises(IngestError):
                await pipe.drain()
            async with piped(client) as (another, first):
                assert first == 1
                await another.publish_all([event("a", lsn) for lsn in range(1, 31)])
                await another.drain()
            proxy.restore()
            await through.flush(10)
        await through.close()
    assert await lsns(server.url) == list(range(1, 31))


async def test_a_superseded_life_stores_nothing_more(client: Client, server: EmbeddedNats) -> None:
    async with piped(client) as (old, _), piped(client) as (new, _):
        await new.publish_all([event("a", lsn) for lsn in range(1, 11)])
        await new.drain()
        await old.publish_all([event("a", lsn) for lsn in range(1, 6)])
        for _ in range(2):
            with pytest.raises(FencedError):
                await old.drain()
    assert await lsns(server.url) == list(range(1, 11))
