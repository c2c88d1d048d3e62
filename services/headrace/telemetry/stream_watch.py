"""Watches the streams and their durable consumers, and warns before one of them loses events.

Promises: reads only; sends a bounded number of requests at each check; an unavailable JetStream is
a state, not an end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.errors import HeadraceError, describe
from headrace.metrics.counters import Counters
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.telemetry.configured import Configured
from headrace.telemetry.retention import (
    ConsumerView,
    Standing,
    StreamView,
    WritingPace,
    judge,
)
from headrace.telemetry.suite import SuiteStatus

log = logs.logger("telemetry")

# Each consumer that is behind costs a further request, for its oldest message: if there are very
# many, those that are furthest behind are looked at.
CONSUMERS_MAX = 100
_TIMEOUT_S = 3.0


class StreamUnreadableError(HeadraceError):
    """JetStream gives no information about a stream."""

    retry = True


@dataclass(eq=False)
class StreamWatch:
    _scope: Scope
    _settings: Settings
    _suite: SuiteStatus
    _configured: Configured
    _client: Client
    _pace: WritingPace = field(default_factory=WritingPace)
    _near: set[str] = field(default_factory=set)
    _lost: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        while not self._scope.stopping.is_set():
            # Without a connection each request would wait for its time-out.
            if self._client.is_connected:
                await self.look()
            await self._scope.pause(self._settings.watch.stream_interval_s)

    async def look(self) -> None:
        """Read streams and consumers once."""
        names = self._settings.streams
        try:
            infos = [await self._ask(f"STREAM.INFO.{name}") for name in (names.cdc, names.init)]
            views = [StreamView.of(info) for info in infos]
            cdc = views[0]
            self._pace.add(time.monotonic(), cdc)
            standings = await self._standings(cdc.name)
            durables = frozenset(standing.name for standing in standings)
            self._configured.consumers(str(infos[0]["created"]), durables, time.monotonic())
            consumers = [
                await self._consumer(cdc, standing) for standing in standings[:CONSUMERS_MAX]
            ]
        except (StreamUnreadableError, NatsError, TimeoutError, ValueError, KeyError) as error:
            # The last views stay: an unavailable JetStream is a state, not an end.
            log.debug("streams_not_visible", reason=describe(error))
            return
        self._suite.streams = tuple(views)
        self._suite.consumers = tuple(consumers)
        _figures(self._scope.health.stats, views, consumers)
        self._tell(consumers)

    async def _ask(self, what: str, **body: Any) -> dict[str, Any]:
        answer = await self._client.request(
            f"$JS.API.{what}", orjson.dumps(body) if body else b"", timeout=_TIMEOUT_S
        )
        found: dict[str, Any] = orjson.loads(answer.data)
        if "error" in found:
            raise StreamUnreadableError(str(found["error"].get("description", "unknown error")))
        return found

    async def _standings(self, stream: str) -> list[Standing]:
        """The positions of the durable consumers, the one that is furthest behind first."""
        found: list[Standing] = []
        offset = 0
        while True:
            page = await self._ask(f"CONSUMER.LIST.{stream}", offset=offset)
            consumers = page.get("consumers") or []
            found += [Standing.of(info) for info in consumers if info["config"].get("durable_name")]
            # At least one: an empty page must not repeat forever.
            offset += max(len(consumers), 1)
            if offset >= page.get("total", 0):
                return sorted(found, key=lambda standing: standing.floor_seq)

    async def _consumer(self, stream: StreamView, standing: Standing) -> ConsumerView:
        age_s = await self._oldest_age_s(stream, standing) if standing.behind else 0.0
        return judge(stream, standing, age_s, self._pace.bytes_per_s)

    async def _oldest_age_s(self, stream: StreamView, standing: Standing) -> float:
        """The age of the oldest message that this consumer has not acknowledged."""
        seq = max(standing.floor_seq + 1, stream.first_seq)
        try:
            found = await self._ask(
                f"STREAM.MSG.GET.{stream.name}", seq=seq, next_by_subj=standing.subject
            )
        except StreamUnreadableError:
            # Discarded since, or acknowledged by now.
            return 0.0
        return max(
            0.0, time.time() - datetime.fromisoformat(_micros(found["message"]["time"])).timestamp()
        )

    def _tell(self, consumers: list[ConsumerView]) -> None:
        near = {
            view.key
            for view in consumers
            if view.left_ratio < self._settings.watch.consumer_left_min
        }
        for view in consumers:
            if view.key in near - self._near:
                said = {
                    "pending": view.pending,
                    "left_ratio": view.left_ratio,
                    "left_s": view.left_s,
                }
                log.warning("consumer_near_loss", stream=view.stream, consumer=view.name, **said)
            elif view.key in self._near - near:
                log.info("consumer_out_of_danger", stream=view.stream, consumer=view.name)
            if view.lost > self._lost.get(view.key, 0):
                remedy = (
                    "the consumer has to bootstrap again; enlarge the stream's retention, or "
                    "speed up "
                    "the consumer"
                )
                log.error(
                    "consumer_lost_events", consumer=view.name, messages=view.lost, remedy=remedy
                )
        self._near = near
        # Only present ones: a deleted consumer's count must not silence a new one of its name.
        self._lost = {view.key: view.lost for view in consumers}


def _figures(stats: Counters, streams: list[StreamView], consumers: list[ConsumerView]) -> None:
    """As series by stream, and by stream and consumer; deleted ones disappear."""
    stats.set_series("stream_messages", {view.name: view.messages for view in streams})
    stats.set_series("stream_bytes", {view.name: view.bytes for view in streams})
    stats.set_series(
        "stream_max_bytes", {view.name: view.bytes_max for view in streams if view.bytes_max}
    )
    stats.set_series(
        "stream_max_age_seconds", {view.name: view.age_max_s for view in streams if view.age_max_s}
    )
    stats.set_series("stream_last_seq", {view.name: view.last_seq for view in streams})
    stats.set_series("stream_consumers", {view.name: view.consumers for view in streams})
    stats.set_series("consumer_pending_messages", {view.key: view.pending for view in consumers})
    stats.set_series(
        "consumer_unacknowledged_messages", {view.key: view.unacknowledged for view in consumers}
    )
    stats.set_series("consumer_lag_seconds", {view.key: view.lag_s for view in consumers})
    stats.set_series(
        "consumer_left_seconds",
        {view.key: view.left_s for view in consumers if view.left_s is not None},
    )
    stats.set_series(
        "consumer_left_bytes",
        {view.key: view.left_bytes for view in consumers if view.left_bytes is not None},
    )
    stats.set_series("consumer_left_ratio", {view.key: view.left_ratio for view in consumers})
    stats.set_series("consumer_lost_messages", {view.key: view.lost for view in consumers})


def _micros(stamp: str) -> str:
    """NATS writes nanoseconds, or as many digits as are not zero; Python reads six."""
    head, _, fraction = stamp.removesuffix("Z").partition(".")
    return f"{head}.{fraction[:6]:0<6}+00:00"
