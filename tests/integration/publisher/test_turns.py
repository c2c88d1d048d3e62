"""Several sources at the end of one stream: each gets its turns, and none cuts the others' batches
short.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import nats
import orjson
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StorageType, StreamConfig

from headrace.bus import subjects
from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream.publishing import turns as taking_turns
from headrace.jetstream.publishing.errors import FencedError
from headrace.jetstream.publishing.fast import FastPipe
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.publishing.turns import Turns
from headrace.metrics.counters import Counters
from headrace.publisher.resume_point import reader_of, suspect_of
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats

STREAM = "SHARED"
PART = 100


def event(source: str, number: int) -> Outgoing:
    payload = {
        "operation": "INSERT",
        "table": source,
        "source": source,
        "tx": {"lsn": number, "seq": 0},
    }
    return Outgoing(
        f"shared.{source}", f"{number:x}-{source}-insert", events.encode(payload, Encoding.MSGPACK)
    )


@dataclass(slots=True)
class Publisher:
    client: Client
    source: str
    ingest: FastPipe
    stats: Counters
    next: int = 1

    async def push(self, messages: int) -> None:
        """As the service does it: a frame's messages, then a look at what has become of them."""
        for _ in range(0, messages, PART):
            await self.ingest.publish_all([event(self.source, self.next + n) for n in range(PART)])
            self.next += PART
            await self.ingest.catch_up()

    async def deliver(self) -> None:
        await self.ingest.publish(event(self.source, self.next))
        self.next += 1
        await self.ingest.drain()

    def counted(self, key: str) -> int:
        return int(self.stats.number(key))


@dataclass(slots=True)
class Site:
    """A server, its stream, and the publishers there."""

    url: str
    clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        self.clients.append(await nats.connect(self.url))
        return self.clients[-1]

    async def publisher(self, source: str) -> Publisher:
        client, stats = await self.client(), Counters()
        tail = StreamTail(client.jetstream(), STREAM, reader_of(source), suspect_of(source))
        ingest = FastPipe(
            client, tail, stats, Window(2048, 1 << 23, 30.0), Turns(client, STREAM, source, stats)
        )
        found = await tail.after(0)
        await ingest.open(found)
        return Publisher(
            client, source, ingest, stats, 1 + (found.position.lsn if found.position else 0)
        )

    async def numbers(self) -> dict[str, list[int]]:
        """The stored numbers of each source, in the stream's order."""
        found: dict[str, list[int]] = defaultdict(list)
        for one in await stored(self.url, STREAM):
            found[one.payload["source"]].append(one.payload["tx"]["lsn"])
        return found


@pytest.fixture
async def site(own_nats: OwnNats) -> AsyncIterator[Site]:
    made = Site((await own_nats()).url)
    config = StreamConfig(
        name=STREAM, subjects=["shared.>"], storage=StorageType.FILE, duplicate_window=0.1
    )
    await (await made.client()).jetstream().add_stream(config, allow_batched=True)
    yield made
    for client in made.clients:
        await client.close()


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of them with few messages."""
    monkeypatch.setattr(taking_turns, "_TURN_S", 0.03)
    monkeypatch.setattr(taking_turns, "_LONG_TURN_S", 0.06)


async def heard(client: Client) -> list[str]:
    """The notes that anybody writes, from now on."""
    notes: list[str] = []

    async def hear(message: Msg) -> None:
        notes.append(orjson.loads(message.data)["word"])

    await client.subscribe(subjects.turns(STREAM), cb=hear)
    await client.flush()
    return notes


@pytest.mark.parametrize("sources", ["ab", "abc"])
@pytest.mark.usefixtures("short_turns")
async def test_publishers_at_once_store_everything_once_in_order_and_none_starves(
    site: Site, sources: str
) -> None:
    messages = 10_000 // len(sources)
    all_of_them = [await site.publisher(source) for source in sources]

    async def push(one: Publisher) -> None:
        # Nobody is through before the last has its share, however fast the machine is.
        while min(other.ingest.acked for other in all_of_them) < messages:
            await one.push(PART)
        await one.ingest.drain()

    async with asyncio.timeout(120):
        await asyncio.gather(*(push(one) for one in all_of_them))
    assert await site.numbers() == {one.source: list(range(1, one.next)) for one in all_of_them}
    passed = sum(one.counted("turns_passed") for one in all_of_them)
    broken = sum(one.counted("batches_broken") for one in all_of_them)
    assert passed >= len(sources)
    # Until they know of each other, and where a machine is so slow that a writer was given up.
    assert broken <= 4 + passed // 2


@pytest.mark.usefixtures("short_turns")
async def test_one_message_gets_its_turn_beside_a_publisher_that_never_pauses(site: Site) -> None:
    busy, small = await site.publisher("a"), await site.publisher("b")
    done = asyncio.Event()

    async def push() -> None:
        while not done.is_set():
            await busy.push(PART)
        await busy.ingest.drain()

    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        tasks.create_task(push(), name="busy")
        for _ in range(5):
            await asyncio.sleep(0.05)
            await small.deliver()
        done.set()
    assert await site.numbers() == {"a": list(range(1, busy.next)), "b": [1, 2, 3, 4, 5]}
    assert busy.counted("batches_broken") <= 5


async def test_a_publisher_alone_says_nothing_and_waits_for_nobody(site: Site) -> None:
    notes = await heard(await site.client())
    alone = await site.publisher("a")
    await alone.push(5000)
    await alone.ingest.drain()
    await alone.client.flush()
    await site.clients[0].flush()
    assert notes == []
    assert alone.counted("batches_broken") == alone.counted("turns_passed") == 0


async def test_who_takes_no_turns_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_turns, "_LOOK_S", 3600.0)
    one, stranger = await site.publisher("a"), await site.client()
    async with asyncio.timeout(60):
        for number in range(20):
            await stranger.jetstream().publish("shared.b", event("b", number).payload)
            await one.deliver()
    assert (await site.numbers())["a"] == list(range(1, 21))
    assert one.counted("batches_broken") == 20


async def test_who_has_nothing_more_to_write_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that write one message now and then, in each other's way, and never simultaneously."""
    monkeypatch.setattr(taking_turns, "_BELIEVED_S", 3600.0)
    monkeypatch.setattr(taking_turns, "_WAIT_MAX_S", 3600.0)
    both = [await site.publisher("a"), await site.publisher("b")]
    async with asyncio.timeout(60):
        for number in range(40):
            for one in both:
                await one.deliver()
            # Now right behind each other, now when all that is to be said was said.
            await asyncio.sleep(0.002 * (number % 10))
    assert await site.numbers() == {"a": list(range(1, 41)), "b": list(range(1, 41))}


async def test_a_note_that_lies_delays_and_stops_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_turns, "_WAIT_MAX_S", 0.5)
    one, liar = await site.publisher("a"), await site.client()
    words = [
        {"word": word, "by": "liar", "source": "b", "to": "liar"}
        for word in ("write", "wait", "pass", "write")
    ]

    async def lie() -> None:
        while True:
            for note in (
                *[orjson.dumps(word) for word in words],
                b"no note",
                b"[]",
                b'{"word": 1}',
            ):
                await liar.publish(subjects.turns(STREAM), note)
            await asyncio.sleep(0.01)

    lying = asyncio.create_task(lie(), name="liar")
    async with asyncio.timeout(60):
        for _ in range(3):
            await one.deliver()
        await one.push(3000)
        await one.ingest.drain()
    lying.cancel()
    assert await site.numbers() == {"a": list(range(1, 3004))}


async def test_a_publisher_that_waits_for_its_turn_is_fenced_by_its_heir_and_not_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_turns, "_WAIT_MAX_S", 3600.0)
    monkeypatch.setattr(taking_turns, "_BELIEVED_S", 3600.0)
    zombie, other = await site.publisher("a"), await site.client()
    await zombie.deliver()
    note = {"word": "write", "by": "another", "source": "b", "to": ""}
    await other.publish(subjects.turns(STREAM), orjson.dumps(note))
    await other.flush()
    await zombie.client.flush()
    waiting = asyncio.create_task(zombie.deliver(), name="zombie")
    heir = await site.publisher("a")
    async with asyncio.timeout(60):
        # It began after the note and waits for nobody.
        await heir.push(PART)
        await heir.ingest.drain()
        with pytest.raises(FencedError):
            await waiting
    assert await site.numbers() == {"a": list(range(1, PART + 2))}


async def test_a_writer_that_dies_in_its_turn_is_not_waited_for_long(site: Site) -> None:
    dying, other = await site.publisher("a"), await site.publisher("b")
    pushing = asyncio.create_task(dying.push(1_000_000), name="dying")
    async with asyncio.timeout(60):
        while not dying.ingest.acked:  # noqa: ASYNC110  # the pipe tells of it to nobody
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(other.deliver(), name="other")
        while not dying.ingest._turns._waiting and not waiting.done():  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        pushing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pushing
        await dying.client.close()
        began = time.monotonic()
        await waiting
    assert time.monotonic() - began < 30
    assert (await site.numbers())["b"] == [1]
