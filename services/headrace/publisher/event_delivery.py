"""`--delivery event`: a message for each event; also the base of the other delivery modes.

A delivery knows how far the stream has been given events (`position`), skips what is there already,
and says which LSN may be confirmed. Promises: events of a table never change their order; a mark
counts only when every event before it is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, Protocol

from headrace.contract.events import POSITION_HEADER, position_header
from headrace.jetstream.object_store import ObjectStore
from headrace.jetstream.publishing.message import NO_HEADERS, Message, Outgoing
from headrace.jetstream.publishing.pipe import Pipe
from headrace.lsn import ORIGIN, Position
from headrace.metrics.counters import Counters
from headrace.process.failpoint import failpoint
from headrace.publisher.ledger import Ledger
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.resume_point import ResumePoint

_LARGE = attrgetter("large")


class _Placed(Protocol):
    """Says with which message the stream has reached which position."""

    @property
    def position(self) -> Position: ...

    @property
    def msg_id(self) -> str: ...


class _End(NamedTuple):
    position: Position
    msg_id: str


class Delivery:
    """A message for each event, immediately."""

    def __init__(
        self, pipe: Pipe, large: ObjectStore, place: ResumePoint, stats: Counters, source: str
    ) -> None:
        self._source = source
        self._pipe = pipe
        self._large = large
        self._stats = stats
        self._ids_after = place.ids_after
        self._lanes = place.lanes
        self._lanes_end = max(place.lanes.values(), default=ORIGIN)
        # The stream's last message says: everything up to here is in it.
        self._floor = place.position
        self._ledger = Ledger()
        self._transactions = 0
        # Runs of consecutive messages that advance, each with the number handed over before it.
        self._sent: deque[tuple[int, Sequence[_Placed]]] = deque()
        self._last = (place.position, place.progress.msg_id)
        # Every event up to here was handed over, or was in the stream already.
        self.position = place.position
        # The position before the current event.
        self._before = place.position

    @property
    def wait_s(self) -> float | None:
        """How soon `rest` must be called again without new events; None: it doesn't matter."""
        return None

    @property
    def waiting(self) -> bool:
        """Whether something that could be confirmed is not stored yet."""
        return self._ledger.waiting

    @property
    def reached_lsn(self) -> int:
        """The commit of the last transaction with events in the stream, or about to be."""
        return max(self.position, self._lanes_end).lsn

    @property
    def past_lanes(self) -> bool:
        """Whether all stored events are at or before `stored()`: until the stream is past the
        arrays that a crash cut off, events are stored that do not advance it.
        """
        return self._last[0] >= self._lanes_end

    def begin_epoch(self) -> None:
        """The wal-reader starts again, before `position`; older marks come again too."""
        self._transactions += self._ledger.transactions
        self._ledger = Ledger()

    async def event(self, event: PublishedEvent) -> None:
        position = event.position
        # After a restart or in a new epoch, PostgreSQL sends again what the stream contains.
        there = position <= self.position or event.msg_id in self._ids_after
        if there or (self._lanes and position <= self._lanes.get(lane_of(event.subject), ORIGIN)):
            self._stats.count("skipped_events")
            if event.advances:
                self.position = max(self.position, event.position)
            return
        if event.large is not None:
            # Earlier events need not wait for an object store that refuses.
            await self.flush()
            await self._pipe.drain()
            await self._large.put(event.msg_id, event.large)
            failpoint("publisher.after_large_before_event")
        self._before = self.position
        if event.advances:
            self.position = position
        await self._take(event)

    async def events(self, events: list[PublishedEvent]) -> None:
        """`event` for several in sequence, all of which advance."""
        # Positions only rise, so the first one decides for all.
        new = events[0].position > max(self.position, self._lanes_end)
        if new and not any(map(_LARGE, events)):
            await self._take_all(events)
            return
        for event in events:
            await self.event(event)

    async def mark(self, mark: CompleteUpTo) -> None:
        """Everything before the mark's LSN was passed to `event`."""
        # Counted with what is still held back, so that the mark waits for it too.
        self._ledger.mark(mark.lsn, self.accepted, whole=mark.whole)

    async def rest(self, *, more: bool) -> None:
        """A frame is finished; `more`: the next one is available."""

    async def flush(self) -> None:
        """Hand over everything that may be handed over now."""

    @property
    def accepted(self) -> int:
        """The number of messages, including those not handed over yet."""
        return self._pipe.published

    def confirmable(self) -> int:
        """The LSN that may be confirmed."""
        lsn = self._ledger.confirmable(self._pipe.acked)
        self._stats.set("transactions", self._transactions + self._ledger.transactions)
        return lsn

    def stored(self) -> tuple[Position, str]:
        """Position and message id up to which everything is stored."""
        # A run that is partly acknowledged stays: its first part is the stored end for now.
        while self._sent:
            before, run = self._sent[0]
            stored = self._pipe.acked - before
            if stored > 0:
                last = run[min(stored, len(run)) - 1]
                self._last = (last.position, last.msg_id)
            if stored < len(run):
                break
            self._sent.popleft()
        return self._last

    async def _take(self, event: PublishedEvent) -> None:
        """Take an event that is not in the stream."""
        if self._is_behind_lanes(event):
            await self._send_behind_lanes(event)
            return
        # Noted before it is sent: its acknowledgement may come while `publish` waits for room.
        if event.advances:
            self._sent.append((self._pipe.published, (event,)))
        await self._pipe.publish(event)

    async def _take_all(self, events: list[PublishedEvent]) -> None:
        """Take events that are not in the stream, that advance, and that fit a message."""
        self._before = self.position if len(events) == 1 else events[-2].position
        self.position = events[-1].position
        self._sent.append((self._pipe.published, events))
        await self._pipe.publish_all(events)

    def _is_behind_lanes(self, event: PublishedEvent) -> bool:
        """Whether interrupted arrays go further, in batches: then its position is not how far the
        stream is.
        """
        return event.advances and event.position < self._lanes_end

    async def _send_behind_lanes(
        self, event: PublishedEvent, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """With the stream's floor: after a crash, a publisher must meet those arrays again."""
        floor = {POSITION_HEADER: position_header(self._source, self._floor)}
        merged = {**event.headers, **headers, **floor}
        await self._publish(
            Outgoing(event.subject, event.msg_id, event.payload, merged, advances=False),
            event.position,
        )

    async def _send(self, event: PublishedEvent, headers: dict[str, str] | None = None) -> None:
        if headers is None:
            await self._publish(event, event.position)
            return
        merged = {**event.headers, **headers}
        message = Outgoing(event.subject, event.msg_id, event.payload, merged, event.advances)
        await self._publish(message, event.position)

    async def _publish(self, message: Message, position: Position) -> None:
        """Hand a message over; if it advances, everything up to `position` is stored with it."""
        if message.advances:
            self._sent.append((self._pipe.published, (_End(position, message.msg_id),)))
        await self._pipe.publish(message)


@lru_cache(maxsize=4096)
def lane_of(subject: str) -> str:
    """The table's token: events of its subjects keep their order."""
    return subject.split(".", 2)[1]
