"""A range reader returns everything that others wrote into a shared stream: large ranges, and with
removed messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream import range_reader
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.range_reader import Stretch
from headrace.publisher.resume_point import reader_of, suspect_of
from headrace.testing.plugin import OwnNats

STREAM = "STRETCH"


@pytest.fixture
async def client(own_nats: OwnNats) -> AsyncIterator[Client]:
    connected = await nats.connect((await own_nats()).url)
    await connected.jetstream().add_stream(
        StreamConfig(name=STREAM, subjects=["s.>"], storage=StorageType.FILE)
    )
    yield connected
    await connected.close()


def event(source: str, lsn: int, pad: int = 0) -> bytes:
    payload = {
        "operation": "INSERT",
        "table": "t",
        "source": source,
        "tx": {"lsn": lsn, "seq": 0},
        "pad": "x" * pad,
    }
    return events.encode(payload, Encoding.MSGPACK)


async def fill(client: Client, *payloads: bytes) -> None:
    for payload in payloads:
        await client.jetstream().publish("s.t", payload)


async def sequences(reading: Stretch, last_seq: int) -> list[int]:
    return [seq async for found in reading.read(last_seq) for seq, _, _ in found]


async def test_a_stretch_is_read_in_order_and_further_later(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_MESSAGES_MAX", 7)
    await fill(client, *[b"x"] * 30)
    reading = Stretch(client, STREAM, 4)
    assert await sequences(reading, 25) == list(range(4, 26))
    await fill(client, *[b"x"] * 10)
    assert await sequences(reading, 25) == []
    assert await sequences(reading, 40) == list(range(26, 41))
    await reading.close()


async def test_a_message_larger_than_what_is_asked_for_at_a_time_is_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_BYTES_MAX", 2000)
    await fill(client, b"x", b"x" * 5000, b"x" * 900, b"x" * 900, b"x" * 900, b"x" * 5000)
    reading = Stretch(client, STREAM, 1)
    assert await sequences(reading, 6) == [1, 2, 3, 4, 5, 6]
    await reading.close()


async def test_what_was_removed_hides_nothing_that_comes_later(client: Client) -> None:
    """A request that asked for removed messages too stays open, and brings what is stored after the
    look.
    """
    await fill(client, *[b"x"] * 10)
    for seq in (3, 4, 10):
        await client.jetstream().delete_msg(STREAM, seq)
    reading = Stretch(client, STREAM, 1)
    assert await sequences(reading, 9) == [1, 2, 5, 6, 7, 8, 9]
    await fill(client, *[b"x"] * 5)
    assert await sequences(reading, 12) == [11, 12]
    assert await sequences(reading, 15) == [13, 14, 15]
    await reading.close()


async def test_a_message_of_ours_is_found_among_many_of_others(client: Client) -> None:
    ours, last = 613, 1200
    await fill(
        client,
        *[event("ours" if number == ours else "theirs", number) for number in range(1, last + 1)],
    )
    tail = StreamTail(client.jetstream(), STREAM, reader_of("ours"), suspect_of("ours"))
    assert (await tail.after(0)).position_seq == ours
    async with tail.watched(ours) as look:
        assert (await look()).position is None
        await fill(client, event("theirs", last), event("ours", ours + 1), event("theirs", last))
        assert (await look()).position_seq == last + 2
        assert (await look()).position is None
