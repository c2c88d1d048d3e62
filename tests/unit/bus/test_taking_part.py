"""Every service reports to telemetry for as long as it runs, and stops with the suite."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.bus import participation, signed, subjects
from headrace.bus.participation import Report
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import ProcessSettings
from tests.support.virtual_time import on_virtual_time

INTERVAL_S = 2.0


@dataclass
class Payload:
    data: bytes


@dataclass
class Bus:
    """The part of a NATS client that a service uses to take part."""

    is_connected: bool = True
    refuses: bool = False
    published: list[tuple[str, bytes]] = field(default_factory=list)
    handlers: dict[str, Callable[[Any], Awaitable[None]]] = field(default_factory=dict)

    async def subscribe(self, subject: str, cb: Callable[[Any], Awaitable[None]]) -> None:
        self.handlers[subject] = cb

    async def publish(self, subject: str, data: bytes) -> None:
        if self.refuses:
            raise NatsError
        self.published.append((subject, data))

    @property
    def reports(self) -> list[Report]:
        assert {subject for subject, _ in self.published} <= {subjects.stats("shop", "publisher")}
        return [participation.decode_stats(data) for _, data in self.published]

    async def command_to_stop(self, token: str | None) -> None:
        stop = self.handlers[subjects.stop("shop")]
        await stop(Payload(signed.command(token, "stop", "shop", time.time())))


@asynccontextmanager
async def taking_part(bus: Bus, token: str | None = None) -> AsyncIterator[Scope]:
    """A service that takes part; at the end it was stopped, and its task has ended."""
    process = ProcessSettings(shutdown_token=token, stats_interval_s=INTERVAL_S)
    async with asyncio.TaskGroup() as tasks:
        scope = Scope("publisher", process, tasks, Health("publisher"))
        scope.spawn("link", participation.take_part(scope, cast("Client", bus), "shop"))
        await asyncio.sleep(INTERVAL_S / 4)
        yield scope
        scope.stopping.set()


@on_virtual_time
async def test_a_service_reports_at_intervals_and_once_more_when_it_stops() -> None:
    bus = Bus()
    async with taking_part(bus) as scope:
        assert len(bus.reports) == 1
        scope.health.block("postgres", "no connection")
        await asyncio.sleep(3 * INTERVAL_S)
        assert len(bus.reports) == 4
    assert len(bus.reports) == 5
    assert bus.reports[-1].reasons["postgres"] == "no connection"
    assert bus.reports[-1].stats["nats_connected"] == 1


@on_virtual_time
async def test_without_a_connection_a_service_reports_nothing_and_says_so_in_its_figures() -> None:
    bus = Bus(is_connected=False)
    async with taking_part(bus) as scope:
        assert scope.health.stats.values()["nats_connected"] == 0
        assert bus.reports == []
        bus.is_connected = True
        await asyncio.sleep(INTERVAL_S)
        assert len(bus.reports) == 1


@on_virtual_time
async def test_a_report_that_the_connection_refuses_does_not_end_the_service() -> None:
    bus = Bus(refuses=True)
    async with taking_part(bus):
        await asyncio.sleep(INTERVAL_S)
        bus.refuses = False
        await asyncio.sleep(INTERVAL_S)
        assert bus.reports


@on_virtual_time
async def test_a_service_stops_when_the_suite_is_stopped_and_not_for_an_unsigned_command() -> None:
    bus = Bus()
    async with taking_part(bus, token="secret") as scope:
        await bus.command_to_stop(None)
        assert not scope.stopping.is_set()
        await bus.command_to_stop("secret")
        assert scope.stopping.is_set()


@on_virtual_time
async def test_only_a_service_that_is_asked_to_stop_says_so_in_its_last_report() -> None:
    asked, failed = Bus(), Bus()
    async with taking_part(asked):
        await asked.command_to_stop(None)
    async with taking_part(failed) as scope:
        scope.stopping.set()
        # A signal during the failure.
        scope.stop()
    assert [report.stopping for report in asked.reports] == [False, True]
    assert [report.stopping for report in failed.reports] == [False, False]
