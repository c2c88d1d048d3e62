"""`--delivery batch`: each table's events in arrays, cut by number, size and age.

All tables are flushed together, so that everything before a flush is in the stream. The last
message of a flush states that in its position header (the floor); the others keep the previous
floor, and after a crash during a flush a table's own last position (its lane) shows which of its
events are stored. Until the stream is beyond every lane that such a crash left, nothing is a floor:
a reader that starts from a floor must meet those lanes.

Tables are not in commit order among each other, so each array also says before which LSN
transactions are complete in the stream: a reader of several tables uses that to show whole
transactions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headrace.contract import events
from headrace.contract.subjects_and_ids import MESSAGES, batch_subject
from headrace.jetstream.object_store import ObjectStore
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Pipe
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.publisher.event_delivery import Delivery, lane_of
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.resume_point import ResumePoint
from headrace.settings import Settings

# Between two elements of an array; MessagePack has none, and stays a little below the limit.
_SEPARATOR_BYTES = 1


@dataclass(slots=True)
class _Batch:
    payloads: list[bytes] = field(default_factory=list)
    size: int = 0
    last_id: str = ""


class BatchDelivery(Delivery):
    def __init__(
        self,
        pipe: Pipe,
        large: ObjectStore,
        place: ResumePoint,
        stats: Counters,
        settings: Settings,
        payload_bytes_max: int,
    ) -> None:
        super().__init__(pipe, large, place, stats, settings.source.slot)
        self._encoding = settings.format.encoding
        self._limits = settings.delivery
        self._bytes_max = min(settings.delivery.batch_bytes_max, payload_bytes_max)
        self._batches: dict[str, _Batch] = {}
        # When the first event of the current batches came.
        self._since = 0.0
        # The last mark that the events in the batches hold back.
        self._mark: CompleteUpTo | None = None
        # Every transaction that committed before it was passed to `event`; and is in the stream, as
        # of the last flush.
        self._given_lsn = 0
        self._complete_lsn = 0

    @property
    def wait_s(self) -> float | None:
        if not self._batches:
            return None
        return max(0.001, self._since + self._limits.batch_age_max_s - time.monotonic())

    @property
    def waiting(self) -> bool:
        return self._mark is not None or super().waiting

    @property
    def accepted(self) -> int:
        return self._pipe.published + len(self._batches)

    def begin_epoch(self) -> None:
        super().begin_epoch()
        # It speaks of the epoch before. The batches stay: their events are behind `position`, so
        # they don't come again.
        self._mark = None

    async def mark(self, mark: CompleteUpTo) -> None:
        # After a new epoch, older marks come again.
        self._given_lsn = max(self._given_lsn, mark.lsn)
        if self._batches:
            # Its events are still here: it counts from their flush on.
            self._transactions += self._mark is not None and self._mark.whole
            self._mark = mark
        else:
            self._mark = None
            await super().mark(mark)

    async def rest(self, *, more: bool) -> None:  # noqa: ARG002 — only the age counts
        if self._batches and time.monotonic() - self._since >= self._limits.batch_age_max_s:
            await self.flush()

    async def _take(self, event: PublishedEvent) -> None:
        token = lane_of(event.subject)
        if not event.advances or event.large is not None or token == MESSAGES:
            # A single event comes after everything before it.
            await self._flush(up_to=self._before)
            await self._alone(event)
            return
        batch = self._batches.get(token)
        if batch is not None and self._full(batch, len(event.payload)):
            await self._flush(up_to=self._before)
            batch = None
        if batch is None:
            # Behind the existing ones: they are flushed in the order in which they began.
            batch = _Batch()
            self._batches[token] = batch
        if len(self._batches) == 1 and not batch.payloads:
            self._since = time.monotonic()
        batch.payloads.append(event.payload)
        batch.size += len(event.payload) + _SEPARATOR_BYTES
        batch.last_id = event.msg_id

    async def _take_all(self, events: list[PublishedEvent]) -> None:
        """Fill a table's batch without a step for each event; one by one where more is needed."""
        at = 0
        while at < len(events):
            taken = self._take_some(events, at)
            at += taken
            if not taken:
                self._before = self.position
                self.position = events[at].position
                await self._take(events[at])
                at += 1

    def _take_some(self, events: list[PublishedEvent], at: int) -> int:
        """Add consecutive events of one table to its batch, as far as they fit; returns their
        number.
        """
        subject = events[at].subject
        batch = self._batches.get(lane_of(subject))
        if batch is None:
            return 0
        # The first event of a batch goes through `_take`, which starts the batch's age.
        room = self._bytes_max - batch.size
        size = 0
        payloads = []
        for event in events[at : at + self._limits.batch_events_max - len(batch.payloads)]:
            size += len(event.payload) + _SEPARATOR_BYTES
            if size > room or event.subject is not subject:
                break
            payloads.append(event.payload)
        if payloads:
            last = events[at + len(payloads) - 1]
            batch.payloads += payloads
            batch.size += sum(map(len, payloads)) + _SEPARATOR_BYTES * len(payloads)
            batch.last_id = last.msg_id
            self.position = last.position
        return len(payloads)

    async def _alone(self, event: PublishedEvent) -> None:
        if not event.advances:
            await self._send(event)
            return
        headers = {**event.headers, **self._header(self._floor_at(event.position))}
        advances = event.position >= self._lanes_end
        await self._publish(
            Outgoing(event.subject, event.msg_id, event.payload, headers, advances), event.position
        )
        self._floor = self._floor_at(event.position)

    def _full(self, batch: _Batch, more: int) -> bool:
        return (
            len(batch.payloads) >= self._limits.batch_events_max
            or batch.size + more > self._bytes_max
        )

    async def flush(self) -> None:
        await self._flush(up_to=self.position)

    async def _flush(self, up_to: Position) -> None:
        """Send all batches; with the last, everything up to there is in the stream."""
        batches = self._batches
        self._batches = {}
        for left, (token, batch) in zip(
            range(len(batches) - 1, -1, -1), batches.items(), strict=True
        ):
            # Only behind the last one is everything up to there in the stream: a crash in between
            # leaves the others as lanes.
            advances = left == 0 and up_to >= self._lanes_end
            if left == 0:
                self._complete_lsn = self._given_lsn
            headers = self._header(up_to if advances else self._floor)
            msg_id = f"{batch.last_id}-batch-{len(batch.payloads)}"
            payload = events.join(batch.payloads, self._encoding)
            await self._publish(
                Outgoing(batch_subject(token), msg_id, payload, headers, advances), up_to
            )
        assert self._floor_at(up_to) >= self._floor, "a floor only rises"
        self._floor = self._floor_at(up_to)
        if self._mark is not None:
            mark = self._mark
            self._mark = None
            await super().mark(mark)

    def _floor_at(self, position: Position) -> Position:
        """The floor once everything up to there is in the stream."""
        if position >= self._lanes_end:
            return position
        return self._floor

    def _header(self, floor: Position) -> dict[str, str]:
        headers = {events.POSITION_HEADER: events.position_header(self._source, floor)}
        if self._complete_lsn:
            headers[events.COMPLETE_HEADER] = str(self._complete_lsn)
        return headers
