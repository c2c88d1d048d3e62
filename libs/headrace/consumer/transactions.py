"""Reads a followed stream by whole transactions.

A JetStream consumer receives messages one by one, even while the server stores a group of them, so
the messages available at any moment may end inside a transaction. This reader returns a transaction
once all of it has arrived.

Promises: it returns PostgreSQL's transactions, whole and once, in commit order. Only a transaction
of more than `events_max` events comes in parts, each marked as one; so is a transaction whose rest
may be lost in a gap. It waits no longer than asked, and keeps what has arrived of the next
transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from headrace.consumer.event import Event
from headrace.consumer.follow import FETCH_WAIT_S, Consumer
from headrace.contract.events import GAP
from headrace.errors import HeadraceError

# Bounds the memory: no transaction is larger in one piece.
EVENTS_MAX = 100_000


class MixedError(HeadraceError):
    """The events of a transaction are not consecutive in this stream."""

    remedy = (
        "Follow event by event, or run the publisher with `--delivery transaction`, which "
        "keeps the transactions of all sources consecutive. In a stream of several sources, follow "
        "all subjects: a filter may leave out the end of a transaction."
    )


@dataclass(frozen=True, slots=True)
class Transaction:
    """The changes that one transaction made to the followed tables, in order."""

    # Never empty.
    events: tuple[Event, ...]
    # Whether this is its last part; false if it has more events than `events_max`, or a gap
    # follows.
    ends: bool

    @property
    def lsn(self) -> int:
        """The LSN of its commit."""
        return self.events[-1].position.lsn


@dataclass(slots=True)
class Transactions:
    """Reads a consumer by transactions: iterate over it, and call `done` after applying each.

        transactions = Transactions(consumer)
        async for transaction in transactions:
            ...                       # apply transaction.events
            await transactions.done(transaction)

    If only some tables are followed, the transaction's last event may not be among them; such a
    transaction is complete when the next one starts.
    """

    # An open consumer, which nothing else may read at the same time.
    consumer: Consumer
    # A larger transaction is returned in parts, which bounds the memory.
    events_max: int = EVENTS_MAX
    # Events of the transaction that has not ended yet, all of the same source.
    _open: list[Event] = field(default_factory=list)

    async def __aiter__(self) -> AsyncIterator[Transaction]:
        while True:
            if (transaction := await self.next()) is not None:
                yield transaction

    async def next(self, wait_s: float = FETCH_WAIT_S) -> Transaction | None:
        """Return the next whole transaction, or None if nothing arrives for `wait_s` meanwhile.

        Raises `MixedError` if the events of transactions are interleaved in this stream.
        """
        # An event is only looked at first. If it belongs to another transaction, it must stay in
        # the consumer: taking it would make it the consumer's current event, which is the one that
        # `done` must name.
        while (event := await self.consumer.peek(wait_s)) is not None:
            if self._open and _of_another(event, self._open[0]):
                return self._take(ends=True)
            if self._open and event.operation == GAP:
                # It is unknown whether the lost changes belong to it. The gap itself is returned
                # next, separately.
                return self._take(ends=False)
            if len(self._open) >= self.events_max:
                # Only now: a transaction whose end is filtered out is complete when nothing more
                # can follow.
                return self._take(ends=False)
            await self._add()
            if _ends(self._open[0], self._open[-1]):
                return self._take(ends=True)
        return None

    async def done(self, transaction: Transaction) -> None:
        """Mark a transaction as applied: store the watermark of its last event, and acknowledge
        its messages.
        """
        *before, last = transaction.events
        await self.consumer.done(last, with_those_before=before)

    async def _add(self) -> None:
        event = await self.consumer.next()
        assert event is not None, "an event that was available can be taken"
        # Arrays contain one table's events of several transactions: no order of messages restores
        # them.
        if event.lane != event.source:
            raise MixedError(f"{event.subject} contains arrays of one table's events")
        # Sources have independent transactions; with single events they may be interleaved in a
        # shared stream.
        if self._open and event.source != self._open[0].source:
            raise MixedError(
                f"events of {event.source} are inside a transaction of {self._open[0].source}"
            )
        self._open.append(event)

    def _take(self, *, ends: bool) -> Transaction:
        events = tuple(self._open)
        self._open = []
        return Transaction(events, ends)


def _of_another(event: Event, first: Event) -> bool:
    """Events from the catalog have no transaction (xid 0): they belong to the one around them."""
    same_source = event.source == first.source
    return same_source and event.payload["tx"]["xid"] not in {0, first.payload["tx"]["xid"]}


def _ends(first: Event, last: Event) -> bool:
    return bool(last.payload["tx"]["last"]) or first.payload["tx"]["xid"] == 0
