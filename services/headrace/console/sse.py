"""One stream of server-sent events per tab, with the topics that the tab asks for.

A tab that takes nothing for a while is dropped. Of many events a tab gets a part, spread
evenly, and exact numbers of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from headrace.console.access import Caller
from headrace.console.cells import Redaction, event_document, weight
from headrace.console.filters import EventFilter
from headrace.console.guard import HEADERS
from headrace.console.live import LiveRing, by_table
from headrace.console.positions import number_in
from headrace.console.problem import ProblemError, invalid
from headrace.console.reading import StoredMessage
from headrace.console.suite_view import SuiteView
from headrace.consumer.event import Event
from headrace.process.lifecycle import Scope
from headrace.timing.waits import wait_for

TOPICS = frozenset({"overview", "events", "snapshots"})
FRAME_S = 0.1
BEAT_S = 1.0
OVERVIEW_S = 2.0
ROWS_MAX = 100
# A frame has fewer rows if they are large; the others are counted.
FRAME_BYTES_MAX = 256 << 10
# A list shows the beginning of a value; the page reads the event itself when it is opened.
CHARACTERS_MAX = 200
RECENT_MAX = 1_000
WRITE_TIMEOUT_S = 10.0
_HEADERS = {
    **HEADERS,
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    # nginx would collect the frames.
    "X-Accel-Buffering": "no",
}


class Live:
    """Serves the streams of all tabs, up to a number."""

    def __init__(
        self,
        scope: Scope,
        suite: SuiteView,
        ring: LiveRing,
        redaction: Redaction,
        source: str,
        streams_max: int,
        snapshots: Callable[[Caller], Awaitable[Mapping[str, Any]]],
    ) -> None:
        self._scope = scope
        self._suite = suite
        self._ring = ring
        self._redaction = redaction
        self._source = source
        self._streams_max = streams_max
        self._snapshots = snapshots
        self.open = 0

    async def serve(
        self, request: web.Request, caller: Caller, may_continue: Callable[[], bool]
    ) -> web.StreamResponse:
        topics = {part.strip() for part in request.query.get("topics", "").split(",")}
        if not topics or topics - TOPICS:
            raise invalid("topics names none, or unknown ones", f"Use {', '.join(sorted(TOPICS))}.")
        wanted = EventFilter.of(request.query)
        # A browser that can't follow still has every page, by asking.
        if self.open >= self._streams_max:
            raise ProblemError(
                429,
                "busy",
                f"{self.open} tabs follow live already.",
                "Close one of them, or raise HEADRACE_CONSOLE_LIVE_MAX.",
            )
        # Before the headers, which say that the request has succeeded.
        resumed = self._resumed_place(request)
        at = self._first_place(request) if resumed is None else resumed
        response = web.StreamResponse(headers=_HEADERS)
        follows = "events" in topics
        # Before the first await: requests that come meanwhile must not pass the check above.
        self.open += 1
        self._ring.followers += int(follows)
        try:
            await response.prepare(request)
            tab = _Tab(response, caller, wanted, self._redaction, at)
            await self._feed(tab, topics, may_continue, resumed=resumed is not None)
        except (ConnectionError, TimeoutError):
            # The tab has gone, or takes nothing any more.
            pass
        finally:
            self.open -= 1
            self._ring.followers -= int(follows)
        return response

    def _resumed_place(self, request: web.Request) -> int | None:
        """How many messages of the ring a tab has that connects again after an interruption; None
        if some that it lacks have left the ring.
        """
        last = number_in(request.headers.get("Last-Event-ID", ""))
        return None if last is None else self._ring.place_of(last)

    def _first_place(self, request: web.Request) -> int:
        """How many messages of the ring a new tab skips."""
        recent = number_in(request.query.get("recent", "0"))
        if recent is None or recent > RECENT_MAX:
            raise invalid(f"recent is a number up to {RECENT_MAX}")
        return max(0, self._ring.count - recent)

    async def _feed(
        self, tab: _Tab, topics: set[str], may_continue: Callable[[], bool], *, resumed: bool
    ) -> None:
        first = self._ring.first_seq
        await tab.send(
            "hello",
            {
                "topics": sorted(topics),
                "source": self._source,
                "ring_from": None if first is None else str(first),
                "resumed": resumed,
            },
        )
        loop = asyncio.get_running_loop()
        beat = overview = 0.0
        stale: list[Any] = []
        while not self._scope.stopping.is_set():
            # Before anything is sent: a caller that signed out sees nothing more.
            if not may_continue():
                ended = ProblemError(401, "sign_in", "Your session has ended.", "Sign in again.")
                await tab.send("bye", ended.body())
                return
            now = loop.time()
            # A part that becomes stale is sent immediately, the overview otherwise in its rhythm.
            parts = [one["part"] for one in self._suite.stale()]
            if "overview" in topics and (now - overview >= OVERVIEW_S or parts != stale):
                await tab.send("overview", self._suite.overview(tab.caller))
                overview = now
                stale = parts
            if "events" in topics:
                await tab.send_events(self._ring)
            # A silent connection looks like an idle one, unless it beats.
            if now - beat >= BEAT_S:
                if "snapshots" in topics:
                    await tab.send("snapshots", await self._snapshots(tab.caller))
                await tab.send("beat", {})
                beat = now
            await wait_for(self._scope.stopping, FRAME_S)
        bye = ProblemError(
            503, "unavailable", "The console stops.", "The page connects again automatically."
        )
        await tab.send("bye", bye.body())


@dataclass(slots=True)
class _Tab:
    """A tab: its filter, and the place that it has reached."""

    response: web.StreamResponse
    caller: Caller
    wanted: EventFilter
    redaction: Redaction
    at: int

    async def send(self, name: str, body: Mapping[str, Any], number: int | None = None) -> None:
        # JSON has no line breaks outside of strings, where they are escaped.
        frame = b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n"
        if number is not None:
            frame = b"id: " + str(number).encode() + b"\n" + frame
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await self.response.write(frame + b"\n")

    async def send_events(self, ring: LiveRing) -> None:
        """Send the events since the last time."""
        taken = ring.after(self.at)
        self.at = taken.at
        # A frame for each message would cost a tab more than the rows that it shows.
        if not taken.messages and not taken.missed:
            return
        published = sum(len(message.events) for message in taken.messages)
        items, matching = self._fitting(taken.messages)
        body = {
            "items": items,
            "shown": str(len(items)),
            "not_shown": str(matching - len(items)),
            "missed": str(taken.missed),
            "published": str(published),
            "by_table": by_table(taken.messages),
            "last_sequence": str(ring.last_seq),
        }
        await self.send("events", body, ring.last_seq)

    def _fitting(self, messages: list[StoredMessage]) -> tuple[list[dict[str, Any]], int]:
        """The rows to show, and how many events fit the filter."""
        fitting = [
            event for message in messages for event in message.events if self.wanted.accepts(event)
        ]
        if self.wanted.needs_values:
            # The filter judges what the caller sees, so it needs the rendered event.
            fitting = [
                event for event in fitting if self.wanted.fits(event, self.caller, self.redaction)
            ]
        return self._documents(_spread(fitting)), len(fitting)

    def _documents(self, events: list[Event]) -> list[dict[str, Any]]:
        """The events as rows, the last ones if these are large."""
        # Rendering is most of the work, so it is left out for what is not shown.
        found: list[dict[str, Any]] = []
        size = 0
        for event in reversed(events):
            found.append(event_document(event, self.caller, self.redaction, CHARACTERS_MAX))
            size += weight(found[-1])
            if size > FRAME_BYTES_MAX:
                break
        return found[::-1]


def _spread(found: list[Any]) -> list[Any]:
    """All of them, or as many as a tab takes, evenly and with the last."""
    # Only the newest rows would hide how a burst began.
    if len(found) <= ROWS_MAX:
        return found
    step = len(found) / ROWS_MAX
    return [found[int((number + 1) * step) - 1] for number in range(ROWS_MAX)]
