"""Both ways of publishing against a real nats-server: never a hole, never a double, never a
superseded publisher.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.embedded.nats import EmbeddedNats
from headrace.jetstream.publishing.errors import (
    FencedError,
    IngestError,
    MessageTooLargeError,
    StreamFullError,
    TailLostError,
)
from headrace.jetstream.publishing.fast import FastPipe
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.state import Cell
from headrace.lsn import ORIGIN, Position
from headrace.metrics.counters import Counters
from headrace.publisher.chain_pipe import ChainPipe
from headrace.publisher.resume_point import Progress, ResumePoint, find_resume_point, reader_of
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats

STREAM = "CHAIN"
WAYS: dict[str, type[ChainPipe | FastPipe]] = {"chain": ChainPipe, "fast": FastPipe}
# Of the test that runs.
way: type[ChainPipe | FastPipe] = ChainPipe


@pytest.fixture(autouse=True, params=WAYS)
def _each_way(request: pytest.FixtureRequest) -> None:
    """Both ways make the same promises."""
    global way  # noqa: PLW0603  # simpler than handing it through every test to `publisher`
    way = WAYS[request.param]


@dataclass(slots=True)
class Publisher:
    """One source's chain, as the publisher service drives it."""

    client: Client
    source: str
    tail: StreamTail
    ingest: ChainPipe | FastPipe
    # Where the source's numbering begins: tables of two sources are disjoint, LSNs need not be.
    next: int = 1

    async def publish(self, count: int, pad: int = 10) -> None:
        for _ in range(count):
            await self.ingest.publish(event(self.source, self.next, pad))
            self.next += 1

    async def deliver(self, *pads: int) -> None:
        """Publish a message of each of these sizes, and wait for all of them."""
        for pad in pads:
            await self.publish(1, pad)
        await self.ingest.drain()


def event(source: str, lsn: int, pad: int = 10) -> Outgoing:
    msg_id = f"{lsn:x}-{source}-insert"
    payload = {
        "operation": "INSERT",
        "table": source,
        "source": source,
        "msg_id": msg_id,
        "tx": {"lsn": lsn, "seq": 0},
        "pad": "x" * pad,
    }
    return Outgoing(f"chain.{source}", msg_id, events.encode(payload, Encoding.MSGPACK))


async def made(connect: Any, **settings: Any) -> Client:
    """A client of a server with an empty stream."""
    client: Client = await connect()
    await make_stream(client, **settings)
    return client


async def make_stream(client: Client, **settings: Any) -> None:
    config = StreamConfig(
        name=STREAM,
        subjects=["chain.>"],
        storage=StorageType.FILE,
        duplicate_window=0.1,
        allow_batched=True,
    )
    await client.jetstream().add_stream(config.evolve(**settings))


@pytest.fixture
async def connect(server: EmbeddedNats) -> AsyncIterator[Any]:
    clients: list[Client] = []

    async def ignore(_: Exception) -> None:
        return

    async def one(url: str = server.url) -> Client:
        client = await nats.connect(
            url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, error_cb=ignore
        )
        clients.append(client)
        return client

    yield one
    for client in clients:
        with contextlib.suppress(Exception):
            await client.close()
    # A connection that was still connecting when its client was closed ends in the loop's own time.
    await asyncio.sleep(0.1)
    with warnings.catch_warnings():
        # nats-py leaves the socket of an attempt to reconnect that failed half-way to the garbage
        # collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def publisher(
    client: Client, source: str, *, ack_timeout_s: float = 30.0, window: int = 500
) -> Publisher:
    tail = StreamTail(client.jetstream(), STREAM, reader_of(source))
    ingest = way(client, tail, Counters(), Window(window, 1 << 22, ack_timeout_s))
    found = await tail.after(0)
    await ingest.open(found)
    return Publisher(
        client, source, tail, ingest, next=1 + (found.position.lsn if found.position else 0)
    )


async def published(client: Client, count: int) -> Publisher:
    """Publish messages of source a, and wait until they are stored."""
    one = await publisher(client, "a")
    await one.publish(count)
    await one.ingest.drain()
    return one


async def lsns(url: str, source: str | None = None) -> list[int]:
    return [
        e.payload["tx"]["lsn"]
        for e in await stored(url, STREAM)
        if source in (None, e.payload["source"])
    ]


async def test_what_is_published_is_stored_once_and_in_order(
    server: EmbeddedNats, connect: Any
) -> None:
    client = await made(connect)
    one = await published(client, 3000)
    assert one.ingest.acked == one.ingest.published == 3000
    assert await lsns(server.url) == list(range(1, 3001))
    assert one.ingest.stored_seq == 3000


async def test_a_full_stream_never_stores_what_follows_a_refused_message(
    server: EmbeddedNats, connect: Any
) -> None:
    client = await made(connect, discard=DiscardPolicy.NEW, max_bytes=60_000)
    one = await publisher(client, "a")
    with pytest.raises(StreamFullError):
        # Large ones among small ones: a small one would still fit where a large one did not.
        await one.deliver(*(9000 if number % 3 == 0 else 10 for number in range(200)))
    kept = await lsns(server.url)
    assert kept == list(range(1, len(kept) + 1))
    assert 0 < len(kept) < 200
    # Its next life meets the same refusal at its first message, and still leaves no hole.
    again = await publisher(client, "a")
    assert again.next == len(kept) + 1
    with pytest.raises(StreamFullError):
        await again.deliver(9000, *[1] * 50)
    assert await lsns(server.url) == kept
    await client.jetstream().update_stream(
        name=STREAM, subjects=["chain.>"], max_bytes=10_000_000, allow_batched=True
    )
    third = await publisher(client, "a")
    await third.publish(200 - len(kept), pad=9000)
    await third.ingest.drain()
    assert await lsns(server.url) == list(range(1, 201))


async def test_a_superseded_publisher_is_refused(server: EmbeddedNats, connect: Any) -> None:
    client, other = await made(connect), await connect()
    zombie = await publisher(client, "a")
    await zombie.publish(10)
    await zombie.ingest.drain()
    heir = await publisher(other, "a")
    assert heir.next == 11
    await heir.publish(10)
    await heir.ingest.drain()
    await asyncio.sleep(0.3)
    with pytest.raises(IngestError):
        await zombie.deliver(*[10] * 30)
    # The message right after the successor's last one fits from either publisher, which is harmless.
    kept = await lsns(server.url)
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) >= 20


async def test_two_publishers_that_began_at_the_same_tail_store_everything_once(
    server: EmbeddedNats, connect: Any
) -> None:
    client, other = await made(connect), await connect()
    both = [await publisher(client, "a"), await publisher(other, "a")]

    async def push(one: Publisher) -> None:
        with contextlib.suppress(IngestError):
            await one.publish(2000)
            await one.ingest.drain()

    await asyncio.gather(*(push(one) for one in both))
    heir = await publisher(client, "a")
    await heir.publish(2001 - heir.next)
    await heir.ingest.drain()
    assert await lsns(server.url) == list(range(1, 2001))


async def test_another_source_in_between_breaks_the_chain_harmlessly(
    server: EmbeddedNats, connect: Any
) -> None:
    clients = [await made(connect), await connect()]
    both = [
        await publisher(c, name, ack_timeout_s=1.0, window=50)
        for c, name in zip(clients, "ab", strict=True)
    ]

    async def push(one: Publisher) -> None:
        for number in range(60):
            await one.publish(1 + number % 11)
            await one.ingest.catch_up()
            await asyncio.sleep(0.001)
        await one.ingest.drain()

    async with asyncio.timeout(120):
        await asyncio.gather(*(push(one) for one in both))
    for one in both:
        assert await lsns(server.url, one.source) == list(range(1, one.next))


async def test_a_large_window_is_chained_again_while_its_acknowledgements_come_in(
    server: EmbeddedNats, connect: Any
) -> None:
    client, other = await made(connect), await connect()
    one = await publisher(client, "a", ack_timeout_s=2.0)
    # Another's message comes first: the whole window is refused, and is more than nats-py buffers
    # unflushed.
    await other.jetstream().publish("chain.b", event("b", 1).payload)
    await one.publish(400, pad=9000)
    await one.ingest.drain()
    assert await lsns(server.url, "a") == list(range(1, 401))


async def test_a_server_killed_in_the_middle_loses_and_doubles_nothing(
    server: EmbeddedNats, connect: Any
) -> None:
    client = await made(connect)
    target = 6000

    async def push() -> None:
        while True:
            try:
                one = await publisher(client, "a", ack_timeout_s=1.0)
                while one.next <= target:
                    await one.publish(min(100, target + 1 - one.next))
                    await asyncio.sleep(0.005)
                await one.ingest.drain()
            except (IngestError, nats.errors.Error, TimeoutError):
                await asyncio.sleep(0.05)
            else:
                return

    pushing = asyncio.create_task(push())
    for _ in range(3):
        await asyncio.sleep(0.15)
        await server.kill()
        await server.start()
    async with asyncio.timeout(120):
        await pushing
    assert await lsns(server.url) == list(range(1, target + 1))


async def test_a_connection_that_was_replaced_ends_the_chain(
    server: EmbeddedNats, connect: Any
) -> None:
    client = await made(connect)
    one = await published(client, 10)
    await server.kill()
    await server.start()
    async with asyncio.timeout(10):
        await client.flush()
    # Nothing was on its way; still, what the server knows now has to be read again.
    with pytest.raises(IngestError, match="connection was lost"):
        await one.ingest.catch_up()


async def with_an_older_store(server: Any, folder: Path, between: Any) -> None:
    """Run `between`, and put the store back to what it was before."""
    await server.stop()
    shutil.copytree(server.folder / "jetstream", folder)
    await server.start()
    await between()
    await server.kill()
    shutil.rmtree(server.folder / "jetstream")
    shutil.copytree(folder, server.folder / "jetstream")
    await server.start()


async def place_of(client: Client, source: str) -> tuple[ResumePoint, Cell]:
    js = client.jetstream()
    cell = Cell(await js.key_value("state"), f"progress.{source}")
    return await find_resume_point(cell, StreamTail(js, STREAM, reader_of(source))), cell


async def write_down(one: Publisher, cell: Cell, place: ResumePoint) -> None:
    last = one.next - 1
    created = place.progress.stream_created
    progress = Progress(
        Position(last, 0), one.ingest.stored_seq, event(one.source, last).msg_id, created, last
    )
    await cell.write(progress.encode())


@pytest.mark.parametrize("overwritten", [False, True])
async def test_a_lost_tail_is_noticed_by_the_next_life(
    server: EmbeddedNats, connect: Any, tmp_path: Path, *, overwritten: bool
) -> None:
    client = await made(connect)
    bucket = await client.jetstream().create_key_value(bucket="state")
    place, cell = await place_of(client, "a")
    assert place.position == ORIGIN
    await published(client, 10)

    async def ten_more() -> None:
        again = await publisher(await connect(), "a")
        await again.publish(10)
        await again.ingest.drain()
        assert await lsns(server.url) == list(range(1, 21))
        await write_down(again, cell, place)

    saved: dict[str, bytes] = {}

    async def and_keep_progress() -> None:
        await ten_more()
        saved["progress"] = (await bucket.get("progress.a")).value or b""

    await with_an_older_store(server, tmp_path / "older", and_keep_progress)
    fresh = await connect()
    # The state was synced, the stream was not.
    await (await fresh.jetstream().key_value("state")).put("progress.a", saved["progress"])
    if overwritten:
        other = await publisher(fresh, "b")
        await other.publish(40)
        await other.ingest.drain()
    found, _ = await place_of(fresh, "a")
    assert found.position == Position(10, 0)
    assert found.lost_up_to == 20


async def test_messages_that_aged_out_are_not_taken_for_lost(
    server: EmbeddedNats, connect: Any
) -> None:
    client = await made(connect, max_age=1.0)
    await client.jetstream().create_key_value(bucket="state")
    place, cell = await place_of(client, "a")
    one = await published(client, 10)
    await write_down(one, cell, place)
    js = client.jetstream()
    async with asyncio.timeout(10):
        while (await js.stream_info(STREAM)).state.messages:  # noqa: ASYNC110  # the server ages by its own clock
            await asyncio.sleep(0.1)
    found, _ = await place_of(client, "a")
    assert (found.position, found.lost_up_to) == (Position(10, 0), 0)
    # The chain that wrote them continues, too.
    await one.publish(5)
    await one.ingest.drain()
    assert await lsns(server.url) == [11, 12, 13, 14, 15]


async def test_what_was_removed_while_the_duplicate_window_knows_it_is_stored_again(
    server: EmbeddedNats, connect: Any
) -> None:
    """As many as the server acknowledges several times: it counts what it skips."""
    client = await made(connect, duplicate_window=60.0)
    await client.jetstream().create_key_value(bucket="state")
    place, cell = await place_of(client, "a")
    await published(client, 300)
    await client.jetstream().purge_stream(STREAM)
    again = await publisher(client, "a")
    assert again.next == 1
    await again.publish(310)
    await again.ingest.drain()
    assert again.ingest.acked == 310
    assert await lsns(server.url) == list(range(1, 311))
    await write_down(again, cell, place)
    found, _ = await place_of(client, "a")
    assert (found.position, found.lost_up_to) == (Position(310, 0), 0)


async def test_a_strangers_message_that_has_our_id_costs_no_message_of_ours(
    server: EmbeddedNats, connect: Any
) -> None:
    client = await made(connect, duplicate_window=60.0)
    for lsn in (3, 4, 7, 12):
        stranger = event("stranger", lsn)
        await client.jetstream().publish(
            stranger.subject, stranger.payload, headers={"Nats-Msg-Id": event("a", lsn).msg_id}
        )
    await published(client, 12)
    assert await lsns(server.url, "a") == list(range(1, 13))


async def test_a_missing_stream_is_told_at_once(connect: Any) -> None:
    client = await made(connect)
    one = await publisher(client, "a", ack_timeout_s=300)
    await one.publish(3)
    await one.ingest.drain()
    await client.jetstream().delete_stream(STREAM)
    async with asyncio.timeout(60):
        with pytest.raises(IngestError, match="no stream takes these subjects"):
            await one.deliver(*[10] * 1)


async def test_a_stream_that_was_made_anew_is_a_lost_tail(
    server: EmbeddedNats, connect: Any
) -> None:
    client = await made(connect)
    one = await published(client, 3)
    await client.jetstream().delete_stream(STREAM)
    await make_stream(client)
    with pytest.raises(TailLostError):
        await one.deliver(*[10] * 5)
    assert await lsns(server.url) == []


async def test_a_message_over_the_servers_limit_is_an_error_and_costs_no_connection(
    own_nats: OwnNats, connect: Any
) -> None:
    server = await own_nats(config={"max_payload": 65_536})
    client = await connect(server.url)
    await make_stream(client)
    one = await publisher(client, "a")
    await one.publish(1)
    # With its headers it is over the limit, for which the server would cut the connection.
    with pytest.raises(MessageTooLargeError):
        await one.ingest.publish(Outgoing("chain.a", "2-a-insert", b"x" * 65_500))
    await one.ingest.drain()
    assert client.stats["reconnects"] == 0
    assert await lsns(server.url) == [1]


async def test_what_another_life_of_this_source_wrote_fences_the_chain(
    server: EmbeddedNats, connect: Any
) -> None:
    client, other = await made(connect), await connect()
    one = await publisher(client, "a")
    heir = await publisher(other, "a")
    await heir.publish(5)
    await heir.ingest.drain()
    await asyncio.sleep(0.3)
    with pytest.raises(FencedError):
        await one.deliver(*[10] * 1)
    assert await lsns(server.url) == [1, 2, 3, 4, 5]
