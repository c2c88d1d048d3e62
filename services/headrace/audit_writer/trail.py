"""Whether the trail makes progress: this service's own state, and that of the services that feed
it.

For HEALTH_PORT with HEADRACE_AUDIT_HEALTH_READY: a supervisor that knows only that port can detect
a trail that makes no progress, for any reason.
"""

from __future__ import annotations

import time

from aiohttp import web
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.bus import participation, subjects
from headrace.errors import DecodeError
from headrace.process.health import Health
from headrace.settings import Settings

FEEDERS = ("wal-reader", "publisher")
# As telemetry has it: a report or two may be lost.
SILENT_S_MIN = 5.0
SILENT_REPORTS = 3


class Trail:
    def __init__(self, health: Health, settings: Settings) -> None:
        self._health = health
        self._slot = settings.source.slot
        self._silent_s = max(SILENT_S_MIN, SILENT_REPORTS * settings.process.stats_interval_s)
        # By service and instance: a standby is not ready, unlike the active one.
        self._heard: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}

    async def listen(self, client: Client) -> None:
        """Receive the reports of the services that feed the trail."""
        for service in FEEDERS:

            async def hear(message: Msg, service: str = service) -> None:
                self._hear(service, message.data)

            await client.subscribe(subjects.stats(self._slot, service), cb=hear)

    async def answer(self, _: web.Request) -> web.Response:
        """200 while the trail makes progress; else 503, with a line for each reason."""
        reasons = self.reasons(time.monotonic())
        if reasons:
            return web.Response(text="\n".join(reasons) + "\n", status=503)
        return web.Response(text="ok\n")

    def reasons(self, now: float) -> list[str]:
        """Why the trail makes no progress; empty while it does."""
        own = [f"audit-writer: {reason}" for reason in self._health.reasons.values()]
        return own + [reason for service in FEEDERS for reason in self._of(service, now)]

    def _of(self, service: str, now: float) -> list[str]:
        live = [
            reasons
            for (name, _), (at, reasons) in self._heard.items()
            if name == service and now - at <= self._silent_s
        ]
        if not live:
            return [f"{service}: no report was received for {self._silent_s:g} s"]
        # One ready instance is enough: a standby waits for its lease.
        return [f"{service}: {reason}" for reason in min(live, key=len).values()]

    def _hear(self, service: str, data: bytes) -> None:
        try:
            report = participation.decode_stats(data)
        except DecodeError:
            return
        now = time.monotonic()
        self._heard = {
            key: held for key, held in self._heard.items() if now - held[0] <= self._silent_s
        }
        self._heard[service, report.instance] = now, report.reasons
