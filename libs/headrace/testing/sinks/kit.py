"""One target under test: what the kit may do to it, and what was committed in it so far.

It never talks to the target itself: the sink writes, and `read` reads with the target's own client.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.consumer import Transaction, Watermark
from headrace.sinks.port import SEEN, Promise, Sink, SinkAwayError, SinkOptions
from headrace.sinks.routing import Record, RoutedTransaction
from headrace.testing.sinks.records import FIRST_LSN, MARK, STEP, Change, Maker, changes, inserts

# Of the records that an error names.
SHOWN = 20
# How long a target may be away, or not show what it has confirmed, after its start.
AWAY_S = 60.0
AGAIN_S = 0.3

MakeSink = Callable[[], Sink]
# The IDs of all records that readers see, in the readers' order.
Read = Callable[[], Sequence[str]]
# The values of all records that readers see, by ID.
ReadValues = Callable[[], Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class Process:
    """Runs the sink in a process that the kit kills."""

    # `package.module:Class`, or `kafka:` and so on for a built-in one; and the arguments.
    sink: str
    options: SinkOptions
    # Failpoints within the sink, in addition to the frame's.
    points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proxied:
    """Lets the kit come between the sink and its server, on loopback."""

    # The server's port.
    port: int
    # A sink that reaches the server by this port instead.
    make: Callable[[int], Sink]
    # The port on which the kit has to listen; 0 for any.
    listen: int = 0


@dataclass(frozen=True, slots=True)
class Backup:
    """Brings the target back to an older state, as a restored backup does."""

    save: Callable[[], Awaitable[None]]
    restore: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Bench:
    """A sink, how to read what it wrote, and what the kit may do to it. A claim that needs what is
    missing here is not checked, and `run` does not name it.
    """

    make: MakeSink
    read: Read
    values: ReadValues | None = None
    process: Process | None = None
    proxied: Proxied | None = None
    backup: Backup | None = None
    # A record of this many bytes is refused; 0 if one of 4 MB is accepted.
    refused_bytes: int = 0
    # The topic, stream or table that the sink delivers to.
    destination: str = "public.conformance"


@dataclass(slots=True)
class Kit:
    """One target, and what was committed in it so far."""

    bench: Bench
    promise: Promise
    # The next commit LSN.
    lsn: int = FIRST_LSN
    committed: list[Record] = field(default_factory=list)
    history: list[RoutedTransaction] = field(default_factory=list)
    marks: dict[str, Watermark] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        return self.promise is Promise.EXACTLY_ONCE

    def transaction(self, size: int) -> RoutedTransaction:
        """A new transaction with this many records of one table."""
        return self.routed(inserts(self.next_lsn(), size))

    def changed(self, found: Sequence[Change]) -> RoutedTransaction:
        """A new transaction of these operations and rows."""
        return self.routed(changes(self.next_lsn(), found))

    def routed(self, transaction: Transaction) -> RoutedTransaction:
        return Maker(self.bench.destination).routed(transaction)

    def next_lsn(self) -> int:
        self.lsn += STEP
        return self.lsn

    def marks_of(self, transaction: RoutedTransaction) -> dict[str, Watermark]:
        """All marks after a transaction."""
        mark = Watermark(transaction.position, transaction.stream_seq)
        seen = Watermark(stream_seq=transaction.stream_seq)
        return {**self.marks, transaction.source: mark, SEEN: seen}

    def note(self, *transactions: RoutedTransaction) -> None:
        """Expect these transactions in the target from now on."""
        self.marks = self.marks_of(transactions[-1])
        self.history += transactions
        for one in transactions:
            self.committed += one.records

    async def deliver(self, sink: Sink, transaction: RoutedTransaction) -> None:
        """Write and commit, as the frame does."""
        await sink.write([transaction])
        await sink.commit(self.marks_of(transaction))
        self.note(transaction)

    async def visible(self) -> list[str]:
        """The records of this kit that readers see; without repeats if the promise allows them."""
        found = await asyncio.to_thread(self.bench.read)
        ours = [one for one in found if MARK in one]
        if self.promise is Promise.AT_LEAST_ONCE:
            return list(dict.fromkeys(ours))
        return ours

    async def shows(self, wanted: list[str]) -> bool:
        """Whether readers see exactly these, at the latest some time after the target's start: a
        broker may still end transactions that it has confirmed.
        """
        deadline = time.monotonic() + AWAY_S
        while await self.visible() != wanted:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(AGAIN_S)
        return True

    async def seen_with(self, transaction: RoutedTransaction) -> list[str]:
        """The IDs that readers see once this transaction is visible, some time after its commit."""
        wanted = {record.id for record in (*self.committed, *transaction.records)}
        deadline = time.monotonic() + AWAY_S
        while not wanted <= {*(found := await self.visible())}:
            assert time.monotonic() < deadline, f"readers see {found[-SHOWN:]} at last"
            await asyncio.sleep(AGAIN_S)
        return found

    async def expect(self, claim: str) -> None:
        """Raise unless readers see exactly what was committed, in order."""
        found = await self.visible()
        wanted = [record.id for record in self.committed]
        if missing := [one for one in wanted if one not in set(found)]:
            raise AssertionError(f"{claim}: readers do not see {missing[:SHOWN]}")
        if unknown := [one for one in found if one not in set(wanted)]:
            said = f"readers see {unknown[:SHOWN]}, which were not committed"
            raise AssertionError(f"{claim}: {said}")
        if twice := [one for one, count in Counter(found).items() if count > 1]:
            raise AssertionError(f"{claim}: readers see a record twice: {twice[:SHOWN]}")
        if self.is_exact and found != wanted:
            there, expected = next(
                pair for pair in zip(found, wanted, strict=True) if len({*pair}) > 1
            )
            raise AssertionError(f"{claim}: the order has {there}, where {expected} was committed")
        self._in_order_by_key(claim, found)

    def _in_order_by_key(self, claim: str, found: Sequence[str]) -> None:
        place = {one: number for number, one in enumerate(found)}
        by_key: dict[bytes | None, list[str]] = {}
        for record in self.committed:
            by_key.setdefault(record.key, []).append(record.id)
        for key, ids in by_key.items():
            for first, second in pairwise(ids):
                assert place[first] < place[second], (
                    f"{claim}: the order of the key {key!r}: {second} comes before {first}"
                )


@contextlib.asynccontextmanager
async def opened(make: MakeSink) -> AsyncIterator[tuple[Sink, dict[str, Watermark]]]:
    """A session's sink, and the marks that it starts with. As the frame does, it tries again while
    the target is away: a server may need some time after its start.
    """
    deadline = time.monotonic() + AWAY_S
    while True:
        sink = make()
        try:
            try:
                marks = dict(await sink.open())
            except SinkAwayError:
                if time.monotonic() >= deadline:
                    raise
            else:
                yield sink, marks
                return
        finally:
            with contextlib.suppress(Exception):
                await sink.close()
        await asyncio.sleep(AGAIN_S)
