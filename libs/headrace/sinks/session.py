"""One session of a sink: reads transactions, routes them, writes and commits.

Promises: a commit contains whole transactions, and the marks of exactly what was written. Only a
transaction that a gap cuts off is committed without its end, together with the gap's record. An
error ends the session, and what was not committed is read again by the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Protocol

from headrace.consumer import Transaction, Watermark
from headrace.lsn import ORIGIN
from headrace.metrics.counters import Counters
from headrace.process.failpoint import failpoint
from headrace.sinks.port import SEEN, Pace, Sink, SinkAwayError
from headrace.sinks.reading import is_diverged
from headrace.sinks.routing import RoutedTransaction, Router

IDLE_S = 1.0
# How often an idle sink stores how far it has seen the stream, so that a restart does not read
# again what concerned others.
KEEP_SEEN_S = 10.0


class Reader(Protocol):
    """The transactions of one source."""

    @property
    def settled_seq(self) -> int: ...

    async def next(self, wait_s: float) -> Transaction | None: ...

    async def done(self, stream_seq: int) -> None: ...


@dataclass(slots=True)
class SinkSession:
    sink: Sink
    router: Router
    reader: Reader
    marks: dict[str, Watermark]
    stats: Counters
    pace: Pace = field(default_factory=Pace)
    # Set once this session has committed something.
    worked: bool = False
    _buffer: list[RoutedTransaction] = field(default_factory=list)
    # Events that were read since the last commit; when the first one was.
    _events: int = 0
    _since: float = 0.0
    # Whether the last transaction has come completely.
    _whole: bool = True
    # The source was replaced: the next session compares no position with the former ones.
    _ends: bool = False
    _kept_at: float = field(default_factory=time.monotonic)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until the event is set; what is whole by then is committed."""
        while not stopping.is_set() and not self._ends:
            await self.turn()
        if self._whole and self._events:
            await self._commit()

    async def turn(self) -> None:
        """Read one transaction, and commit if it is time."""
        transaction = await self.reader.next(self._patience_s)
        if transaction is not None:
            await self._take(transaction)
        if self._whole and self._is_due:
            await self._commit()

    @property
    def seen_seq(self) -> int:
        """Everything up to here is committed, or is not for this sink."""
        return self._seen

    @property
    def _patience_s(self) -> float:
        # Never longer: between two reads the session looks whether it has to stop.
        if self._events and self._whole:
            return min(IDLE_S, max(0.0, self._since + self.pace.wait_s - time.monotonic()))
        return IDLE_S

    @property
    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._events:
            return self._events >= self.pace.events_max or now >= self._since + self.pace.wait_s
        return now >= self._kept_at + KEEP_SEEN_S and self.reader.settled_seq > self._seen

    @property
    def _seen(self) -> int:
        return self.marks.get(SEEN, Watermark()).stream_seq

    async def _take(self, transaction: Transaction) -> None:
        if not self._events:
            self._since = time.monotonic()
        routed = self.router.route(transaction)
        if routed is not None:
            self._buffer.append(routed)
        self._events += len(transaction.events)
        self._whole = transaction.ends
        for event in transaction.events:
            if is_diverged(event):
                self.marks[event.source] = Watermark(ORIGIN, event.stream_seq)
                self._ends = True
            elif event.advances:
                self.marks[event.source] = Watermark(event.position, event.stream_seq)
        if self._events >= self.pace.events_max:
            await self._write()

    async def _write(self) -> None:
        buffer = self._buffer
        self._buffer = []
        if not buffer:
            return
        failpoint("sink.before_write")
        await self._within("write", self.sink.write(buffer))
        failpoint("sink.written")
        self.stats.count("sink_records", sum(len(one.records) for one in buffer))
        self.stats.count("sink_transactions", sum(one.ends for one in buffer))

    async def _commit(self) -> None:
        await self._write()
        seen_seq = max(self._seen, self.reader.settled_seq)
        # A message may contain events of later transactions too, so it is read again: reading
        # starts where the stream was seen, and the position says what is committed.
        for lane, mark in self.marks.items():
            # A lane with a slash is that of a copy, whose mark counts chunks.
            if "/" not in lane:
                self.marks[lane] = replace(mark, stream_seq=min(mark.stream_seq, seen_seq))
        self.marks[SEEN] = Watermark(ORIGIN, seen_seq)
        failpoint("sink.before_commit")
        began = time.monotonic()
        await self._within("commit", self.sink.commit(dict(self.marks)))
        self.stats.observe("sink_commit_seconds", time.monotonic() - began)
        failpoint("sink.committed")
        self.worked = True
        self._events = 0
        await self.reader.done(self._seen)
        self._kept_at = time.monotonic()
        self.stats.count("sink_commits")
        self.stats.set("sink_stream_seq", self._seen)

    async def _within(self, what: str, call: Awaitable[None]) -> None:
        """End the session if the target never answers; the next one resolves the outcome."""
        try:
            async with asyncio.timeout(self.pace.timeout_s):
                await call
        except TimeoutError as error:
            raise SinkAwayError(
                f"the target did not answer a {what} within {self.pace.timeout_s:g} s"
            ) from error
