"""Reads one source's whole transactions from the stream, for every delivery mode.

Promises: transactions come in commit order, each once, whole unless they have more than
`EVENTS_MAX` events or a gap cuts them off; it skips events of other sources. Acknowledges
only what the sink has committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from headrace.consumer import Consumer, Event, Transaction, Watermark
from headrace.contract.events import GAP
from headrace.lsn import ORIGIN, Position, parse_lsn
from headrace.mirror.assembly import Assembly, is_outside
from headrace.mirror.changes import DIVERGED
from headrace.mirror.reach import Reach

# Bounds the memory: a larger transaction comes in parts.
EVENTS_MAX = 100_000


@dataclass(slots=True)
class SourceTransactions:
    """Reads a consumer that nothing else reads."""

    consumer: Consumer
    source: str
    # How far the publisher has stored everything: no event of an idle source completes its last
    # arrays.
    reach: Reach | None = None
    # The sink's mark: everything up to it is committed there.
    applied: Position = ORIGIN
    events_max: int = EVENTS_MAX
    _assembly: Assembly = field(default_factory=Assembly)
    _queue: deque[Transaction] = field(default_factory=deque)
    # The last commit of which an event has come.
    _newest: int = 0

    @property
    def settled_seq(self) -> int:
        """Every message up to here is returned completely, or is of other sources."""
        waiting = [self.consumer.seen_seq]
        if (first := self._assembly.first_seq) is not None:
            waiting.append(first - 1)
        waiting += [event.stream_seq - 1 for one in self._queue for event in one.events]
        return min(waiting)

    async def next(self, wait_s: float) -> Transaction | None:
        """The next transaction, or None if there is no complete one within about this time."""
        if not self._queue:
            events = await self.consumer.take(wait_s)
            for event in events:
                self._add(event)
            if not events and self._assembly.size:
                await self._complete()
            self._collect()
        if self._queue:
            return self._queue.popleft()
        return None

    async def done(self, stream_seq: int) -> None:
        """Everything up to this message is committed in the sink."""
        await self.consumer.settle(stream_seq)

    async def _complete(self) -> None:
        """Ask whether what has come of the last transactions is all of them."""
        if self.reach is None or not self._newest:
            return
        if await self.reach.is_behind(self.source, self._newest + 1, self.consumer.seen_seq):
            self._assembly.end_before(self.source, self._newest + 1)

    def _add(self, event: Event) -> None:
        if event.source != self.source:
            return
        if event.operation == GAP:
            self._collect()
            self._cut_off(event)
        # Arrays are read again from their first event that is not committed.
        if event.advances and event.position <= self.applied:
            self._assembly.precede(event)
            self._assembly.follow(event)
            return
        if not is_outside(event):
            self._newest = max(self._newest, event.position.lsn)
        self._assembly.take(event)
        while self._assembly.size >= self.events_max:
            self._collect()
            if self._assembly.size >= self.events_max:
                self._queue.append(Transaction(tuple(self._assembly.part()), ends=False))

    def _cut_off(self, gap: Event) -> None:
        """Return what has come of transactions whose rest is lost."""
        if is_diverged(gap):
            up_to = None
        else:
            up_to = parse_lsn(str(gap.payload["up_to"]))
        while self._assembly.size and (up_to is None or self._assembly.lacks(self.source, up_to)):
            self._queue.append(Transaction(tuple(self._assembly.part()), ends=False))

    def _collect(self) -> None:
        """Move whole transactions into the queue."""
        ready = self._assembly.ready()
        if not ready:
            return
        # Arrays bring a transaction's tables one after the other. Sorting keeps the order of
        # events with one position: a schema event, then its first row.
        inside = sorted(
            (event for event in ready if not is_outside(event)), key=lambda event: event.position
        )
        outside = deque(event for event in ready if is_outside(event))
        for lsn, events in groupby(inside, key=lambda event: event.position.lsn):
            whole = tuple(events)
            while outside and outside[0].stream_seq < whole[0].stream_seq:
                self._queue.append(Transaction((outside.popleft(),), ends=True))
            self._queue.append(Transaction(whole, ends=True))
            self.applied = max(self.applied, Position(lsn, whole[-1].position.seq))
        self._queue += (Transaction((event,), ends=True) for event in outside)


def is_diverged(event: Event) -> bool:
    """Whether the source is another server from here on, whose positions begin again."""
    return event.operation == GAP and event.payload["reason"] == DIVERGED


def source_mark(marks: Mapping[str, Watermark], source: str) -> Position:
    """How far a source is committed."""
    return marks.get(source, Watermark()).position
