"""The behaviour of nats-server on which fast ingest depends, and the effect of fast ingest on the
wire.

test_chain_pipe.py tests the promises of both ways of publishing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import nats
import orjson
import pytest
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream.publishing.errors import IngestError
from headrace.jetstream.publishing.fast import FastPipe, offers_fast_ingest
from headrace.jetstream.publishing.message import Message, Outgoing
from headrace.jetstream.publishing.pipe import Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.state import Cell
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.publisher.progress_writer import ProgressWriter
from headrace.publisher.resume_point import find_resume_point, reader_of
from headrace.testing.oracle import raw_messages, stored
from headrace.testing.plugin import OwnNats

STREAM = "FAST"
PATIENCE_S = 60.0
UNKNOWN_BATCH, WRONG_LAST_SEQUENCE, DUPLICATE = 10208, 10071, 10201


def event(number: int) -> Outgoing:
    payload = {"operation": "INSERT", "table": "t", "source": "a", "tx": {"lsn": number, "seq": 0}}
    return Outgoing("fast.t", f"{number:x}-t-insert", events.encode(payload, Encoding.MSGPACK))


@pytest.fixture
def duplicate_window(request: pytest.FixtureRequest) -> float:
    return float(getattr(request, "param", 60.0))


@pytest.fixture
async def client(own_nats: OwnNats, duplicate_window: float) -> AsyncIterator[Client]:
    connected = await nats.connect((await own_nats()).url)
    config = StreamConfig(
        name=STREAM,
        subjects=["fast.>"],
        storage=StorageType.FILE,
        duplicate_window=duplicate_window,
    )
    await connected.jetstream().add_stream(config, allow_batched=True)
    yield connected
    await connected.close()


async def opened(client: Client, *, messages_max: int = 4096) -> FastPipe:
    tail = StreamTail(client.jetstream(), STREAM, reader_of("a"))
    ingest = FastPipe(
        client, tail, Counters(), Window(messages_max, 1 << 23, ack_timeout_s=PATIENCE_S)
    )
    await ingest.open(await tail.after(0))
    return ingest


async def deliver(ingest: FastPipe, numbered: range) -> None:
    for number in numbered:
        await ingest.publish(event(number))
    await ingest.drain()


async def numbers(client: Client) -> list[int]:
    assert client.connected_url is not None
    return [
        found.payload["tx"]["lsn"] for found in await stored(client.connected_url.geturl(), STREAM)
    ]


class Raw:
    """A batch by hand: each message as the protocol has it, and the answers."""

    def __init__(self, client: Client, batch: str) -> None:
        self._client = client
        self._batch = batch
        self._inbox = client.new_inbox()

    async def open(self) -> None:
        self._answers = await self._client.subscribe(f"{self._inbox}.>")

    async def send(
        self, number: int, operation: int, headers: dict[str, str], payload: bytes = b"x"
    ) -> None:
        reply = f"{self._inbox}.{self._batch}.100.fail.{number}.{operation}.$FI"
        await self._client.publish("fast.raw", payload, reply=reply, headers=headers)

    async def answer(self) -> dict[str, Any]:
        return dict(orjson.loads((await self._answers.next_msg(timeout=PATIENCE_S)).data))


async def raw(client: Client, batch: str) -> Raw:
    made = Raw(client, batch)
    await made.open()
    return made


async def test_its_owner_hears_of_each_stored_message_once_and_nothing_is_counted_for_a_suite(
    client: Client,
) -> None:
    tail, stats, heard = (
        StreamTail(client.jetstream(), STREAM, reader_of("a")),
        Counters(),
        list[str](),
    )

    def on_stored(messages: Sequence[Message]) -> None:
        heard.extend(message.msg_id for message in messages)

    ingest = FastPipe(
        client, tail, stats, Window(64, 1 << 23, ack_timeout_s=PATIENCE_S), on_stored=on_stored
    )
    await ingest.open(await tail.after(0))
    await deliver(ingest, range(1, 301))
    assert heard == [event(number).msg_id for number in range(1, 301)]
    assert set(stats.values()) == {"published_bytes"}
    await ingest.close()


async def test_publishing_goes_on_after_another_publishers_atomic_batch_was_refused(
    client: Client,
) -> None:
    """nats-server 2.15 then refuses every batch of fast ingest that names the stream's end."""
    js = client.jetstream()
    config = (await js.stream_info(STREAM)).config
    await js.update_stream(replace(config, allow_atomic=True))
    ingest = await opened(client)
    await deliver(ingest, range(1, 4))
    for number in range(1, 6):
        headers = {
            "Nats-Msg-Id": event(1).msg_id if number == 5 else f"other-{number}",
            "Nats-Batch-Id": "other",
            "Nats-Batch-Sequence": str(number),
        }
        if number < 5:
            await client.publish("fast.t", b"x", headers=headers)
    commit = {**headers, "Nats-Batch-Commit": "1"}
    answer = await client.request("fast.t", b"x", headers=commit, timeout=5)
    assert orjson.loads(answer.data)["error"]["err_code"] == DUPLICATE
    async with asyncio.timeout(10):
        await deliver(ingest, range(4, 40))
    await ingest.close()
    assert await numbers(client) == list(range(1, 40))


async def test_a_first_message_that_is_a_duplicate_opens_its_batch_whatever_it_expects(
    client: Client,
) -> None:
    """Why every message states its expectation: the first one's would not fence the others."""
    await client.jetstream().publish("fast.raw", b"x", headers={"Nats-Msg-Id": "known"})
    batch = await raw(client, "one")
    await batch.send(1, 0, {"Nats-Msg-Id": "known", "Nats-Expected-Last-Sequence": "999"})
    assert await batch.answer() == {"type": "ack", "seq": 0, "msgs": 100}
    await batch.send(2, 2, {"Nats-Msg-Id": "new"})
    assert (await batch.answer())["seq"] == 2


async def test_a_message_in_the_wrong_place_ends_its_batch(client: Client) -> None:
    batch = await raw(client, "one")
    await batch.send(1, 0, {"Nats-Expected-Last-Sequence": "0"})
    assert (await batch.answer())["type"] == "ack"
    await client.jetstream().publish("fast.raw", b"another's")
    await batch.send(2, 1, {"Nats-Expected-Last-Sequence": "1"})
    refused = await batch.answer()
    assert (refused["type"], refused["error"]["err_code"]) == ("err", WRONG_LAST_SEQUENCE)
    kept = await batch.answer()
    assert (kept["count"], kept["seq"]) == (1, 1)
    await batch.send(3, 1, {"Nats-Expected-Last-Sequence": "2"})
    assert (await batch.answer())["error"]["err_code"] == UNKNOWN_BATCH


async def test_a_lost_message_ends_its_batch(client: Client) -> None:
    batch = await raw(client, "one")
    await batch.send(1, 0, {"Nats-Expected-Last-Sequence": "0"})
    await batch.answer()
    await batch.send(3, 1, {"Nats-Expected-Last-Sequence": "1"})
    assert (await batch.answer())["type"] == "gap"
    assert (await batch.answer())["count"] == 1
    await batch.send(2, 1, {"Nats-Expected-Last-Sequence": "1"})
    assert (await batch.answer())["error"]["err_code"] == UNKNOWN_BATCH
    assert (await client.jetstream().stream_info(STREAM)).state.messages == 1


async def test_one_message_alone_is_acknowledged_in_one_round_trip(client: Client) -> None:
    ingest = await opened(client)
    await ingest.publish(event(1))
    before = client.stats["in_msgs"]
    await ingest.catch_up()
    await client.flush()
    async with asyncio.timeout(PATIENCE_S):
        while not ingest.acked:  # noqa: ASYNC110  # the answer gives no event outside
            await asyncio.sleep(0.001)
    assert client.stats["in_msgs"] - before == 1
    assert ingest.stored_seq == 1


async def test_many_messages_take_few_acknowledgements(client: Client) -> None:
    ingest = await opened(client)
    before = client.stats["in_msgs"]
    await deliver(ingest, range(1, 20_001))
    assert client.stats["in_msgs"] - before < 100
    assert (ingest.acked, ingest.stored_seq) == (20_000, 20_000)
    assert await numbers(client) == list(range(1, 20_001))


async def test_an_open_batch_is_acknowledged_once_nothing_comes(client: Client) -> None:
    ingest = await opened(client)
    for number in range(1, 701):
        await ingest.publish(event(number))
    await ingest.catch_up()
    await client.flush()
    async with asyncio.timeout(PATIENCE_S):
        while ingest.acked < 500:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.001)
    assert ingest.acked == 500
    await ingest.catch_up()
    async with asyncio.timeout(PATIENCE_S):
        while ingest.acked < 700:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.001)
    assert ingest.stored_seq == 700


@pytest.mark.parametrize("messages_max", [1, 3, 40])
async def test_a_small_window_never_waits_for_an_acknowledgement_that_does_not_come(
    client: Client, messages_max: int
) -> None:
    ingest = await opened(client, messages_max=messages_max)
    async with asyncio.timeout(10):
        for number in range(1, 301):
            await ingest.publish(event(number))
        await ingest.drain()
    assert await numbers(client) == list(range(1, 301))


@pytest.mark.parametrize("duplicate_window", [0.1, 60.0], indirect=True)
class SlowTail(StreamTail):
    """A stream's end of which single messages are read as slowly as the test says."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.jetstream(), STREAM, reader_of("a"))
        self.may_read = asyncio.Event()
        self.reads = 0

    async def id_at(self, seq: int) -> str | None:
        self.reads += 1
        await self.may_read.wait()
        return await super().id_at(seq)


async def test_what_is_read_back_holds_nothing_up(client: Client) -> None:
    """Of all messages that were accepted while one is read, only the last one is read."""
    tail = SlowTail(client)
    ingest = FastPipe(client, tail, Counters(), Window(8192, 1 << 23, ack_timeout_s=PATIENCE_S))
    await ingest.open(await tail.after(0))
    for number in range(1, 4097):
        await ingest.publish(event(number))
    async with asyncio.timeout(30):
        while (await tail.state()).last_seq < 4096:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)
    # The server's acknowledgements of them are here.
    await client.flush()
    tail.may_read.set()
    await ingest.drain()
    assert ingest.acked == 4096
    assert tail.reads <= 2
    assert await numbers(client) == list(range(1, 4097))
    await ingest.close()


async def test_a_publisher_with_an_open_batch_doubles_nothing_of_its_heirs(client: Client) -> None:
    zombie = await opened(client)
    for number in range(1, 1001):
        await zombie.publish(event(number))
    await zombie.catch_up()
    await client.flush()
    await asyncio.sleep(0.2)
    heir = await opened(client)
    await deliver(heir, range(1001, 1201))
    await asyncio.sleep(0.3)
    with contextlib.suppress(IngestError):
        await deliver(zombie, range(1001, 3001))
    # The message right after the successor's last one is the same from either publisher, which would be harmless.
    kept = await numbers(client)
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) >= 1200


@pytest.mark.slow
async def test_a_batch_that_the_server_has_forgotten_is_an_error_and_no_hole(
    client: Client,
) -> None:
    ingest = await opened(client)
    for number in range(1, 701):
        await ingest.publish(event(number))
    await ingest.catch_up()
    # The server forgets a batch in which nothing was sent for ten seconds.
    await asyncio.sleep(11)
    with pytest.raises(IngestError):
        await deliver(ingest, range(701, 1001))
    assert await numbers(client) == list(range(1, 701))


async def test_no_message_is_skipped_whose_place_another_source_took(client: Client) -> None:
    """The server knows ids of messages that were removed, and as many others are stored where they
    belong: nothing in the batch looks wrong.
    """
    await deliver(await opened(client), range(1, 11))
    js = client.jetstream()
    await js.purge_stream(STREAM)
    cell = Cell(await js.create_key_value(bucket="state"), "progress.a")
    tail = StreamTail(js, STREAM, reader_of("a"))
    place = await find_resume_point(cell, tail)
    ingest = FastPipe(client, tail, Counters(), Window(4096, 1 << 23, ack_timeout_s=PATIENCE_S))
    await ingest.open(place.tail)
    for number in range(10):
        await js.publish("fast.other", b"x", headers={"Nats-Msg-Id": f"other-{number}"})
    await deliver(ingest, range(1, 21))
    assert client.connected_url is not None
    found = [
        message.headers.get(events.ID_HEADER) or message.headers["Nats-Msg-Id"]
        for message in await raw_messages(client.connected_url.geturl(), STREAM)
        if message.subject == "fast.t" and message.headers
    ]
    assert found == [event(number).msg_id for number in range(1, 21)]


async def test_a_stream_that_lost_nothing_is_written_with_the_servers_ids(client: Client) -> None:
    await deliver(await opened(client), range(1, 4))
    js = client.jetstream()
    cell = Cell(await js.create_key_value(bucket="state"), "progress.a")
    tail = StreamTail(js, STREAM, reader_of("a"))
    place = await find_resume_point(cell, tail)
    assert not place.tail.ids_in_doubt
    assert await js.delete_msg(STREAM, 2)
    assert (await find_resume_point(cell, tail)).tail.ids_in_doubt


@pytest.mark.parametrize("duplicate_window", [1.0], indirect=True)
async def test_a_doubt_about_ids_outlives_further_crashes_until_the_server_has_forgotten_them(
    client: Client,
) -> None:
    await deliver(await opened(client), range(1, 4))
    js = client.jetstream()
    await js.purge_stream(STREAM)
    cell = Cell(await js.create_key_value(bucket="state"), "progress.a")
    tail = StreamTail(js, STREAM, reader_of("a"))
    for first in (10, 20):
        place = await find_resume_point(cell, tail)
        ingest = FastPipe(client, tail, Counters(), Window(4096, 1 << 23, ack_timeout_s=PATIENCE_S))
        await ingest.open(place.tail)
        assert ingest.ids_in_doubt
        # Its progress is behind what hid the loss.
        progress = ProgressWriter(cell, place.progress)
        await deliver(ingest, range(first, first + 3))
        await write(progress, ingest, first + 2)
    async with asyncio.timeout(10):
        while ingest.ids_in_doubt:  # noqa: ASYNC110  # it ends with time
            await asyncio.sleep(0.1)
    await deliver(ingest, range(30, 33))
    await write(progress, ingest, 32)
    assert not (await find_resume_point(cell, tail)).tail.ids_in_doubt


async def write(progress: ProgressWriter, ingest: FastPipe, last: int) -> None:
    progress.begin(
        last,
        Position(last, 0),
        event(last).msg_id,
        ingest.stored_seq,
        past_lanes=True,
        ids_in_doubt=ingest.ids_in_doubt,
    )
    await progress.finish()


async def test_a_fault_while_the_stream_is_read_fails_what_is_published(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = await opened(client, messages_max=64)

    async def fault(_: StreamTail, seq: int) -> str:
        raise ValueError(f"no such place: {seq}")

    monkeypatch.setattr(StreamTail, "id_at", fault)
    with pytest.raises(IngestError, match="no such place"):
        await deliver(ingest, range(1, 2000))
    await ingest.close()


async def test_a_stream_that_does_not_take_batches_is_seen_beforehand(client: Client) -> None:
    js = client.jetstream()
    assert await offers_fast_ingest(js, client, STREAM)
    await js.add_stream(name="PLAIN", subjects=["plain.>"])
    assert not await offers_fast_ingest(js, client, "PLAIN")
