"""How events become messages: one each. What the other ways of delivery share is here too.

A delivery knows how far the stream has been given events (`position`), skips what is there already, and tells which
LSN may be confirmed. Promises: events of a table never change their order; a mark is settled only when every event
before it is stored.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from headrace.failpoint import failpoint
from headrace.jetstream.large import LargeStore
from headrace.jetstream.message import Outgoing
from headrace.lsn import ORIGIN, Position
from headrace.metrics import Stats, count
from headrace.publisher.assembler import Event, Mark
from headrace.publisher.ledger import Ledger
from headrace.publisher.progress import Place


class Pipe(Protocol):
    """Where messages go: a chain, or atomic batches."""

    @property
    def acked(self) -> int:
        """How many messages, counted from the first, are stored."""
        ...

    @property
    def published(self) -> int:
        """How many were handed over."""
        ...

    async def publish(self, message: Outgoing) -> None:
        """Hand a message over; waits while too many are under way."""
        ...

    async def drain(self) -> None:
        """Wait until everything handed over is stored."""
        ...


class Delivery:
    """`--delivery event`: a message for each event, at once."""

    def __init__(self, pipe: Pipe, large: LargeStore, place: Place, stats: Stats) -> None:
        self._pipe = pipe
        self._large = large
        self._stats = stats
        self._ids_after = place.ids_after
        self._lanes = place.lanes
        self._ledger = Ledger()
        self._transactions = 0
        self._sent: deque[tuple[int, Position, str]] = deque()
        self._last = (place.position, place.progress.msg_id)
        # Every event up to here was handed over, or was in the stream already.
        self.position = place.position
        # The position in front of the event at hand.
        self._before = place.position

    @property
    def wait_s(self) -> float | None:
        """How soon `rest` wants to be called again though nothing came; None: it doesn't matter."""
        return None

    @property
    def waiting(self) -> bool:
        """Whether something that could be confirmed is not stored yet."""
        return self._ledger.waiting

    def begin_epoch(self) -> None:
        """The wal-reader begins again, before `position`; older marks come again too."""
        self._transactions += self._ledger.transactions
        self._ledger = Ledger()

    async def event(self, event: Event) -> None:
        position = event.position
        there = position <= self.position or event.msg_id in self._ids_after
        if there or (self._lanes and position <= self._lanes.get(lane_of(event.subject), ORIGIN)):
            count(self._stats, "skipped_events")
            if event.advances:
                self.position = max(self.position, event.position)
            return
        if event.large is not None:
            # What is before it need not wait for an object store that refuses.
            await self.flush()
            await self._pipe.drain()
            await self._large.put(event.msg_id, event.large)
            failpoint("publisher.after_large_before_event")
        self._before = self.position
        if event.advances:
            self.position = position
        await self._take(event)

    async def mark(self, mark: Mark) -> None:
        """Everything before the mark's LSN was given to `event`."""
        self._ledger.mark(mark.lsn, self.accepted, whole=mark.whole)

    async def rest(self) -> None:
        """Nothing more is at hand just now."""

    async def flush(self) -> None:
        """Hand over everything that may be, now."""

    @property
    def accepted(self) -> int:
        """How many messages there are, with those not handed over yet."""
        return self._pipe.published

    def settle(self) -> int:
        """The LSN that may be confirmed."""
        lsn = self._ledger.settle(self._pipe.acked)
        self._stats["transactions"] = self._transactions + self._ledger.transactions
        return lsn

    def stored(self) -> tuple[Position, str]:
        """Position and message id up to which everything is stored."""
        while self._sent and self._sent[0][0] <= self._pipe.acked:
            self._last = self._sent.popleft()[1:]
        return self._last

    async def _take(self, event: Event) -> None:
        """Take an event that is not in the stream."""
        if event.advances:
            self._sent.append((self._pipe.published + 1, event.position, event.msg_id))
        await self._pipe.publish(event)

    async def _send(self, event: Event, headers: dict[str, str] | None = None) -> None:
        if headers is None:
            await self._publish(event, event.position)
            return
        merged = {**event.headers, **headers}
        message = Outgoing(event.subject, event.msg_id, event.payload, merged, event.advances)
        await self._publish(message, event.position)

    async def _publish(self, message: Outgoing, position: Position) -> None:
        """Hand a message over; if it advances, everything up to `position` is stored with it."""
        if message.advances:
            self._sent.append((self._pipe.published + 1, position, message.msg_id))
        await self._pipe.publish(message)


def lane_of(subject: str) -> str:
    """The table, by its token, among whose events this subject's keep their order."""
    return subject.split(".", 2)[1]
