"""A service follows again after any error that another attempt may overcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast
from unittest import mock

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.bus.participation import BusClosedError
from headrace.errors import HeadraceError
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.process.recovery import BACKOFF_S, BACKOFF_S_MAX, follow_on
from headrace.settings import ProcessSettings
from tests.support.virtual_time import on_virtual_time


class PassingError(HeadraceError):
    """Another attempt may overcome it."""

    retry = True


class Attempts:
    """Attempts to follow, of which each ends as the test says; the last one stops the service."""

    def __init__(self, *ends: Exception | None, stored: Callable[[int], bool] = bool) -> None:
        self.ends = ends
        self.stored = stored
        self.at: list[float] = []
        self.reported: list[Exception] = []
        self.client = mock.Mock(is_closed=False)
        process = ProcessSettings()
        self.scope = Scope("publisher", process, mock.Mock(), Health("publisher"))

    async def follow(self) -> None:
        self.at.append(time.monotonic())
        end = self.ends[len(self.at) - 1]
        if len(self.at) == len(self.ends):
            self.scope.stopping.set()
        if end is not None:
            raise end

    async def failed(self, error: Exception) -> bool:
        self.reported.append(error)
        return self.stored(len(self.at))

    async def run(self) -> None:
        await follow_on(self.scope, cast("Client", self.client), self.follow, self.failed)

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.at, self.at[1:], strict=False)]


@on_virtual_time
async def test_what_may_pass_is_reported_and_tried_again_until_the_service_stops() -> None:
    ends = (PassingError("a lost race"), NatsError(), TimeoutError(), None)
    one = Attempts(*ends)
    await one.run()
    assert len(one.at) == len(ends)
    assert one.reported == list(ends[:3])


@on_virtual_time
async def test_what_does_not_pass_ends_the_service_at_once() -> None:
    for error in (HeadraceError("the source is another"), ValueError("a defect")):
        one = Attempts(error, None)
        with pytest.raises(type(error)):
            await one.run()
        assert one.reported == []
        assert len(one.at) == 1


@on_virtual_time
async def test_a_nats_client_that_gave_up_ends_the_service() -> None:
    one = Attempts(NatsError(), None)
    one.client.is_closed = True
    with pytest.raises(BusClosedError):
        await one.run()


@on_virtual_time
async def test_pauses_grow_up_to_a_limit_while_nothing_is_stored() -> None:
    one = Attempts(*[PassingError("again")] * 10, None, stored=lambda _: False)
    await one.run()
    for number, pause in enumerate(one.pauses):
        limit = min(BACKOFF_S * 2**number, BACKOFF_S_MAX)
        assert limit / 2 <= pause <= limit


@on_virtual_time
async def test_an_attempt_that_stored_something_is_followed_by_the_shortest_pause() -> None:
    one = Attempts(*[PassingError("again")] * 10, None, stored=lambda attempt: attempt > 5)
    await one.run()
    assert one.pauses[4] > BACKOFF_S
    assert all(pause <= BACKOFF_S for pause in one.pauses[5:])


@on_virtual_time
async def test_a_service_that_is_stopped_does_not_try_at_all() -> None:
    one = Attempts(None)
    one.scope.stopping.set()
    await one.run()
    assert one.at == []
