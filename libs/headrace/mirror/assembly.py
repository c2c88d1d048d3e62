"""Assembles a mirror's events into whole transactions. Pure.

Promises: returns only whole transactions, each source's in commit order, no matter which other
events are in between. Only the stream completes a transaction: its own last event, a later event of
its source, or an array whose header says before which LSN everything is complete. Elapsed time
proves nothing.
"""

from __future__ import annotations

from headrace.consumer.event import Event
from headrace.contract.events import GAP


class Assembly:
    def __init__(self) -> None:
        # By source: events of transactions that have not ended. Sources are independent, so one
        # that waits must not hold up the others.
        self._pending: dict[str, list[Event]] = {}
        # By source: every transaction that committed before this LSN is complete here.
        self._whole: dict[str, int] = {}
        # The number of events in `_pending`.
        self.size = 0
        # Whether `ready` may find more than at its last call, and its argument then.
        self._changed = False
        self._below: int | None = None

    @property
    def first_seq(self) -> int | None:
        """The first message with an event that is waiting here."""
        firsts = [event.stream_seq for events in self._pending.values() for event in events[:1]]
        return min(firsts, default=None)

    def precede(self, event: Event) -> None:
        """Note what an event implies about earlier ones, whether it is taken or not."""
        if event.lane != event.source or event.operation == GAP:
            # Arrays of different tables have no order among each other; a gap may cut off an open
            # transaction, or be inside it.
            return
        # Events outside transactions come inside one if its publisher started the transaction
        # again.
        self._end(event.source, event.position.lsn)

    def follow(self, event: Event) -> None:
        """Note what an event implies about its own transaction, whether it is taken or not."""
        # The publisher states in an array before which LSN everything is in the stream: it knows,
        # because it flushes all tables together (docs/adr/0020).
        if event.complete:
            self._end(event.source, event.complete)
        if event.lane == event.source and event.payload["tx"]["last"] and not is_outside(event):
            self._end(event.source, event.position.lsn + 1)

    def take(self, event: Event) -> None:
        self.precede(event)
        self._pending.setdefault(event.source, []).append(event)
        self.size += 1
        # An event outside transactions is ready immediately; any other only once `_end` moves.
        self._changed = self._changed or is_outside(event)
        self.follow(event)

    def end_before(self, source: str, lsn: int) -> None:
        """Note that every transaction that committed before this LSN is here completely."""
        self._end(source, lsn)

    def is_whole(self, source: str, lsn: int) -> bool:
        """Whether the transaction that committed there is complete."""
        return lsn < self._whole.get(source, 0)

    def waits(self, source: str, lsn: int) -> bool:
        """Whether an event is waiting here that committed there or later."""
        return any(event.position.lsn >= lsn for event in self._pending.get(source, ()))

    def lacks(self, source: str, lsn: int) -> bool:
        """Whether an event is waiting here that committed before it."""
        return any(event.position.lsn < lsn for event in self._pending.get(source, ()))

    def ready(self, below: int | None = None) -> list[Event]:
        """Take out the complete transactions; `below`: only those committed before this LSN."""
        if not self._changed and below == self._below:
            return []
        self._changed = False
        self._below = below
        found: list[Event] = []
        for source, events in list(self._pending.items()):
            end = self._whole.get(source, 0)
            end = end if below is None else min(end, below)
            if any(_is_over(event, end) for event in events):
                found += [event for event in events if _is_over(event, end)]
                self._keep(source, [event for event in events if not _is_over(event, end)])
        return found

    def part(self) -> list[Event]:
        """Take out a part of an unfinished transaction that fills the buffer: the oldest of the
        fullest source.
        """
        # The fullest source fills the buffer; of its transactions the oldest ends first, so its
        # part is needed first.
        source = max(self._pending, key=lambda one: len(self._pending[one]))
        events = self._pending[source]
        lsn = min(event.position.lsn for event in events)
        self._keep(source, [event for event in events if event.position.lsn > lsn])
        return [event for event in events if event.position.lsn == lsn]

    def tear(self, source: str, lsn: int | None) -> None:
        """Drop the transactions before this LSN (None: all): their rest was lost."""
        events = self._pending.get(source, [])
        self._keep(
            source, [event for event in events if lsn is not None and event.position.lsn >= lsn]
        )

    def _end(self, source: str, lsn: int) -> None:
        # Never backward: statements about the same source may arrive out of order (arrays of
        # several tables).
        if lsn > self._whole.get(source, 0):
            self._whole[source] = lsn
            self._changed = True

    def _keep(self, source: str, events: list[Event]) -> None:
        before = self._pending.pop(source, [])
        if events:
            self._pending[source] = events
        self.size += len(events) - len(before)


def is_outside(event: Event) -> bool:
    """Whether it is outside transactions, like gaps and events from the catalog."""
    return bool(event.payload["tx"]["xid"] == 0)


def _is_over(event: Event, end: int) -> bool:
    return is_outside(event) or event.position.lsn < end
