"""Opens the parts of one run of the publisher, at the end of the stream as it is now."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nats.aio.client import Client

from headrace import log as logs
from headrace.jetstream.object_store import ObjectStore
from headrace.jetstream.parking import Parking
from headrace.jetstream.publishing.pipe import HEADERS_BYTES_MAX, Pipe
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.state import Cell, bucket, suite_identity
from headrace.metrics.counters import Counters
from headrace.publisher.assembler import Assembler
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.batch_delivery import BatchDelivery
from headrace.publisher.compression import Compression
from headrace.publisher.damage import Damage
from headrace.publisher.event_delivery import Delivery
from headrace.publisher.pipe_choice import chosen_pipe
from headrace.publisher.progress_writer import ProgressWriter
from headrace.publisher.resume_point import (
    ResumePoint,
    find_resume_point,
    reader_of,
    suspect_of,
)
from headrace.publisher.schema_book import SchemaBook
from headrace.publisher.schema_book_store import BookShelf
from headrace.publisher.transaction_delivery import TransactionDelivery
from headrace.settings import Compat, DeliveryMode, Settings

log = logs.logger("publisher")


@dataclass(frozen=True, slots=True)
class RunParts:
    """From a change to a stored message; `start` is the end of the stream at that time."""

    settings: Settings
    start: ResumePoint
    suite: str
    progress: ProgressWriter
    book: SchemaBook
    shelf: BookShelf
    compression: Compression
    parking: Parking
    pipe: Pipe
    delivery: Delivery
    damage: Damage
    payload_bytes_max: int

    def assembler(self) -> Assembler:
        """A new one, for an epoch."""
        form = self.settings.format
        delivery = self.settings.delivery
        return Assembler(
            self.settings.source.slot,
            form.encoding,
            self.book,
            message_prefixes=frozenset(form.message_prefixes),
            compat=delivery.compat is Compat.BRIDGE,
            payload_bytes_max=self.payload_bytes_max,
            large_bucket=self.settings.streams.large,
        )


@contextlib.asynccontextmanager
async def opened(client: Client, settings: Settings, stats: Counters) -> AsyncIterator[RunParts]:
    """The parts of a new run; its pipe is open."""
    js = client.jetstream()
    source = settings.source.slot
    streams = settings.streams
    state = await bucket(js, streams.state)
    suite = await suite_identity(state)
    tail = StreamTail(js, streams.cdc, reader_of(source), suspect_of(source))
    compression = Compression(js, state, settings)
    # Before the tail is read: its messages may need the dictionaries.
    await compression.open()
    # In this order: progress says from where on the tail has to be read, and the tail which shapes
    # of the book the stream contains.
    cell = Cell(state, f"progress.{source}")
    start = await find_resume_point(cell, tail)
    shelf = BookShelf(state, source)
    book = await shelf.load(start.position, start.ids_after, start.lanes)
    log.info("place_found", position=str(start.position), stream_seq=start.tail.last_seq)
    parked = ObjectStore(js, streams.parked, client.max_payload)
    # Opened last: from then on other suites see it as a writer.
    pipe = await chosen_pipe(client, settings, stats, tail)
    parts = RunParts(
        settings=settings,
        start=start,
        suite=suite,
        progress=ProgressWriter(cell, start.progress),
        book=book,
        shelf=shelf,
        compression=compression,
        parking=Parking(settings.delivery.poison, parked, source, stats),
        pipe=pipe,
        delivery=_delivery(client, settings, stats, pipe, start),
        damage=Damage(js, streams.cdc, tail, Cell(state, f"damage.{source}")),
        payload_bytes_max=client.max_payload - HEADERS_BYTES_MAX,
    )
    await pipe.open(start.tail)
    try:
        await _report_damage(parts, stats)
        async with parts.damage.watched():
            yield parts
    finally:
        await pipe.close()


async def _report_damage(parts: RunParts, stats: Counters) -> None:
    """Report it before the first event: after one, a lost tail would look like a hole."""
    settings = parts.settings
    has_gaps = settings.delivery.compat is Compat.NONE
    encoding = settings.format.encoding if has_gaps else None
    await parts.damage.report(parts.start, settings.source.slot, encoding, parts.pipe, stats)


def _delivery(
    client: Client, settings: Settings, stats: Counters, pipe: Pipe, start: ResumePoint
) -> Delivery:
    large = ObjectStore(client.jetstream(), settings.streams.large, client.max_payload)
    source = settings.source.slot
    if isinstance(pipe, AtomicPipe):
        return TransactionDelivery(pipe, large, start, stats, source)
    if settings.delivery.mode is DeliveryMode.BATCH:
        # An array that is larger than a message could never be stored.
        room = client.max_payload - HEADERS_BYTES_MAX
        return BatchDelivery(pipe, large, start, stats, settings, room)
    return Delivery(pipe, large, start, stats, source)
