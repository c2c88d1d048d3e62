"""Health of a process: alive while its loop runs, ready while nothing blocks its work.

Serves `/livez`, `/readyz` (503 with the reasons; warnings in either case), `/standbyz` (200 also
while the only reason is another instance that works) and `/metrics` on the service's own port.
Responses contain only names, counts and reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.http.limits import BODY_BYTES_MAX, IDLE_TIMEOUT_S, Door
from headrace.metrics.counters import Counters, Stats
from headrace.metrics.exposition import CONTENT_TYPE, exposition
from headrace.process import resources
from headrace.process.tracing import Traces

log = logs.logger("health")


class PortError(HeadraceError):
    """The service can't listen on its health and metrics port."""


class Health:
    """The reasons, if any, why a service can't work now; and its metrics."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.stats = Counters()
        # Callbacks that refresh gauges on demand.
        self.refreshers: list[Callable[[Counters], None]] = [resources.refresh]
        self.traces = Traces()
        # Conditions that need attention but don't make the service unready.
        self.warnings: dict[str, str] = {}
        # Not ready from the start: the port is open before the service can work.
        self._reasons: dict[str, str] = {"start": "starting"}
        # The parts of them that wait for another instance.
        self._standing: set[str] = set()

    def started(self) -> None:
        self.unblock("start")

    def block(self, part: str, reason: str) -> None:
        """Say that `part` can't work now; readiness turns false until `unblock`."""
        # Callers repeat the same reason at every attempt, and the log needs it once.
        if self._reasons.get(part) != reason:
            log.warning("not_ready", part=part, reason=reason)
        self._reasons[part] = reason
        self._standing.discard(part)

    def stand_by(self, part: str, reason: str) -> None:
        """Say that `part` could work, and waits because another instance does."""
        self.block(part, f"standing by: {reason}")
        self._standing.add(part)

    def unblock(self, part: str) -> None:
        self._standing.discard(part)
        if self._reasons.pop(part, None) is not None and not self._reasons:
            log.info("ready")

    @property
    def reasons(self) -> dict[str, str]:
        return dict(self._reasons)

    @property
    def ready(self) -> bool:
        return not self._reasons

    @property
    def standing_by(self) -> bool:
        """Whether it would work if the other instance ended."""
        return bool(self._standing) and self._reasons.keys() <= {"start", *self._standing}

    def refreshed(self) -> Stats:
        """The current metrics."""
        self.stats.set("ready", int(self.ready))
        self.stats.set_series("not_ready", dict.fromkeys(self._reasons, 1.0))
        for refresh in self.refreshers:
            refresh(self.stats)
        return self.stats.values()


def application(
    health: Health, source: str, extend: Callable[[web.Application], None] | None = None
) -> web.Application:
    """The HTTP application of a service; `extend` adds the service's own routes."""

    async def livez(_: web.Request) -> web.Response:
        # Not dependent on servers: a restart does not help a service that waits for one.
        return web.json_response({"status": "ok", "service": health.service})

    def answer(*, ok: bool) -> web.Response:
        body = {"status": "ok", "service": health.service, "reasons": health.reasons}
        if health.warnings:
            body["warnings"] = health.warnings
        if ok:
            return web.json_response(body)
        return web.json_response(body | {"status": "unavailable"}, status=503)

    async def readyz(_: web.Request) -> web.Response:
        return answer(ok=health.ready)

    async def standbyz(_: web.Request) -> web.Response:
        return answer(ok=health.ready or health.standing_by)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=exposition({health.service: health.refreshed()}, source),
            headers={"Content-Type": CONTENT_TYPE},
        )

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/standbyz", standbyz)
    if extend is None:
        app.router.add_get("/metrics", metrics)
    else:
        extend(app)
    return app


@contextlib.asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the bound port."""
    door = Door()
    door.guard(app)
    # Without an access log, which probes and scrapes would fill.
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_TIMEOUT_S)
    await runner.setup()
    listening: asyncio.Server | None = None
    try:
        try:
            listening = await door.open(runner, host, port)
        except OSError as error:
            raise PortError(
                f"can't listen on port {port} of {host}: {error.strerror}",
                remedy=(
                    "Choose another port with --port or HEADRACE_HTTP_PORT, or stop the "
                    "program that "
                    "uses it."
                ),
            ) from error
        bound = int(listening.sockets[0].getsockname()[1])
        log.info("http_listening", host=host, port=bound)
        yield bound
    finally:
        # Before the cleanup, so that no connection arrives while the others are closed.
        if listening is not None:
            listening.close()
        await runner.cleanup()
