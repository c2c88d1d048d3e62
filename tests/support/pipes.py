"""Ways of publishing, each on a simulated server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream.publishing.fast import FastPipe
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Pipe, Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.metrics.counters import Counters
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.chain_pipe import ChainPipe
from headrace.publisher.resume_point import reader_of
from headrace.settings import load
from tests.simulation.client import SimClient
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({})
ACK_TIMEOUT_S = 3.0
WIDE = Window(500, 1 << 22, ACK_TIMEOUT_S)
WAYS: tuple[Callable[..., Pipe], ...] = (ChainPipe, FastPipe, AtomicPipe)
# The parameter that gets each stored message.
_ON_STORED: dict[Callable[..., Pipe], str] = {
    ChainPipe: "_on_stored",
    FastPipe: "on_stored",
    AtomicPipe: "_on_stored",
}


def event(
    source: str, lsn: int, *, pad: int = 10, advances: bool = True, **headers: str
) -> Outgoing:
    msg_id = f"{lsn:x}-{source}"
    payload = {
        "operation": "INSERT" if advances else "SCHEMA",
        "table": source,
        "source": source,
        "msg_id": msg_id,
        "tx": {"lsn": lsn, "seq": 0},
        "pad": "x" * pad,
    }
    encoded = events.encode(payload, Encoding.JSON)
    return Outgoing(f"cdc.{source}.insert", msg_id, encoded, headers, advances)


class Publisher:
    """A source's pipe, from the stream's end on."""

    def __init__(
        self, nats: SimulatedNats, way: Callable[..., Pipe], source: str, window: Window
    ) -> None:
        self.source = source
        self.client: SimClient = nats.client()
        self.stats = Counters()
        self.stored: list[str] = []
        self.tail = StreamTail(self.client.jetstream(), SETTINGS.streams.cdc, reader_of(source))
        self.pipe = way(
            self.client, self.tail, self.stats, window, **{_ON_STORED[way]: self._on_stored}
        )
        self.next = 1

    def _on_stored(self, messages: Any) -> None:
        self.stored += [message.msg_id for message in messages]

    async def publish(self, count: int, *, pad: int = 10) -> None:
        for _ in range(count):
            await self.pipe.publish(event(self.source, self.next, pad=pad))
            self.next += 1

    async def deliver(self, count: int) -> None:
        await self.publish(count)
        await self.pipe.drain()


async def opened(
    nats: SimulatedNats, way: Callable[..., Pipe], source: str = "a", window: Window = WIDE
) -> Publisher:
    one = Publisher(nats, way, source, window)
    found = await one.tail.after(0)
    if found.position is not None:
        one.next = found.position.lsn + 1
    await one.pipe.open(found)
    return one


def on_pipes(
    *ways: Callable[..., Pipe], window: Window = WIDE
) -> Callable[[Callable[[SimulatedNats, Publisher], Awaitable[None]]], Callable[..., None]]:
    """The test runs with each way of publishing: on a simulated server, with an open pipe."""

    def decorated(
        test: Callable[[SimulatedNats, Publisher], Awaitable[None]],
    ) -> Callable[..., None]:
        async def run(way: Callable[..., Pipe]) -> None:
            async with simulated_nats(SETTINGS) as nats:
                await test(nats, await opened(nats, way, window=window))

        run.__name__ = test.__name__
        each: Callable[..., None] = pytest.mark.parametrize("way", ways)(on_virtual_time(run))
        return each

    return decorated


each_way = on_pipes(*WAYS)


def ids(nats: SimulatedNats, source: str = "a") -> list[str]:
    """The source's messages, in the order of the stream."""
    return [
        json.loads(one.payload)["msg_id"] for one in nats.stored if f".{source}." in one.subject
    ]


def expected(count: int, source: str = "a") -> list[str]:
    return [f"{lsn:x}-{source}" for lsn in range(1, count + 1)]


def answering(nats: SimulatedNats, error: dict[str, Any]) -> Any:
    """The server refuses every message that wants an answer."""

    def store(message: tuple[Any, ...]) -> None:
        _, _, reply, _, _ = message
        nats.server.answer(reply, {**error, "stream": SETTINGS.streams.cdc, "seq": 0})

    return mock.patch.object(nats.server, "_store", store)


def silent(nats: SimulatedNats) -> Any:
    return mock.patch.object(nats.server, "_store", return_value=None)
