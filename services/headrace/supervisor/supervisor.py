"""Keeps services running, and stops them in order.

Promises: never two processes of one service; one that dies is restarted after a growing pause, and
the user is informed; one that reports a failure before it was ever ready ends the start, with its
message; a stop waits for each service before the next is stopped, in the given order, and kills it
after its deadline. Never restarts while stopping. Belongs to one event loop, on the main thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from headrace.embedded.process import ended_by
from headrace.errors import HeadraceError
from headrace.supervisor.line import Line
from headrace.supervisor.process import Service, ServiceProcess
from headrace.timing.backoff import Backoff
from headrace.timing.waits import wait_for

BACKOFF_S = 0.5
BACKOFF_S_MAX = 30.0
# A service that ran for this long has not failed at its start: the next pause is short again.
STEADY_S = 60.0
READY_INTERVAL_S = 0.05
PROBE_TIMEOUT_S = 2.0
# Most services stop sooner: only the others are worth a line.
SAY_AFTER_S = 2.0


class ServiceFailedError(HeadraceError):
    """A service can't run as it is configured."""


class Listener(Protocol):
    """Receives what happens."""

    def line(self, service: str, line: Line) -> None:
        """A service printed a line."""

    def news(self, text: str) -> None:
        """The supervisor did something, or waits for it."""


@dataclass(slots=True)
class _Kept:
    service: Service
    process: ServiceProcess | None = None
    keeper: asyncio.Task[None] | None = None
    # Whether it has been ready since the suite started. A failure before that is a matter of the
    # configuration, which a restart would only repeat.
    was_ready: bool = False


class Supervisor:
    """The services of one suite. Start, wait until they are ready, watch `over`, stop."""

    def __init__(
        self, services: Sequence[Service], listener: Listener, *, stop_timeout_s: float
    ) -> None:
        self._kept = {service.name: _Kept(service) for service in services}
        self._listener = listener
        self._stop_timeout_s = stop_timeout_s
        self._stopping = asyncio.Event()
        # Set by a second Ctrl-C: services are killed, not asked to stop.
        self._hasty = asyncio.Event()
        # The permanent failure that ends the suite, for `check` to raise.
        self._failure: HeadraceError | None = None
        # Set when the suite should end: a service failed permanently, or was stopped over the bus.
        self.over = asyncio.Event()

    def start(self) -> None:
        """Start every service, each with a task that keeps it running."""
        for name, kept in self._kept.items():
            # In parallel: services wait for each other themselves.
            kept.keeper = asyncio.create_task(self._keep(kept), name=f"keep {name}")
            kept.keeper.add_done_callback(self._keeper_ended)

    def pid(self, name: str) -> int | None:
        """The process id of a running service."""
        process = self._kept[name].process
        if process:
            return process.pid
        return None

    def url(self, name: str) -> str:
        """The URL of a service."""
        return self._kept[name].service.url

    def check(self) -> None:
        """Raise if a service failed permanently."""
        if self._failure is not None:
            raise self._failure

    async def until_ready(self, timeout_s: float) -> None:
        """Wait until every service is ready; raise with the reasons if one can't be, or isn't in
        time.
        """
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        ) as http:
            deadline = time.monotonic() + timeout_s
            while waits := {
                name: why
                for name, kept in self._kept.items()
                if not kept.service.optional and (why := await _unready(http, kept))
            }:
                # A service has failed permanently: the others would be waited for in vain.
                if self.over.is_set():
                    self.check()
                    raise ServiceFailedError("the suite was stopped before it was ready")
                if time.monotonic() > deadline:
                    told = "; ".join(f"{name}: {why}" for name, why in waits.items())
                    raise ServiceFailedError(f"not ready after {timeout_s:g} s: {told}")
                await wait_for(self.over, READY_INTERVAL_S)

    async def stop(self) -> None:
        """Stop every service in order."""
        self._stopping.set()
        # One after the other: the publisher still confirms what the reader has read.
        for kept in self._kept.values():
            await self._stop_one(kept)

    def hasten(self) -> None:
        """Don't wait any longer: kill what still runs."""
        self._hasty.set()
        for kept in self._kept.values():
            if kept.process is not None:
                kept.process.kill()

    async def _stop_one(self, kept: _Kept) -> None:
        if kept.keeper is None or kept.keeper.done():
            return
        if kept.process is not None:
            if self._hasty.is_set():
                kept.process.kill()
            else:
                kept.process.terminate()
        if await self._ended(kept.keeper, SAY_AFTER_S):
            return
        self._listener.news(f"waiting for {kept.service.name} to stop; Ctrl-C again kills it")
        if not await self._ended(kept.keeper, self._stop_timeout_s - SAY_AFTER_S):
            self._listener.news(
                f"{kept.service.name} did not stop in {self._stop_timeout_s:g} s: killing it"
            )
            assert kept.process is not None, "its keeper waits for nothing else"
            kept.process.kill()
            await kept.keeper

    async def _ended(self, keeper: asyncio.Task[None], timeout_s: float) -> bool:
        await asyncio.wait({keeper}, timeout=timeout_s)
        return keeper.done()

    async def _keep(self, kept: _Kept) -> None:
        """Run a service repeatedly until the stop."""
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        while not self._stopping.is_set():
            begun = time.monotonic()
            status = await self._run_once(kept)
            # In this order: during the stop, an end is expected and no news.
            if self._stopping.is_set() or self._is_last(kept, status):
                return
            if time.monotonic() - begun > STEADY_S:
                backoff.reset()
            pause_s = backoff.pause_s()
            self._listener.news(
                f"{kept.service.name} ended ({ended_by(status)}); restarting it in {pause_s:.1f} s"
            )
            await wait_for(self._stopping, pause_s)

    async def _run_once(self, kept: _Kept) -> int:
        name = kept.service.name
        process = await ServiceProcess.start(kept.service)
        kept.process = process
        # The stop came while the process was being started, and has found none to stop.
        if self._stopping.is_set():
            process.terminate()
        try:
            status = await process.run(lambda line: self._listener.line(name, line))
        finally:
            process.kill()
            kept.process = None
        if process.failure and kept.service.optional:
            self._listener.news(f"{name} can't run: {process.failure}")
        elif process.failure and not kept.was_ready:
            self._failure = ServiceFailedError(f"{name} can't run: {process.failure}")
        return status

    def _is_last(self, kept: _Kept, status: int) -> bool:
        """Whether this end is the suite's: a failure at startup, or a stop command on the bus."""
        # A service ends with 0 only on request, and the supervisor has requested nothing.
        if status == 0 and not kept.service.optional:
            self._listener.news(
                f"{kept.service.name} was stopped over the bus; stopping the others"
            )
            self.over.set()
        if self._failure is not None:
            self.over.set()
        return self.over.is_set()

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        """A keeper that fails takes the suite down visibly."""
        error = None if keeper.cancelled() else keeper.exception()
        if error is not None:
            self._failure = ServiceFailedError(
                f"the supervisor could not {keeper.get_name()}: {error!r}"
            )
            self.over.set()


async def _unready(http: aiohttp.ClientSession, kept: _Kept) -> str:
    """The reason why a service isn't ready; empty if it is."""
    # Once is enough: a service that waits for a server later has still started.
    if kept.was_ready:
        return ""
    try:
        async with http.get(f"{kept.service.url}/readyz") as answer:
            body = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return "does not answer yet"
    # Its readiness would say nothing about ours.
    if body.get("service") != kept.service.name:
        return f"another program answers on port {kept.service.http_port}"
    kept.was_ready = answer.status == 200
    if kept.was_ready:
        return ""
    return "; ".join(map(str, body["reasons"].values())) or "not ready"
