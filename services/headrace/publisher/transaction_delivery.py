"""`--delivery transaction`: a PostgreSQL transaction becomes visible in JetStream whole or not at
all.

Whole transactions are grouped into atomic batches, as many as are available and fit. One that is
larger than the server accepts is delivered in several, which a header states. The part of an open
transaction that is held here is void when the wal-reader starts a new epoch. An event that
completes something (a transaction's last one, or one outside any) waits for nothing.
"""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.jetstream.object_store import ObjectStore
from headrace.metrics.counters import Counters
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.event_delivery import Delivery
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.resume_point import ResumePoint

SPLIT_HEADER = {"Headrace-Transaction": "split"}


class SchemaEventsVoidError(HeadraceError):
    """A new epoch began inside a transaction with schema events."""

    retry = True


class TransactionDelivery(Delivery):
    def __init__(
        self, pipe: AtomicPipe, large: ObjectStore, place: ResumePoint, stats: Counters, source: str
    ) -> None:
        super().__init__(pipe, large, place, stats, source)
        self._atomic = pipe
        # The events of the open transaction that wait for its end, and where it began.
        self._open: list[PublishedEvent] = []
        self._open_bytes = 0
        self._before_open = self.position
        # The open transaction is too large for a group, or started before a crash: its parts are
        # stored as they come, and marked as parts.
        self._split = False

    @property
    def accepted(self) -> int:
        return self._pipe.published + len(self._open)

    def begin_epoch(self) -> None:
        super().begin_epoch()
        if not all(event.advances for event in self._open):
            # The schema book takes them for published, and would not report them again. The next
            # follower reads it together with the stream's tail.
            raise SchemaEventsVoidError("a new epoch began inside a transaction with schema events")
        if self._open:
            # The open transaction comes again from its start.
            self.position = self._before_open
        self._open = []
        self._open_bytes = 0
        self._split = False

    async def mark(self, mark: CompleteUpTo) -> None:
        # Its last event may have been in the stream already, or excluded.
        if mark.whole:
            await self._close()
        await super().mark(mark)

    async def rest(self, *, more: bool) -> None:
        # While a group is being stored the next one grows.
        if not (more and self._atomic.flying):
            await self._atomic.flush()

    async def flush(self) -> None:
        await self._atomic.flush()

    async def _take(self, event: PublishedEvent) -> None:
        if self._is_behind_lanes(event):
            # Part of its transaction, or of a later one, is in the stream.
            await self._atomic.flush()
            self._split = True
            await self._hand_over(SPLIT_HEADER)
            await self._send_behind_lanes(event, SPLIT_HEADER)
            return
        if self._split:
            await self._send(event, SPLIT_HEADER)
            return
        if not self._open:
            # If part of it is in the stream already, the rest is a part too.
            self._split = self._before.lsn == event.position.lsn
            self._before_open = self._before
        if self._split:
            await self._atomic.flush()
            await self._send(event, SPLIT_HEADER)
            return
        self._open.append(event)
        self._open_bytes += len(event.payload)
        if not self._atomic.fits_alone(len(self._open), self._open_bytes):
            await self._atomic.flush()
            self._split = True
            await self._hand_over(SPLIT_HEADER)
        if event.ends:
            await self._close()

    async def _take_all(self, events: list[PublishedEvent]) -> None:
        """Take events of an open transaction that fits without checking each one."""
        at = 0
        while at < len(events):
            self._before = self.position
            self.position = events[at].position
            await self._take(events[at])
            at += 1
            at += self._take_some(events, at)

    def _take_some(self, events: list[PublishedEvent], at: int) -> int:
        """Add events to the open transaction, except for its last one, as far as they fit; returns
        their number.
        """
        if not self._open or self._split or at >= len(events):
            return 0
        lsn = self._open[0].position.lsn
        size = self._open_bytes
        count = len(self._open)
        some: list[PublishedEvent] = []
        for event in events[at:]:
            size += len(event.payload)
            count += 1
            if event.ends or event.position.lsn != lsn or not self._atomic.fits_alone(count, size):
                break
            some.append(event)
        if some:
            self._open += some
            self._open_bytes += sum([len(event.payload) for event in some])
            self.position = some[-1].position
        return len(some)

    async def _close(self) -> None:
        """The transaction is complete: it joins the group, or starts the next."""
        # A split transaction gets a separate group: a whole one in it would seem split too.
        if self._split or not self._atomic.fits(len(self._open), self._open_bytes):
            await self._atomic.flush()
        await self._hand_over(None)
        self._split = False

    async def _hand_over(self, headers: dict[str, str] | None) -> None:
        events = self._open
        self._open = []
        self._open_bytes = 0
        # Events with positions and without headers are published as they are.
        if headers is None and all(event.advances for event in events):
            if events:
                self._sent.append((self._pipe.published, events))
                await self._pipe.publish_all(events)
            return
        for event in events:
            await self._send(event, headers)
