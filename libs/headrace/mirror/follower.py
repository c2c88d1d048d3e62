"""The mirror's one reading of the stream, for all tables that are past their bootstrap.

Promises: what is applied and how far that is are committed together; a transaction of the source becomes visible as a
whole, where the stream delivers it as events; nothing that the stream dropped passes in silence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client

from headrace import log as logs
from headrace.consumer import Consumer, Event, MemoryWatermarks, Subscription, Watermark, follow
from headrace.contract.events import decode, position_of
from headrace.contract.naming import CDC, CDC_SUBJECTS, GAP_SUBJECT
from headrace.metrics import Stats, count
from headrace.mirror.book import SEEN, Book, heed_cancellation
from headrace.mirror.bootstrap import Streams
from headrace.mirror.changes import Changes
from headrace.mirror.hold import Hold

log = logs.logger("mirror")

COMMIT_EVENTS = 1000
SPILL_EVENTS = 5000
SPILL_BYTES = 32 * 1024 * 1024
IDLE_S = 1.0
# With the rest of a transaction not here: it may be of tables that nobody follows.
TAIL_S = 0.2
KEEP_SEEN_S = 5.0


class Follower:
    def __init__(
        self, book: Book, client: Client, streams: Streams, hold: Hold, stats: Stats, *, every_table: bool
    ) -> None:
        self._book = book
        self._client = client
        self._streams = streams
        self._hold = hold
        self._stats = stats
        self._every_table = every_table
        self._changes = Changes(book, every_table=every_table)
        self._buffer: list[Event] = []
        self._large_bytes = 0
        self._marks = MemoryWatermarks()
        self._last: Event | None = None
        self._writing = False
        self._kept_at = 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop."""
        while not stopping.is_set():
            await self._follow(stopping)

    async def _follow(self, stopping: asyncio.Event) -> None:
        self._buffer, self._large_bytes, self._marks, self._last = [], 0, MemoryWatermarks(), None
        for lane, mark in self._book.lanes.items():
            await self._marks.save(lane, mark)
        filters = self._filters()
        durable, start_seq = f"mirror-{self._book.identity}", self._book.seen_seq + 1
        subscription = Subscription(
            self._streams.cdc, filters, durable, start_seq=start_seq, state_bucket=self._streams.state
        )
        self._book.subscribed = None if self._every_table else frozenset(self._book.tables)
        async with follow(self._client, subscription, self._marks) as consumer:
            log.info("following", tables=len(self._book.tables), stream_seq=self._book.seen_seq)
            while not stopping.is_set():
                heed_cancellation()
                await self._turn(consumer)
                if not self._buffer and not self._writing and self._filters() != filters:
                    return
                if self._changes.diverged and not self._writing:
                    await self._drop_lanes()
                    return
            if not self._open:
                await self._flush(consumer)

    def _filters(self) -> tuple[str, ...]:
        if self._every_table:
            return (CDC_SUBJECTS,)
        return (*(f"{CDC}.{token}.>" for token in sorted(self._book.tables)), GAP_SUBJECT)

    async def _turn(self, consumer: Consumer) -> None:
        event = await consumer.peek(TAIL_S if self._open else IDLE_S)
        if event is None and self._open and not await self._is_over():
            return
        if self._must_wait(event):
            await self._flush(consumer)
            await self._hold.wait(TAIL_S)
        elif event is None:
            await self._flush(consumer)
        else:
            if self._is_enough and _begins_another(event, self._buffer[-1]):
                await self._flush(consumer)
            await self._take(consumer, event)

    @property
    def _open(self) -> bool:
        return self._last is not None and not _ends(self._last)

    async def _is_over(self) -> bool:
        """Whether the transaction of what was taken last has no more events: its end may be of tables not followed."""
        last = self._last
        assert last is not None
        message = await self._client.jetstream().get_last_msg(self._streams.cdc, CDC_SUBJECTS)
        decoded = decode(message.data or b"")
        newest = decoded[-1] if isinstance(decoded, list) else decoded
        if newest["source"] != last.source:
            return True
        here, there = last.position, position_of(newest)
        return there.lsn > here.lsn or (there == here and int(message.seq or 0) <= last.stream_seq and _is_last(newest))

    def _must_wait(self, event: Event | None) -> bool:
        if event is None:
            return self._hold.stops(0)
        if self._hold.lsn == 0:
            return (self._last is None or not self._open) and self._hold.stops(0)
        return self._hold.stops(event.position.lsn)

    @property
    def _is_enough(self) -> bool:
        return len(self._buffer) >= COMMIT_EVENTS

    async def _take(self, consumer: Consumer, seen: Event) -> None:
        reference = seen.payload.get("reference")
        self._large_bytes += int(reference["bytes"]) if reference else 0
        event = await consumer.next()
        assert event is not None, "what was there to see is there to take"
        self._buffer.append(event)
        self._last = event
        await consumer.done(event)
        if _ends(event) and (self._is_enough or not consumer.has_more):
            await self._flush(consumer)
        elif len(self._buffer) >= SPILL_EVENTS or self._large_bytes >= SPILL_BYTES:
            await self._spill()

    async def _spill(self) -> None:
        """Write what is here of a large transaction, and keep the target's transaction open for its rest."""
        if not self._writing:
            await self._book.lock.acquire()
            self._writing = True
        events, self._buffer, self._large_bytes = self._buffer, [], 0
        await self._book.write(self._changes.of(events))
        count(self._stats, "mirror_events", len(events))

    async def _flush(self, consumer: Consumer) -> None:
        """Commit all that was taken, with how far that is."""
        idle = not self._buffer and not self._writing
        if idle and (time.monotonic() - self._kept_at < KEEP_SEEN_S or consumer.seen_seq <= self._book.seen_seq):
            return
        await self._spill()
        lanes = await self._marks.load()
        self._book.keep_lanes({**lanes, SEEN: Watermark(stream_seq=consumer.seen_seq)})
        self._book.inside = self._last is not None and not self._last.closes
        await self._book.commit()
        self._writing = False
        self._book.lock.release()
        self._kept_at = time.monotonic()
        self._stats["mirror_stream_seq"] = consumer.seen_seq
        if self._last is not None:
            self._stats["mirror_lsn"] = self._last.position.lsn

    async def _drop_lanes(self) -> None:
        """Positions of a source whose log is another one now would skip what is new."""
        async with self._book.lock:
            gone, self._changes.diverged = self._changes.diverged, set()
            lanes = self._book.lanes.items()
            self._book.keep_lanes({lane: mark for lane, mark in lanes if lane.split("/")[0] not in gone})
            await self._book.commit()


def _is_last(payload: Mapping[str, Any]) -> bool:
    return bool(payload["tx"]["last"]) or payload["tx"]["xid"] == 0


def _ends(event: Event) -> bool:
    """Whether all of its transaction is here, where events stand for themselves; all of its message, in batches."""
    return event.closes if event.lane != event.source else _is_last(event.payload)


def _begins_another(event: Event, last: Event) -> bool:
    return event.lane == event.source and event.position.lsn != last.position.lsn
