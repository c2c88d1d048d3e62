"""Whole transactions of a followed stream, whatever moment it is read at.

A consumer of JetStream is given messages one by one, also while the server is storing a group of
them; so a look at what has come may fall between two messages of a transaction. This reader gives
one out when all of it is here.

Promises: what it gives out is a transaction of PostgreSQL, whole and once, in commit order; only
one of more events than `events_max` comes in parts, each saying so, and so says one whose rest may
be lost in a gap. It waits no longer than asked, and keeps what has come of the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from headrace.consumer.event import Event
from headrace.consumer.follow import FETCH_WAIT_S, Consumer
from headrace.contract.events import GAP
from headrace.errors import HeadraceError

EVENTS_MAX = 100_000


class MixedError(HeadraceError):
    """The events of a transaction don't stand together in this stream."""

    remedy = (
        "Follow event by event, or run the publisher with `--delivery transaction`: "
        "there the transactions of all sources stand whole, one after the other."
    )


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one transaction did to the tables that are followed, in order."""

    events: tuple[Event, ...]
    # Whether this is its last part; false where it has more events than `events_max`, or a gap
    # stands behind it.
    ends: bool

    @property
    def lsn(self) -> int:
        """Where it committed."""
        return self.events[-1].position.lsn


@dataclass(slots=True)
class Transactions:
    """Reads a consumer by transactions: iterate over it, call `done` after applying each.

    Where only some tables are followed, the transaction's last event may not be among them; such a
    transaction is whole when the next one begins.
    """

    consumer: Consumer
    events_max: int = EVENTS_MAX
    _open: list[Event] = field(default_factory=list)

    async def __aiter__(self) -> AsyncIterator[Transaction]:
        while True:
            if (transaction := await self.next()) is not None:
                yield transaction

    async def next(self, wait_s: float = FETCH_WAIT_S) -> Transaction | None:
        """The next whole transaction; None when nothing came for `wait_s` before it was whole."""
        while (event := await self.consumer.peek(wait_s)) is not None:
            if self._open and _of_another(event, self._open[0]):
                return self._take(ends=True)
            if self._open and event.operation == GAP:
                # Nobody knows whether the lost changes were its rest. The gap itself is given out
                # next, alone.
                return self._take(ends=False)
            if len(self._open) >= self.events_max:
                # Only now: what has no more to come, its end being filtered out, is whole.
                return self._take(ends=False)
            await self._add()
            if _ends(self._open[0], self._open[-1]):
                return self._take(ends=True)
        return None

    async def done(self, transaction: Transaction) -> None:
        """It is applied: keep the watermark of its last event, acknowledge its messages."""
        *before, last = transaction.events
        await self.consumer.done(last, with_those_before=before)

    async def _add(self) -> None:
        event = await self.consumer.next()
        assert event is not None, "an event that was there to see is there to take"
        if event.lane != event.source:
            raise MixedError(f"{event.subject} carries arrays of one table's events")
        if self._open and event.source != self._open[0].source:
            raise MixedError(
                f"events of {event.source} stand inside a transaction of {self._open[0].source}"
            )
        self._open.append(event)

    def _take(self, *, ends: bool) -> Transaction:
        events = tuple(self._open)
        self._open = []
        return Transaction(events, ends)


def _of_another(event: Event, first: Event) -> bool:
    """What the catalog told has no transaction (xid 0): it belongs to the one that it stands in."""
    same_source = event.source == first.source
    return same_source and event.payload["tx"]["xid"] not in {0, first.payload["tx"]["xid"]}


def _ends(first: Event, last: Event) -> bool:
    return bool(last.payload["tx"]["last"]) or first.payload["tx"]["xid"] == 0
