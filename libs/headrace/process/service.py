"""Runs a service's work with its HTTP port, NATS connection, reports and orderly stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from nats.aio.client import Client

from headrace.bus import participation
from headrace.jetstream.connection import NatsUnreachableError, connected
from headrace.process.health import application, serving
from headrace.process.lifecycle import Scope
from headrace.settings import ProcessSettings, Settings
from headrace.suite.services import facts_of


def http_port(service: str, process: ProcessSettings) -> int:
    """The port of a service: the one that is set, else its own."""
    if process.http_port is not None:
        return process.http_port
    facts = facts_of(service)
    assert facts is not None, service
    return facts.port


async def on_the_bus(
    scope: Scope,
    settings: Settings,
    work: Callable[[Client], Awaitable[None]],
    extend: Callable[[web.Application], None] | None = None,
) -> None:
    """Run a service's work while its port is served and its metrics are reported.

    `extend` adds routes to that port. The service stops when its work is done. A service that is
    stopped before NATS was ever reachable ends like any other.
    """
    # Without a collector nobody would read the spans.
    if settings.otel.endpoint:
        scope.health.traces.every = settings.otel.trace_every
    else:
        scope.health.traces.every = 0
    port = http_port(scope.service, settings.process)
    app = application(scope.health, settings.source.slot)
    if extend is not None:
        extend(app)
    # Before the connection, so that /readyz shows that NATS is not reachable.
    async with serving(app, settings.process.http_host, port):
        try:
            async with connected(scope, settings.nats) as client:
                reports = scope.spawn(
                    "reports", participation.take_part(scope, client, settings.source.slot)
                )
                await work(client)
                # The reports end after one more report, which shows why the service is not ready.
                scope.stopping.set()
                await reports
        except NatsUnreachableError:
            if not scope.stopping.is_set():
                raise
