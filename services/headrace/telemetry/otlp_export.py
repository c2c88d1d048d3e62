"""Sends the suite's metrics and spans to an OpenTelemetry collector.

Promises: without an endpoint nothing is sent, and nothing of it imported; an unavailable collector
causes one warning per outage and nothing else: metrics are cumulative, so the next export makes up
for it, and spans wait, up to a limit. Spans may be sent twice, always under the same ids.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from headrace import log as logs
from headrace.errors import SettingError, describe
from headrace.metrics.counters import Stats
from headrace.process.lifecycle import Scope
from headrace.process.tracing import Span
from headrace.settings import OtelSettings, Settings
from headrace.telemetry.otlp_transport import RequestRefusedError, Way, way
from headrace.telemetry.suite import SuiteStatus

log = logs.logger("telemetry")

# The oldest are dropped while the collector is unavailable: traces are only a sample.
SPANS_MAX = 4096


class Encoder(Protocol):
    """Encodes OTLP's messages."""

    def metrics(self, stats_by_service: Mapping[str, Stats], source: str, now_s: float) -> bytes:
        """A request with metrics."""

    def traces(self, spans_by_service: Mapping[str, list[Span]], source: str) -> bytes:
        """A request with spans."""


def encoder() -> Encoder:
    """OTLP's messages; raises if the extra is missing."""
    try:
        from headrace.telemetry import otlp  # noqa: PLC0415  # only who sends needs what it needs
    except ImportError as error:
        raise SettingError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and OpenTelemetry's messages are not installed",
            remedy="Install headrace[otel], or unset it.",
        ) from error
    return otlp


def headers_of(settings: OtelSettings) -> dict[str, str]:
    """`name=value,name=value`, as in OpenTelemetry's own variable."""
    pairs = [pair.partition("=") for pair in (settings.headers or "").split(",") if pair.strip()]
    return {name.strip(): value.strip() for name, _, value in pairs}


class OtlpExport:
    def __init__(self, scope: Scope, settings: Settings, suite: SuiteStatus, endpoint: str) -> None:
        self._scope = scope
        self._settings = settings
        self._suite = suite
        self._endpoint = endpoint
        self._encoder = encoder()
        self._spans: deque[tuple[str, Span]] = deque(maxlen=SPANS_MAX)
        self._away = False

    def hear(self, service: str, spans: tuple[Span, ...]) -> None:
        """Spans that came with a report."""
        self._spans.extend((service, span) for span in spans)

    async def run(self) -> None:
        """Send at intervals, and once more at the end."""
        settings = self._settings.otel
        to = way(settings, self._endpoint, headers_of(settings))
        try:
            while not self._scope.stopping.is_set():
                # Ends early at the stop, so the last export has the final counts.
                await self._scope.pause(settings.interval_s)
                await self._send(to)
        finally:
            await to.close()

    async def _send(self, to: Way) -> None:
        failure: OSError | None = None
        for send in (self._send_metrics, self._send_spans):
            try:
                await send(to)
            except RequestRefusedError as error:
                # A collector may take one kind and not the other.
                failure = failure or error
            # A time-out is an OSError, too.
            except OSError as error:
                failure = failure or error
                break
        if failure is not None and not self._away:
            log.warning("otlp_not_taken", endpoint=self._endpoint, reason=describe(failure))
        elif failure is None and self._away:
            log.info("otlp_taken", endpoint=self._endpoint)
        self._away = failure is not None

    async def _send_metrics(self, to: Way) -> None:
        own = {self._scope.service: {**self._scope.health.refreshed(), "up": 1}}
        exposed = {**self._suite.exposed(time.monotonic()), **own}
        source = self._settings.source.slot
        await to.post("metrics", self._encoder.metrics(exposed, source, time.time()))

    async def _send_spans(self, to: Way) -> None:
        # Reports bring more while these are sent.
        sent = list(self._spans)
        self._spans.clear()
        if not sent:
            return
        found: dict[str, list[Span]] = {}
        for service, span in sent:
            found.setdefault(service, []).append(span)
        try:
            await to.post("traces", self._encoder.traces(found, self._settings.source.slot))
        except RequestRefusedError:
            # The same spans would be refused again, and later ones with them.
            raise
        except OSError:
            self._spans = deque([*sent, *self._spans], maxlen=SPANS_MAX)
            raise
