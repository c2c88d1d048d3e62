"""Another server replaces the source: the stream continues only with a history that contains its
content.

The test plays the wal-reader, so that each epoch describes the server as the test needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.bus import control, subjects
from headrace.bus.frame import Opening
from headrace.bus.sender import FrameSender
from headrace.confirming.epoch_follower import EpochFollower
from headrace.confirming.relation_shape import RelationShape
from headrace.contract.values import ValueOptions
from headrace.embedded.nats import EmbeddedNats
from headrace.jetstream.provisioning import ensure
from headrace.pgoutput.messages import Relation
from headrace.postgres.facts import TableFacts
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.publisher import run_parts
from headrace.publisher.change_store import StreamChangeStore
from headrace.publisher.doubt import Doubt
from headrace.publisher.lag import AckLag
from headrace.publisher.resume_point import SourceDivergedError
from headrace.settings import load
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats

LIMIT_S = 90


ID_OF_TABLE, INT8 = 16384, 20
Entry = tuple[int, bytes]


def begin(commit: int) -> Entry:
    return commit, b"B" + struct.pack(">QqI", commit, 0, 7)


def row(lsn: int) -> Entry:
    text = str(lsn).encode()
    return lsn, b"I" + struct.pack(">I", ID_OF_TABLE) + b"N\0\1t" + struct.pack(
        ">I", len(text)
    ) + text


def ended(commit: int) -> Entry:
    return commit + 50, b"C\0" + struct.pack(">QQq", commit, commit + 50, 0)


def table() -> Entry:
    """A column `id`, the primary key."""
    columns = b"\0\1\1id\0" + struct.pack(">Ii", INT8, -1)
    return 0, b"R" + struct.pack(">I", ID_OF_TABLE) + b"public\0rows\0d" + columns


class Catalog:
    """Knows nothing but what the stream says."""

    async def describe(self, _: Scope, relation: Relation, *__: object) -> RelationShape:
        return RelationShape.of(relation, TableFacts(), ValueOptions())


class Source:
    """A wal-reader whose server is the one that the test names."""

    def __init__(self, client: Client, slot: str) -> None:
        self._client = client
        self._slot = slot
        self._sender = FrameSender(
            frozenset({"publisher"}), frame_bytes_max=1 << 16, in_flight_bytes_max=1 << 20, life=1
        )

    async def open(self) -> None:
        await self._client.subscribe(subjects.control(self._slot), cb=self._on_control)
        await self._client.flush()

    async def _on_control(self, message: Msg) -> None:
        self._sender.on_control(control.decode(message.data), time.monotonic())

    async def epoch(
        self, *, timeline: int, forks: tuple[tuple[int, int], ...], confirmed: int, end: int
    ) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self._sender.missing:
                await self._client.publish(subjects.frames(self._slot), self._sender.hello())
                await asyncio.sleep(0.05)
        opening = Opening(
            sessions=self._sender.sessions(),
            slot=self._slot,
            database="d",
            system_id="1",
            timeline=timeline,
            confirmed_lsn=confirmed,
            current_lsn=end,
            forks=forks,
        )
        begun = self._sender.begin(opening, clock_ns=time.time_ns(), now=time.monotonic())
        await self._client.publish(subjects.frames(self._slot), begun)

    async def send(self, *entries: Entry) -> None:
        """In one frame, all of which the publisher then has taken."""
        for entry in entries:
            assert self._sender.fit(*entry)
        for data in self._sender.flush():
            await self._client.publish(subjects.frames(self._slot), data)

        async with asyncio.timeout(LIMIT_S):
            while self._sender.in_flight_bytes:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def following(
    server: EmbeddedNats, delivery: str
) -> AsyncIterator[tuple[Source, asyncio.Task[None]]]:
    """A publisher, and its source. Nothing happens because of time."""
    given = {"NATS_URL": server.url, "HEADRACE_DELIVERY": delivery}
    settings = load(
        {**given, "HEADRACE_BATCH_AGE_MAX_S": "600", "HEADRACE_PROGRESS_INTERVAL_S": "600"}
    )
    client = await nats.connect(server.url)
    await ensure(client.jetstream(), settings.streams)
    source = Source(client, settings.source.slot)
    await source.open()
    tasks, catalog, watch = asyncio.TaskGroup(), Catalog(), SimpleNamespace(due=lambda *_: None)
    scope = Scope("publisher", settings.process, tasks, Health("publisher"))
    stats = scope.health.stats

    async def follow() -> None:
        async with run_parts.opened(client, settings, stats) as parts:
            lag, doubt = AckLag(stats, scope.health.traces), Doubt(lambda: None)
            sink = StreamChangeStore(scope, parts, catalog, watch, lag, doubt)  # type: ignore[arg-type]  # as much as it takes
            await EpochFollower(
                scope, settings, client, sink, "publisher", "session", parts.suite
            ).run()

    follower = asyncio.create_task(follow(), name="follower")
    try:
        yield source, follower
    finally:
        scope.stopping.set()
        await asyncio.wait({follower})
        await client.close()


async def of(server: EmbeddedNats, operation: str) -> list[Any]:
    return [
        event.payload
        for event in await stored(server.url)
        if event.payload["operation"] == operation
    ]


async def test_a_transaction_that_came_in_part_is_no_part_of_the_stream(own_nats: OwnNats) -> None:
    """Delivered whole or not at all, it binds nobody: a standby that never had it may take its
    primary's place.
    """
    server = await own_nats()
    async with following(server, "transaction") as (source, follower):
        await source.epoch(timeline=1, forks=(), confirmed=50, end=5000)
        await source.send(begin(1000), table(), row(900), ended(1000))
        await source.send(begin(3000), row(2800), row(2900))
        await source.epoch(timeline=2, forks=((1, 2000),), confirmed=50, end=9000)
        sent = source.send(
            begin(1000), table(), row(900), ended(1000), begin(4000), row(3900), ended(4000)
        )
        await asyncio.wait(
            {follower, asyncio.ensure_future(sent)}, return_when=asyncio.FIRST_COMPLETED
        )
        assert not follower.done(), follower.exception()
    assert [event["data"]["id"] for event in await of(server, "INSERT")] == [900, 3900]


@pytest.mark.parametrize("delivery", ["event", "batch", "transaction"])
async def test_what_was_read_before_a_fork_is_in_the_stream_before_it_is_reported(
    own_nats: OwnNats, delivery: str
) -> None:
    server = await own_nats()
    async with following(server, delivery) as (source, follower):
        await source.epoch(timeline=1, forks=(), confirmed=50, end=5000)
        await source.send(begin(1000), table(), row(900), ended(1000))
        await source.send(begin(3000), row(2900), ended(3000))
        await source.epoch(timeline=2, forks=((1, 2000),), confirmed=50, end=9000)
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(SourceDivergedError):
                await follower
    assert [event["data"]["id"] for event in await of(server, "INSERT")] == [900, 2900]
    (gap,) = await of(server, "GAP")
    assert (gap["after"], gap["reason"]) == ("0/BB8", "source_diverged")
