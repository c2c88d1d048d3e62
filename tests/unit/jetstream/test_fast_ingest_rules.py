"""Batches of fast ingest: the bytes that open, continue and end one, and when messages are sent."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest

from headrace.bus import subjects
from headrace.contract.events import ID_HEADER
from headrace.jetstream.publishing.errors import IngestError
from headrace.jetstream.publishing.fast import FastPipe, offers_fast_ingest
from headrace.jetstream.publishing.fast_batch import FastBatch
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.publishing.turns import Turns
from headrace.jetstream.publishing.wire import MSG_ID
from headrace.metrics.counters import Counters
from headrace.publisher.resume_point import reader_of
from headrace.settings import load
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({})
STREAM = SETTINGS.streams.cdc


def message(number: int) -> Outgoing:
    return Outgoing("cdc.a.insert", f"id{number}", b'{"source": "b"}')


def parsed(commands: bytes) -> list[tuple[int, str, int | None]]:
    """Each command's number in its batch, its operation, and the sequence that it expects."""
    found = []
    for command in re.split(r"(?m)^(?=H?PUB )", commands.decode())[1:]:
        place = re.search(r"\.(\d+)\.(\d)\.\$FI", command.split("\r\n", 1)[0])
        assert place
        expects = re.search(r"Nats-Expected-Last-Sequence: (\d+)", command)
        operation = ("start", "append", "end", "end bare")[int(place[2])]
        found.append((int(place[1]), operation, int(expects[1]) if expects else None))
    return found


def test_each_message_of_a_batch_names_the_sequence_right_before_its_own() -> None:
    batch = FastBatch("_INBOX.x", 50)
    batch.start(100)
    first = parsed(batch.commands([message(1), message(2)], end=False))
    assert first == [(1, "start", 100), (2, "append", 101)]
    assert (batch.number, batch.ending, batch.open) == (2, False, True)
    last = parsed(batch.commands([message(3), message(4)], end=True))
    assert last == [(3, "append", 102), (4, "end", 103)]
    assert (batch.number, batch.ending) == (4, True)


def test_a_batch_of_one_message_is_opened_and_ended_by_it() -> None:
    batch = FastBatch("_INBOX.x", 50)
    batch.start(7)
    assert parsed(batch.commands([message(1)], end=True)) == [(1, "end", 7)]


def test_a_batch_is_ended_without_a_message_by_a_subject_of_its_stream() -> None:
    batch = FastBatch("_INBOX.x", 50)
    batch.start(7)
    batch.commands([message(1)], end=False)
    command = batch.commands([], end=True)
    assert parsed(command) == [(2, "end bare", None)]
    assert command.startswith(b"PUB cdc.a.insert ")
    assert (batch.number, batch.ending) == (1, True)


def test_a_batch_begins_with_nothing_of_the_one_before_and_an_id_of_its_own() -> None:
    batch = FastBatch("_INBOX.x", 50)
    ids = set()
    for base in (7, 20, 30):
        batch.start(base)
        assert (batch.number, batch.kept, batch.taken, batch.base) == (0, 0, 0, base)
        assert not batch.unproved
        batch.commands([message(1)], end=False)
        batch.kept = batch.taken = 1
        batch.unproved = True
        ids.add(batch.id)
    assert len(ids) == 3
    assert FastBatch("_INBOX.x", 50)._life != batch._life


def test_what_was_skipped_as_a_duplicate_does_not_count_as_stored() -> None:
    batch = FastBatch("_INBOX.x", 50)
    batch.start(100)
    assert batch.stored(103, 3, is_duplicate=False) == 3
    assert batch.stored(101, 3, is_duplicate=False) == 1
    assert batch.stored(110, 3, is_duplicate=False) == 3
    assert batch.stored(90, 3, is_duplicate=False) == 0
    assert batch.stored(103, 3, is_duplicate=True) == 0


class Publisher:
    def __init__(self, nats: SimulatedNats, window: Window, **more: Any) -> None:
        self.nats = nats
        self.client = nats.client()
        self.tail = StreamTail(self.client.jetstream(), STREAM, reader_of("a"))
        self.pipe = FastPipe(self.client, self.tail, Counters(), window, **more)

    async def open(self) -> None:
        await self.pipe.open(await self.tail.after(0))

    @property
    def stored(self) -> int:
        return len(self.nats.cdc.messages)


async def publisher(nats: SimulatedNats, *, messages_max: int = 2000, **more: Any) -> Publisher:
    nats.server.hiccup = 0.0
    made = Publisher(nats, Window(messages_max, 1 << 22, 3.0), **more)
    await made.open()
    return made


@on_virtual_time
async def test_ids_in_our_header_are_stored_there_and_unknown_to_the_server() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await publisher(nats, header=ID_HEADER)
        for _ in range(2):
            # The server would skip the second, if it remembered the first one's ID.
            await one.pipe.publish(message(1))
            await one.pipe.drain()
        headers = [stored.headers for stored in nats.stored]
        assert [each.get(ID_HEADER) for each in headers] == [message(1).msg_id] * 2
        assert not any(MSG_ID in each for each in headers)


@on_virtual_time
async def test_many_messages_are_sent_before_all_are_handed_over_and_few_are_not() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await publisher(nats)
        for number in range(127):
            await one.pipe.publish(message(number))
        await asyncio.sleep(0.1)
        assert one.stored == 0
        await one.pipe.publish(message(127))
        await asyncio.sleep(0.1)
        assert one.stored == 128
        await one.pipe.publish_all([message(number) for number in range(128, 300)])
        await asyncio.sleep(0.1)
        assert one.stored == 256
        await one.pipe.drain()
        assert one.stored == one.pipe.acked == 300
        await one.pipe.close()


@on_virtual_time
async def test_a_small_batch_ends_with_its_last_message_and_a_large_one_once_nothing_comes() -> (
    None
):
    async with simulated_nats(SETTINGS) as nats:
        one = await publisher(nats)
        await one.pipe.publish_all([message(number) for number in range(20)])
        await one.pipe.catch_up()
        await asyncio.sleep(0.1)
        assert one.pipe.acked == 20
        await one.pipe.publish_all([message(number) for number in range(20, 320)])
        await one.pipe.catch_up()
        await asyncio.sleep(0.1)
        assert one.stored == 320
        assert one.pipe.acked < 320, "it is open: more may follow"
        await one.pipe.catch_up()
        await asyncio.sleep(0.1)
        assert one.pipe.acked == 320


@on_virtual_time
async def test_of_an_open_batch_messages_count_as_stored_as_the_stream_shows_them() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await publisher(nats, messages_max=400)
        for number in range(390):
            await one.pipe.publish(message(number))
        await asyncio.sleep(0.2)
        assert one.stored == 384
        assert 200 <= one.pipe.acked <= 384
        assert one.pipe.acked % 100 == 0, "a quarter of the window at a time"


@on_virtual_time
async def test_a_stream_that_can_not_be_read_fails_what_is_published() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await publisher(nats, messages_max=400)
        broken = mock.AsyncMock(side_effect=ValueError("no answer that is known"))
        with mock.patch.object(one.tail, "id_at", broken):
            await one.pipe.publish_all([message(number) for number in range(256)])
            await asyncio.sleep(0.2)
        with pytest.raises(IngestError, match="the stream could not be read"):
            await one.pipe.drain()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"type": "gap", "last_seq": 3}, "lacks message 3"),
        ({"error": {"err_code": 10208, "description": "unknown"}}, "lost a batch"),
        ({"seq": 0, "count": 0}, "ended a batch after 0 of 5"),
    ],
)
@on_virtual_time
async def test_an_answer_that_leaves_open_what_is_stored_is_a_failure(
    answer: dict[str, Any], said: str
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await publisher(nats)

        def store(call: tuple[Any, ...]) -> None:
            nats.server.answer(call[2], answer)

        with mock.patch.object(nats.server, "_store", store):
            await one.pipe.publish_all([message(number) for number in range(5)])
            with pytest.raises(IngestError, match=said):
                await one.pipe.drain()
        assert one.pipe.acked == 0


@on_virtual_time
async def test_while_ids_are_in_doubt_the_server_compares_none() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = Publisher(nats, Window(400, 1 << 22, 3.0))
        tail = await one.tail.after(0)
        tail.ids_in_doubt = True
        tail.duplicate_window_s = 10.0
        await one.pipe.open(tail)
        for waits_s, has_id in ((0.0, False), (19.0, False), (2.0, True)):
            await asyncio.sleep(waits_s)
            await one.pipe.publish(message(one.stored))
            await one.pipe.drain()
            last = list(nats.cdc.messages.values())[-1]
            assert ("Nats-Msg-Id" in last.headers) is has_id


@pytest.mark.parametrize(
    ("version", "batched", "offered"),
    [
        ("2.13.9", True, False),
        ("2.14.0", True, True),
        ("3.0.0", True, True),
        ("2.15.1", False, False),
    ],
)
@on_virtual_time
async def test_fast_ingest_needs_a_server_and_a_stream_that_offer_it(
    version: str, batched: bool, offered: bool
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        nats.server.version = version
        nats.cdc.batched = batched
        client = nats.client()
        assert await offers_fast_ingest(client.jetstream(), client, STREAM) is offered


class Shared:
    """A publisher that takes turns with another source's, which only says what it does."""

    def __init__(self, nats: SimulatedNats, one: Publisher, turns: Turns) -> None:
        self.one = one
        self.turns = turns
        self._other = nats.client()

    async def says(self, word: str, to: str = "") -> None:
        note = {"word": word, "by": "other", "source": "b", "to": to}
        await self._other.publish(subjects.turns(STREAM), json.dumps(note).encode())
        await asyncio.sleep(0.01)

    async def writing(self, seconds: float) -> None:
        """The other writes, while this one is asked to continue."""
        for _ in range(round(seconds / 0.1)):
            await self.says("write")
            await self.one.pipe.publish(message(self.one.pipe.published))
            await asyncio.sleep(0.09)


@asynccontextmanager
async def shared() -> AsyncIterator[Shared]:
    async with simulated_nats(SETTINGS) as nats:
        client = nats.client()
        turns = Turns(client, STREAM, "a", Counters())
        yield Shared(nats, await publisher(nats, turns=turns), turns)


@on_virtual_time
async def test_nothing_is_sent_while_another_source_writes_and_all_of_it_in_its_own_turn() -> None:
    async with shared() as both:
        one = both.one
        await both.writing(1.0)
        going = asyncio.ensure_future(one.pipe.drain())
        await both.says("write")
        await asyncio.sleep(0.3)
        assert one.stored == 0
        await both.says("pass")
        await going
        assert one.stored == one.pipe.acked == 10


@on_virtual_time
async def test_a_connection_that_is_lost_while_another_source_writes_is_noticed_at_once() -> None:
    async with shared() as both:
        await both.writing(0.2)
        going = asyncio.ensure_future(both.one.pipe.drain())
        await both.says("write")
        both.one.client.stats["reconnects"] += 1
        await asyncio.sleep(0.1)
        assert going.done()
        with pytest.raises(IngestError, match="connection was lost"):
            going.result()


@on_virtual_time
async def test_after_close_a_pipe_hears_of_no_other_source() -> None:
    async with shared() as both:
        await both.says("write")
        assert both.turns.others_write
        await both.one.pipe.close()
        await asyncio.sleep(5)
        await both.says("write")
        assert not both.turns.others_write
