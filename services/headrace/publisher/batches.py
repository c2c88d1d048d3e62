"""`--delivery batch`: each table's events in arrays, cut by number, size and age.

All tables are flushed together, so that what precedes a flush is in the stream whole. The last message of a flush says
so in its position header (the floor); the others keep the floor before it, and after a crash in the middle of a flush
a table's own last position (its lane) tells what of it is there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headrace.contract import events
from headrace.contract.naming import batch_subject
from headrace.jetstream.ingest import Outgoing
from headrace.jetstream.large import LargeStore
from headrace.lsn import Position
from headrace.metrics import Stats
from headrace.publisher.assembler import Event, Mark
from headrace.publisher.delivery import Delivery, Pipe
from headrace.publisher.progress import Place
from headrace.settings import Settings


@dataclass(slots=True)
class _Batch:
    payloads: list[bytes] = field(default_factory=list)
    size: int = 0
    last_id: str = ""


class Batches(Delivery):
    def __init__(
        self, pipe: Pipe, large: LargeStore, place: Place, stats: Stats, source: str, settings: Settings
    ) -> None:
        super().__init__(pipe, large, place, stats)
        self._source = source
        self._encoding = settings.format.encoding
        self._limits = settings.delivery
        self._batches: dict[str, _Batch] = {}
        self._since = 0.0
        self._mark: Mark | None = None
        # What the stream's last message says: everything up to here is in it.
        self._floor = self.position

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
        self._mark = None

    async def mark(self, mark: Mark) -> None:
        if self._batches:
            # Its events are still here: it counts from their flush on.
            self._mark = mark
        else:
            self._mark = None
            await super().mark(mark)

    async def rest(self) -> None:
        if self._batches and time.monotonic() - self._since >= self._limits.batch_age_max_s:
            await self.flush()

    async def _take(self, event: Event) -> None:
        token = event.subject.split(".", 2)[1]
        if not event.advances or event.large is not None or event.subject.startswith("cdc._message."):
            # What stands alone comes behind everything before it.
            await self._flush(up_to=self._before)
            await self._send(event, self._header(event.position) if event.advances else None)
            if event.advances:
                self._floor = event.position
            return
        batch = self._batches.get(token)
        if batch is not None and self._full(batch, len(event.payload)):
            await self._flush(up_to=self._before)
            batch = None
        if batch is None:
            batch = self._batches[token] = _Batch()
        if len(self._batches) == 1 and not batch.payloads:
            self._since = time.monotonic()
        batch.payloads.append(event.payload)
        batch.size += len(event.payload)
        batch.last_id = event.msg_id

    def _full(self, batch: _Batch, more: int) -> bool:
        return len(batch.payloads) >= self._limits.batch_events_max or batch.size + more > self._limits.batch_bytes_max

    async def flush(self) -> None:
        await self._flush(up_to=self.position)

    async def _flush(self, up_to: Position) -> None:
        """Send all batches; with the last, everything up to there is in the stream."""
        batches, self._batches = self._batches, {}
        for left, (token, batch) in zip(range(len(batches) - 1, -1, -1), batches.items(), strict=True):
            last = left == 0
            floor = up_to if last else self._floor
            msg_id = f"{batch.last_id}-batch-{len(batch.payloads)}"
            if last:
                self._sent.append((self._pipe.published + 1, floor, msg_id))
            payload = events.join(batch.payloads, self._encoding)
            await self._pipe.publish(Outgoing(batch_subject(token), msg_id, payload, self._header(floor), last))
        self._floor = up_to
        if self._mark is not None:
            mark, self._mark = self._mark, None
            await super().mark(mark)

    def _header(self, floor: Position) -> dict[str, str]:
        return {events.POSITION_HEADER: events.position_header(self._source, floor)}
