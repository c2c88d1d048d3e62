"""A confirmer's messages to the wal-reader while a sink stores what it gets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from unittest import mock

import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeoutError

from headrace.bus import control, frame, subjects
from headrace.bus.control import Confirm, Control, Join, Restart
from headrace.bus.frame import Entry, FrameKind, Opening
from headrace.bus.receiver import SILENCE_S
from headrace.confirming.change_store import Demand, Stored, Taken
from headrace.confirming.epoch_follower import QUEUE_MESSAGES_MAX, EpochFollower
from headrace.errors import HeadraceError
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load
from tests.support.virtual_time import on_virtual_time

SLOT = "shop"
SETTINGS = load({"HEADRACE_SLOT": SLOT, "HEADRACE_IN_FLIGHT_BYTES_MAX": "65536"})
EPOCH = 70
OPENING = Opening({"publisher": "p1"}, SLOT, "db", "7000", 1, 0x1000)
JOIN = Join("publisher", "p1", 0, "abc")


class Frames:
    """A subscription."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.news = asyncio.Event()
        self.ended = False

    @property
    def pending_msgs(self) -> int:
        return len(self.waiting)

    async def next_msg(self, timeout: float) -> object:
        if not self.waiting:
            self.news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self.news.wait()
        if not self.waiting:
            raise NatsTimeoutError
        return mock.Mock(data=self.waiting.popleft())

    async def unsubscribe(self) -> None:
        self.ended = True


class Bus:
    """A NATS client, and the wal-reader at its other end."""

    max_payload = 1000

    def __init__(self) -> None:
        self.is_connected = True
        self.is_closed = False
        self.frames = Frames()
        self.limits: dict[str, int] = {}
        self.heard: list[Control] = []
        self.flushed = 0

    async def subscribe(self, subject: str, **limits: int) -> Frames:
        assert subject == subjects.frames(SLOT)
        self.limits = limits
        return self.frames

    async def publish(self, subject: str, data: bytes) -> None:
        assert subject == subjects.control(SLOT)
        self.heard.append(control.decode(data))

    async def flush(self) -> None:
        self.flushed += 1

    def send(self, *frames: bytes) -> None:
        self.frames.waiting.extend(frames)
        self.frames.news.set()

    def begin(self) -> None:
        self.send(frame.encode_open(EPOCH, OPENING))

    def send_entry(self, seq: int) -> None:
        self.send(frame.header(FrameKind.DATA, EPOCH, seq) + frame.encode_entry(8, b"message"))

    def ask(self, kind: FrameKind, seq: int) -> None:
        self.send(frame.header(kind, EPOCH, seq))

    @property
    def confirmed(self) -> list[tuple[int, int, bool]]:
        """Of each Confirm: what was consumed, what is durable, and whether that is all."""
        return [
            (one.consumed_seq, one.confirmed_lsn, one.settled)
            for one in self.heard
            if isinstance(one, Confirm)
        ]


class Store:
    """A sink that stores as far as the test says."""

    def __init__(self) -> None:
        self.stored = Stored(0, waiting=False)
        self.after_all: Stored | None = None
        self.openings: list[Opening] = []
        self.taken: list[Entry] = []
        self.demands: list[Demand] = []
        self.failure: Exception | None = None

    async def on_epoch(self, opening: Opening) -> None:
        self.openings.append(opening)

    async def take(self, taken: Taken) -> Stored:
        if self.failure is not None:
            raise self.failure
        self.taken += taken.entries
        return self.stored

    async def store(self, demand: Demand) -> Stored:
        self.demands.append(demand)
        if demand is Demand.ALL and self.after_all is not None:
            self.stored = self.after_all
        return self.stored


class Following:
    def __init__(self, *, is_over: Callable[[], bool] = lambda: False) -> None:
        self.bus = Bus()
        self.store = Store()
        health = Health("publisher")
        self.scope = Scope("publisher", SETTINGS.process, mock.Mock(), health)
        follower = EpochFollower(
            self.scope, SETTINGS, cast("Client", self.bus), self.store, "publisher", "p1", "abc"
        )
        self.task = asyncio.ensure_future(follower.run(is_over))

    @property
    def reasons(self) -> dict[str, str]:
        return self.scope.health.reasons


@asynccontextmanager
async def following(**named: Any) -> AsyncIterator[Following]:
    """A confirmer that has joined an epoch, and is stopped at the end."""
    one = Following(**named)
    await asyncio.sleep(0.01)
    one.bus.begin()
    await asyncio.sleep(0.01)
    yield one
    one.scope.stopping.set()
    await one.task


@on_virtual_time
async def test_a_confirmer_announces_itself_and_follows_the_epoch_that_is_opened_for_it() -> None:
    one = Following()
    await asyncio.sleep(0.1)
    assert one.bus.heard == [JOIN]
    assert "start" in one.reasons
    one.bus.begin()
    await asyncio.sleep(0.1)
    assert one.store.openings == [OPENING]
    assert one.reasons == {}
    one.scope.stopping.set()
    await one.task
    assert one.bus.frames.ended
    assert one.bus.limits == {
        "pending_msgs_limit": QUEUE_MESSAGES_MAX,
        "pending_bytes_limit": 4 * 65536 + 1000,
    }


@on_virtual_time
async def test_each_frame_is_consumed_at_once_and_confirmed_as_far_as_it_is_durable() -> None:
    async with following() as one:
        one.store.stored = Stored(0x1100, waiting=True)
        one.bus.send_entry(1)
        await asyncio.sleep(0.1)
        assert one.store.taken == [(8, b"message")]
        assert one.bus.confirmed == [(1, 0x1100, False)]
        one.store.stored = Stored(0x1100, waiting=False)
        await asyncio.sleep(0.3)
        assert one.bus.confirmed[1:] == [(1, 0x1100, True)]


@on_virtual_time
async def test_between_frames_only_progress_is_confirmed() -> None:
    async with following() as one:
        one.bus.send_entry(1)
        await asyncio.sleep(10)
        assert one.bus.confirmed == [(1, 0, True)]
        one.store.stored = Stored(0x1200, waiting=True)
        await asyncio.sleep(10)
        assert one.bus.confirmed[1:] == [(1, 0x1200, False)]
        one.store.stored = Stored(0x1300, waiting=True)
        await asyncio.sleep(10)
        assert one.bus.confirmed[2:] == [(1, 0x1300, False)]
        one.store.stored = Stored(0x1300, waiting=False)
        await asyncio.sleep(10)
        assert one.bus.confirmed[3:] == [(1, 0x1300, True)]


@on_virtual_time
async def test_what_the_store_contained_before_the_epoch_is_confirmed_when_a_frame_asks() -> None:
    one = Following()
    one.store.stored = Stored(0x5000, waiting=False)
    await asyncio.sleep(0.1)
    one.bus.begin()
    await asyncio.sleep(1)
    assert one.bus.confirmed == []
    one.bus.ask(FrameKind.PING, 0)
    await asyncio.sleep(0.1)
    assert one.bus.confirmed == [(0, 0x5000, True)]
    one.scope.stopping.set()
    await one.task


@on_virtual_time
async def test_before_it_follows_an_epoch_nothing_is_confirmed() -> None:
    one = Following()
    one.store.stored = Stored(0x5000, waiting=True)
    await asyncio.sleep(1)
    one.scope.stopping.set()
    await one.task
    assert one.bus.confirmed == []


@on_virtual_time
async def test_a_flush_stores_all_that_is_whole_and_confirms_it() -> None:
    async with following() as one:
        one.store.stored = Stored(0, waiting=True)
        one.bus.send_entry(1)
        await asyncio.sleep(0.1)
        assert Demand.ALL not in one.store.demands
        one.store.after_all = Stored(0x1100, waiting=False)
        one.bus.ask(FrameKind.FLUSH, 1)
        await asyncio.sleep(0.1)
        assert one.bus.confirmed[-1] == (1, 0x1100, True)


@on_virtual_time
async def test_a_sink_may_wait_with_storing_while_the_next_frame_is_at_hand() -> None:
    async with following() as one:
        one.store.demands.clear()
        for seq in (1, 2, 3):
            one.bus.send_entry(seq)
        await asyncio.sleep(0.01)
        assert one.store.demands == [Demand.LITTLE, Demand.LITTLE, Demand.MORE]


@on_virtual_time
async def test_a_sink_is_asked_again_as_soon_as_it_wants() -> None:
    async with following() as one:
        one.store.stored = Stored(0, waiting=False, again_s=0.05)
        one.bus.send_entry(1)
        await asyncio.sleep(0.01)
        one.store.demands.clear()
        await asyncio.sleep(1)
        assert 18 <= len(one.store.demands) <= 21


@on_virtual_time
async def test_a_stop_stores_all_that_is_whole_confirms_it_and_sees_it_off() -> None:
    async with following() as one:
        one.store.stored = Stored(0, waiting=True)
        one.bus.send_entry(1)
        await asyncio.sleep(0.1)
        one.store.after_all = Stored(0x1100, waiting=False)
    assert one.bus.confirmed[-1] == (1, 0x1100, True)
    assert one.bus.flushed == 1
    assert not any(isinstance(message, Restart) for message in one.bus.heard)


@on_virtual_time
async def test_a_follower_that_is_over_leaves_like_one_that_is_stopped() -> None:
    over = False
    async with following(is_over=lambda: over) as one:
        over = True
        one.store.after_all = Stored(0x1100, waiting=False)
        await asyncio.sleep(1)
        assert one.task.done()
        assert one.bus.confirmed == [(0, 0x1100, True)]


@on_virtual_time
async def test_a_loss_is_answered_with_a_request_for_a_new_epoch() -> None:
    async with following() as one:
        one.bus.send_entry(2)
        await asyncio.sleep(0.1)
        reason = "frame 1 did not arrive, 2 did"
        assert one.bus.heard[-1] == Restart("publisher", "p1", EPOCH, reason, "abc")
        assert one.store.taken == []


@on_virtual_time
async def test_silence_is_reported_answered_and_over_with_the_next_frame() -> None:
    async with following() as one:
        await asyncio.sleep(SILENCE_S - 0.5)
        assert one.bus.heard == [JOIN]
        await asyncio.sleep(1)
        assert one.reasons == {"bus": "no frames from wal-reader"}
        assert one.bus.heard[-1] == Join("publisher", "p1", EPOCH, "abc")
        one.bus.ask(FrameKind.PING, 0)
        await asyncio.sleep(0.1)
        assert one.reasons == {}
        await asyncio.sleep(2 * SILENCE_S)
        assert one.reasons
        one.bus.send(frame.encode_open(EPOCH + 1, OPENING))
        await asyncio.sleep(0.1)
        assert one.reasons == {}


@pytest.mark.parametrize(
    ("is_connected", "is_closed", "asked"),
    [(True, False, True), (False, False, False), (False, True, False)],
)
@on_virtual_time
async def test_a_sink_in_doubt_ends_the_follower_which_asks_for_a_new_epoch_if_it_can(
    is_connected: bool, is_closed: bool, asked: bool
) -> None:
    one = Following()
    await asyncio.sleep(0.01)
    one.bus.begin()
    await asyncio.sleep(0.01)
    one.store.failure = HeadraceError("an answer is missing")
    one.bus.is_connected, one.bus.is_closed = is_connected, is_closed
    one.bus.send_entry(1)
    with pytest.raises(HeadraceError, match="an answer is missing"):
        await one.task
    restarts = [message for message in one.bus.heard if isinstance(message, Restart)]
    assert [restart.epoch for restart in restarts] == [EPOCH] * asked
    assert all("an answer is missing" in restart.reason for restart in restarts)
    assert one.bus.frames.ended is not is_closed


@on_virtual_time
async def test_a_sink_that_fails_during_a_stop_asks_for_nothing() -> None:
    one = Following()
    await asyncio.sleep(0.01)
    one.bus.begin()
    await asyncio.sleep(0.01)
    one.store.failure = HeadraceError("an answer is missing")
    one.scope.stopping.set()
    one.bus.send_entry(1)
    with pytest.raises(HeadraceError):
        await one.task
    assert not any(isinstance(message, Restart) for message in one.bus.heard)
