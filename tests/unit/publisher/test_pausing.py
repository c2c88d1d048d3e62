"""A pause holds from its record on, and only an authorized record changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

from nats.errors import Error as NatsError

from headrace.jetstream.state import Cell
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.publisher.pausing import LOOK_INTERVAL_S, RETRY_S, Pausing
from headrace.settings import Settings, load
from headrace.suite import pause
from headrace.suite.pause import Pause
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SLOT = "shop"
PAUSED = Pause(True, "ada@here", 1_790_000_000.0, "an upgrade")
RESUMED = Pause(False, "ada@here", 1_790_000_000.0)
TOKEN = "secret"


def settings(token: str | None = None) -> Settings:
    secret = {"HEADRACE_SHUTDOWN_TOKEN": token} if token else {}
    return load({"HEADRACE_SLOT": SLOT, **secret})


class Publisher:
    """A publisher that waits for the end of a pause."""

    def __init__(self, nats: SimulatedNats, scope: Scope, pausing: Pausing) -> None:
        self.nats = nats
        self.scope = scope
        self.pausing = pausing

    async def record(self, wanted: Pause, token: str | None = None) -> None:
        """As `headrace pause` and `headrace resume`."""
        await pause.write(self.nats.client(), await self.nats.state(), settings(token), wanted)
        await asyncio.sleep(0.1)

    async def goes(self) -> bool:
        """Whether it may publish now."""
        waiting = asyncio.ensure_future(self.pausing.until_going())
        await asyncio.sleep(0.01)
        going = waiting.done()
        waiting.cancel()
        return going

    @property
    def reason(self) -> str | None:
        return self.scope.health.reasons.get("paused")


@asynccontextmanager
async def publisher(
    first: Pause | None = None, token: str | None = None
) -> AsyncIterator[Publisher]:
    own = settings(token)
    async with simulated_nats(own) as nats:
        if first is not None:
            await pause.write(nats.client(), await nats.state(), own, first)
        scope = Scope("publisher", own.process, mock.Mock(), Health("publisher"))
        pausing = Pausing(scope, own, nats.client(), await nats.state())
        task = asyncio.ensure_future(pausing.run())
        await asyncio.sleep(0.1)
        yield Publisher(nats, scope, pausing)
        scope.stopping.set()
        await task


@on_virtual_time
async def test_without_a_record_it_publishes() -> None:
    async with publisher() as one:
        assert await one.goes()
        assert one.reason is None
        assert one.scope.health.stats.number("paused") == 0


@on_virtual_time
async def test_a_pause_that_was_recorded_before_the_start_holds() -> None:
    async with publisher(PAUSED) as one:
        assert not await one.goes()
        assert one.pausing.paused.is_set()
        assert one.scope.health.stats.number("paused") == 1
        assert one.reason is not None
        assert one.reason.startswith("paused by ada@here")
        assert "an upgrade" in one.reason


@on_virtual_time
async def test_pause_and_resume_take_effect_at_once() -> None:
    async with publisher() as one:
        for _ in range(2):
            await one.record(PAUSED)
            assert not await one.goes()
            assert one.pausing.paused.is_set()
            await one.record(RESUMED)
            assert await one.goes()
            assert not one.pausing.paused.is_set()
            assert one.reason is None
            assert one.scope.health.stats.number("paused") == 0


@on_virtual_time
async def test_a_record_whose_notification_was_lost_is_found_after_a_while() -> None:
    async with publisher() as one:
        cell = Cell(await one.nats.state(), f"pause.{SLOT}")
        await cell.write(
            {"slot": SLOT, "paused": True, "by": "ada", "at": 1.0, "reason": ""},
        )
        assert await one.goes()
        await asyncio.sleep(2 * LOOK_INTERVAL_S + 0.5)
        assert not await one.goes()


@on_virtual_time
async def test_a_record_is_read_once_in_an_interval() -> None:
    async with publisher() as one:
        with mock.patch.object(pause, "read", mock.AsyncMock(return_value=Pause())) as read:
            await asyncio.sleep(4 * LOOK_INTERVAL_S)
        assert 3 <= read.await_count <= 4
        assert await one.goes()


@on_virtual_time
async def test_an_unsigned_record_neither_pauses_nor_resumes() -> None:
    async with publisher(token=TOKEN) as one:
        await one.record(PAUSED)
        assert await one.goes()
        await one.record(PAUSED, TOKEN)
        assert not await one.goes()
        await one.record(RESUMED)
        assert not await one.goes()
        await one.record(RESUMED, TOKEN)
        assert await one.goes()


@on_virtual_time
async def test_a_start_that_finds_an_unsigned_record_publishes() -> None:
    async with publisher(token=TOKEN) as one:
        await one.record(PAUSED, "another")
        assert await one.goes()


@on_virtual_time
async def test_until_the_record_was_read_nothing_is_published_and_it_is_tried_again_soon() -> None:
    own = settings()
    async with simulated_nats(own) as nats:
        scope = Scope("publisher", own.process, mock.Mock(), Health("publisher"))
        pausing = Pausing(scope, own, nats.client(), await nats.state())
        one = Publisher(nats, scope, pausing)
        with mock.patch.object(pause, "read", mock.AsyncMock(side_effect=NatsError)) as read:
            task = asyncio.ensure_future(pausing.run())
            await asyncio.sleep(10 * RETRY_S)
            assert not await one.goes()
            assert 9 <= read.await_count <= 11
        await asyncio.sleep(RETRY_S)
        assert await one.goes()
        scope.stopping.set()
        await task


@on_virtual_time
async def test_a_stop_ends_the_waiting_of_a_paused_publisher() -> None:
    async with publisher(PAUSED) as one:
        waiting = asyncio.ensure_future(one.pausing.until_going())
        await asyncio.sleep(1)
        assert not waiting.done()
        one.scope.stopping.set()
        await asyncio.sleep(0.01)
        assert waiting.done()
