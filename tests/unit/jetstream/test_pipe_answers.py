"""Pipes while an answer is missing, refused or out of order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream.publishing.errors import IngestError
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Pipe, Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.metrics.counters import Counters
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.chain_pipe import ChainPipe
from headrace.publisher.resume_point import reader_of
from headrace.settings import load
from tests.simulation.stream import refused
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({})
ACK_TIMEOUT_S = 3.0


def event(lsn: int) -> Outgoing:
    msg_id = f"{lsn:x}-a"
    payload = {"operation": "INSERT", "table": "a", "source": "a", "msg_id": msg_id}
    encoded = events.encode({**payload, "tx": {"lsn": lsn, "seq": 0}}, Encoding.JSON)
    return Outgoing("cdc.a.insert", msg_id, encoded)


class Publisher:
    def __init__(self, nats: SimulatedNats, way: Callable[..., Pipe]) -> None:
        self.client = nats.client()
        self.tail = StreamTail(self.client.jetstream(), SETTINGS.streams.cdc, reader_of("a"))
        window = Window(500, 1 << 22, ACK_TIMEOUT_S)
        self.pipe = way(self.client, self.tail, Counters(), window)
        self.next = 1

    async def publish(self, count: int) -> None:
        for _ in range(count):
            await self.pipe.publish(event(self.next))
            self.next += 1


async def opened(nats: SimulatedNats, way: Callable[..., Pipe]) -> Publisher:
    one = Publisher(nats, way)
    await one.pipe.open(await one.tail.after(0))
    return one


@on_virtual_time
async def test_a_group_in_flight_is_not_waited_for_while_nothing_is_published() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await opened(nats, AtomicPipe)
        assert isinstance(one.pipe, AtomicPipe)
        with mock.patch.object(nats.server, "_store", return_value=None):
            await one.publish(2)
            await one.pipe.flush()
            began = time.monotonic()
            await one.pipe.catch_up()
            assert time.monotonic() - began < ACK_TIMEOUT_S / 2
            assert one.pipe.flying


@on_virtual_time
async def test_a_refused_group_is_not_sent_again_over_another_connection() -> None:
    groups: list[str] = []

    async with simulated_nats(SETTINGS) as nats:
        one = await opened(nats, AtomicPipe)
        store = nats.server._store

        def refuse(message: tuple[Any, ...]) -> None:
            _, _, reply, headers, _ = message
            if reply:
                groups.append(headers["Nats-Batch-Id"])
                one.client.stats["reconnects"] += 1
                error = refused(400, 10210, "too many")
                nats.server.answer(reply, {**error, "stream": SETTINGS.streams.cdc, "seq": 0})
            else:
                store(message)

        with mock.patch.object(nats.server, "_store", refuse):
            await one.publish(3)
            with pytest.raises(IngestError, match="connection was lost"):
                await one.pipe.drain()
        assert (len(groups), nats.stored) == (1, [])


@on_virtual_time
async def test_an_acknowledgement_out_of_order_is_an_error() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await opened(nats, ChainPipe)
        await one.publish(1)
        await one.pipe.drain()
        with mock.patch.object(nats.server, "answer", mock.Mock()):
            await one.publish(1)
            await asyncio.sleep(0.5)
        await one.publish(1)
        with pytest.raises(IngestError, match="message 2 was acknowledged, expected 1"):
            await one.pipe.drain()
        assert one.pipe.acked == 1
