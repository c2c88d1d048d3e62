"""Telemetry's process: receives every service's metrics, watches the slot, serves both.

Promises: answers from its first moment to its last, even without NATS or PostgreSQL; prints the
METRICS line on stdout in the same form and rhythm with any log format, and a SUMMARY line at the
end. Never affects the stream: it only listens and reads.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace import log as logs
from headrace.bus import participation, subjects
from headrace.errors import DecodeError
from headrace.jetstream.connection import NatsUnreachableError, connected
from headrace.process.health import application, serving
from headrace.process.lifecycle import Scope
from headrace.process.service import http_port
from headrace.settings import Settings
from headrace.telemetry.configured import Configured
from headrace.telemetry.history import INTERVAL_S, History
from headrace.telemetry.otlp_export import OtlpExport
from headrace.telemetry.routes import Routes
from headrace.telemetry.slot_watch import SlotWatch
from headrace.telemetry.stream_watch import StreamWatch
from headrace.telemetry.suite import SuiteStatus, summary

log = logs.logger("telemetry")

SERVICE = "telemetry"
# The services' last reports arrive right after the stop command.
LAST_REPORTS_S = 0.3
# How often the configuration is compared with the services that are silent.
FORGET_S = 2.0


async def run(scope: Scope, settings: Settings) -> None:
    port = http_port(SERVICE, settings.process)
    suite = SuiteStatus(time.monotonic(), settings.process.stats_interval_s)
    configured = Configured.of(settings, os.environ)
    history = History()
    routes = Routes(settings, suite, history, scope.health)
    app = application(scope.health, settings.source.slot, routes.extend)
    # Before anything else: the port answers also while NATS and PostgreSQL are away.
    async with serving(app, settings.process.http_host, port):
        watch = scope.spawn("slot-watch", SlotWatch(scope, settings, suite).run())
        past = scope.spawn("history", _history(scope, suite, history))
        forgetting = scope.spawn("forgetting", _forget(scope, suite, configured))
        lines = scope.spawn("metrics-lines", _metrics_lines(scope, settings, suite))
        try:
            await _listen(scope, settings, suite, configured, routes)
        finally:
            # The other tasks wait for it, also if `_listen` failed.
            scope.stopping.set()
        # SUMMARY ends stdout, so every METRICS line has to be written before.
        await asyncio.gather(watch, lines, past, forgetting)
    _say(summary(suite, time.monotonic()))


async def _listen(
    scope: Scope, settings: Settings, suite: SuiteStatus, configured: Configured, routes: Routes
) -> None:
    export = None
    if settings.otel.endpoint:
        export = OtlpExport(scope, settings, suite, settings.otel.endpoint)
        scope.spawn("otlp-export", export.run())
    try:
        async with connected(scope, settings.nats) as client:
            routes.client = client
            await _hear(client, settings, suite, export)
            scope.health.started()
            scope.spawn(
                "stream-watch", StreamWatch(scope, settings, suite, configured, client).run()
            )
            reports = scope.spawn(
                "reports", participation.take_part(scope, client, settings.source.slot)
            )
            await scope.stopping.wait()
            await reports
            await asyncio.sleep(LAST_REPORTS_S)
    except NatsUnreachableError:
        # Stopped before NATS was ever reachable: that is a normal end.
        if not scope.stopping.is_set():
            raise


async def _hear(
    client: Client, settings: Settings, suite: SuiteStatus, export: OtlpExport | None
) -> None:
    async def report(message: Msg) -> None:
        service = subjects.reporting_service(message.subject)
        try:
            found = participation.decode_stats(message.data)
        except DecodeError as error:
            log.warning("report_ignored", service=service, reason=str(error))
            return
        suite.hear(service, found, time.monotonic())
        if export is not None:
            export.hear(service, found.spans)

    for services in ("*", "sink-*"):
        await client.subscribe(subjects.stats(settings.source.slot, services), cb=report)
    # The server has the subscription once this returns: no later report is missed.
    await client.flush()
    log.info("reports_heard", slot=settings.source.slot)


async def _history(scope: Scope, suite: SuiteStatus, history: History) -> None:
    while not scope.stopping.is_set():
        history.take(suite, time.monotonic())
        await scope.pause(INTERVAL_S)


async def _forget(scope: Scope, suite: SuiteStatus, configured: Configured) -> None:
    """Forget services that have left the suite; the others stay, however long they are silent."""
    while not scope.stopping.is_set():
        now = time.monotonic()
        await configured.look(now)
        for service in suite.forget(configured.asked, now):
            log.info("service_forgotten", service=service)
        await scope.pause(FORGET_S)


async def _metrics_lines(scope: Scope, settings: Settings, suite: SuiteStatus) -> None:
    interval = settings.watch.metrics_interval_s
    due = suite.started_at + interval
    while not scope.stopping.is_set():
        await scope.pause(due - time.monotonic())
        if time.monotonic() >= due:
            _say(suite.totals(time.monotonic()).line())
            # By the clock, so that the rhythm does not drift by the time that a line takes.
            due += interval


def _say(line: str) -> None:
    """On stdout, unbuffered: a pipe may read it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
