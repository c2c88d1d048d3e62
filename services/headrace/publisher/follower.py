"""Following one run of epochs: frames in, events published, LSNs confirmed.

Lives from one reading of the stream's tail to the next doubt: an `IngestError`, a lost race or a
lost connection ends it, and the service makes a new one. Within it, new epochs of the wal-reader
are simply replays, skipped by position.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import TimeoutError as NatsTimeoutError

from headrace import log as logs
from headrace.bus import control, subjects
from headrace.bus.frame import Entry, Opening, frame_name
from headrace.bus.receiver import FrameReceiver
from headrace.confirming.relations import Relations
from headrace.errors import DecodeError
from headrace.jetstream.object_store import LargeStore
from headrace.jetstream.parking import Parking
from headrace.jetstream.publishing.fast import (
    FastIngest,
    FastIngestUnsupportedError,
    offers_fast_ingest,
)
from headrace.jetstream.publishing.pipe import HEADERS_BYTES_MAX, Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.publishing.turns import Turns
from headrace.jetstream.state import Cell, bucket, suite_identity
from headrace.lsn import Gap, format_lsn
from headrace.metrics.catalogue import INGEST_MODES
from headrace.metrics.counting import count, one_of
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import Message, Relation
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.publisher.assembler import Assembler, Event, Mark
from headrace.publisher.atomic_pipe import AtomicPipe
from headrace.publisher.batches import Batches
from headrace.publisher.catalog_watch import CatalogWatch
from headrace.publisher.chain_pipe import Ingest
from headrace.publisher.compression import Compression
from headrace.publisher.damage import Damage
from headrace.publisher.delivery import Delivery
from headrace.publisher.durability import Hold
from headrace.publisher.gaps import gap_event
from headrace.publisher.lag import AckLag, Frame, unix_s
from headrace.publisher.resume_point import (
    Progress,
    ResumePoint,
    SourceDivergedError,
    check_source,
    find_resume_point,
    gap_before,
    reader_of,
    suspect_of,
)
from headrace.publisher.schema_book_store import BookShelf
from headrace.publisher.table_events import TableEvents
from headrace.publisher.tally import tally
from headrace.publisher.transactions import Transactions
from headrace.settings import Compat, DeliveryMode, IngestMode, Settings

log = logs.logger("publisher")

TICK_S = 0.25
# What is written is to be confirmed soon, also where no frame comes.
WRITING_TICK_S = 0.01
# Control and data share one subscription queue; the credit bounds it, this only has to be larger.
QUEUE_MESSAGES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class _Writing:
    """Progress that is being written, and what may be confirmed in its epoch when it is."""

    task: asyncio.Task[None]
    progress: Progress
    lsn: int
    epoch: int


class Follower:
    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        client: Client,
        relations: Relations,
        watch: CatalogWatch,
        session: str,
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._client = client
        self._relations = relations
        self._watch = watch
        self._stats = scope.health.stats
        self._source = settings.source.slot
        self._receiver = FrameReceiver("publisher", session)
        self._hold = Hold(settings.delivery.hold_s)
        self.lag = AckLag(self._stats, scope.health.traces)
        self._progress = Progress()
        self._written_at = 0.0
        self._writing: _Writing | None = None
        self._confirmable = 0
        # Everything before this place of the WAL has gone through here.
        self._passed_lsn = 0
        # How far what came here reaches, and how far it reached when the follower before this one
        # gave up: until that has gone through, nobody knows that what stood in its way is gone.
        self.reached_lsn = self._doubtful_lsn = 0

    def succeed(self, other: Follower) -> None:
        """Take the place of a follower that gave up."""
        self.reached_lsn = self._doubtful_lsn = other.reached_lsn

    @property
    def progressed(self) -> bool:
        return bool(self._stats.get("cdc_events", 0)) and self._confirmable > 0

    async def run(self, paused: asyncio.Event) -> None:
        """Follow until the service stops or is paused; raises when the outcome of something is in
        doubt.
        """
        js = self._client.jetstream()
        state = await bucket(js, self._settings.streams.state)
        self._receiver.suite = await suite_identity(state)
        cell = Cell(state, f"progress.{self._source}")
        tail = StreamTail(
            js, self._settings.streams.cdc, reader_of(self._source), suspect_of(self._source)
        )
        self._compression = Compression(js, state, self._settings)
        # Before the tail is read: its messages may need them.
        await self._compression.open()
        self._place = await find_resume_point(cell, tail)
        self._progress = self._place.progress
        self._cell = cell
        self._shelf = BookShelf(state, self._source)
        self._book = await self._shelf.load(self._place.position, self._place.ids_after)
        self._assembler = self._new_assembler()
        log.info(
            "place_found", position=str(self._place.position), stream_seq=self._place.tail.last_seq
        )
        parked = LargeStore(js, self._settings.streams.parked, self._client.max_payload)
        self._parking = Parking(self._settings.delivery.poison, parked, self._source, self._stats)
        self._pipe = await self._new_pipe(tail)
        self._delivery = self._new_delivery()
        self._damage = Damage(
            js, self._settings.streams.cdc, tail, Cell(state, f"damage.{self._source}")
        )
        await self._pipe.open(self._place.tail)
        try:
            await self._report_damage()
            async with self._damage.watched():
                await self._follow(paused)
        finally:
            await self._pipe.close()

    async def _report_damage(self) -> None:
        """Report it before the first event: after one, a lost tail would look like a hole."""
        has_gaps = self._settings.delivery.compat is Compat.NONE
        encoding = self._settings.format.encoding if has_gaps else None
        await self._damage.report(self._place, self._source, encoding, self._pipe, self._stats)

    async def _follow(self, paused: asyncio.Event) -> None:
        subscription = await self._client.subscribe(
            subjects.frames(self._source),
            pending_msgs_limit=QUEUE_MESSAGES_MAX,
            pending_bytes_limit=4 * self._settings.bus.in_flight_bytes_max
            + self._client.max_payload,
        )
        try:
            await self._control(self._receiver.join())
            while not self._scope.stopping.is_set() and not paused.is_set():
                message = await self._next(subscription)
                self.lag.settle(self._pipe.acked, self._pipe.acked_at, self.reached_lsn)
                if message is not None:
                    await self._on_frame(message.data)
                await self._between_frames(idle=message is None, more=subscription.pending_msgs > 0)
            await self._leave()
        except BaseException:
            await self._give_up()
            raise
        finally:
            await self._abandon_writing()
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def _next(self, subscription: Subscription) -> Msg | None:
        tick_s = TICK_S if self._writing is None else WRITING_TICK_S
        try:
            return await subscription.next_msg(timeout=min(tick_s, self._delivery.wait_s or tick_s))
        except NatsTimeoutError:
            return None

    async def _on_frame(self, data: bytes) -> None:
        count(self._stats, "frames_received")
        began, before = time.monotonic(), self._delivery.accepted
        received = self._receiver.receive(data, began)
        if received.reply is not None:
            await self._control(received.reply)
        if received.opening is not None:
            await self._written()
            await self._on_opening(received.opening)
        self._assembler.begin_frame()
        await self._on_entries(received.entries)
        if self._scope.stopping.is_set():
            return
        if received.flush:
            await self._deliver_all()
            await self._write_progress()
        if received.entries or received.confirm:
            # A wal-reader that was silent and goes on in its epoch opens no new one.
            self._scope.health.unblock("bus")
            await self._confirm()
        if received.entries:
            self._note_frame(began, before)

    def _note_frame(self, began: float, before: int) -> None:
        """What took how long, once for a frame; one that brought nothing new has nothing to say."""
        took_s = time.monotonic() - began
        self._stats["last_processing_time_us"] = round(took_s * 1e6)
        name, accepted = (
            frame_name(self._receiver.epoch, self._receiver.seq),
            self._delivery.accepted,
        )
        oldest = self._assembler.oldest_commit_us
        if oldest is not None and accepted > before:
            log.debug("frame_handed_over", frame=name, messages=accepted - before)
            self.lag.handed_over(
                Frame(name, accepted, unix_s(oldest), self.reached_lsn, time.time() - took_s)
            )

    async def _on_opening(self, opening: Opening) -> None:
        # What was published stays in its place; what the new epoch replays is skipped by position.
        self._delivery.begin_epoch()
        # What was delivered since progress was written counts too: it is skipped by, and so must
        # mean what it meant.
        reached = max(self._progress.position, self._delivery.position)
        place = replace(self._place, progress=replace(self._progress, position=reached))
        try:
            check_source(place, opening)
        except SourceDivergedError:
            await self._tell_divergence(place, opening)
            raise
        gap = gap_before(place, opening)
        # A gap is told once.
        self._place = replace(self._place, lost_up_to=0)
        self._assembler = self._new_assembler()
        if gap is not None:
            await self._tell_gap(gap)
        await self._remember_source(opening)
        self._scope.health.started()
        self._scope.health.unblock("bus")
        self._judge(opening.confirmed_lsn)
        log.info(
            "epoch_joined", epoch=self._receiver.epoch, confirmed=format_lsn(opening.confirmed_lsn)
        )

    async def _remember_source(self, opening: Opening) -> None:
        """Write down which server this is, and where its slot was first, before anything of it is
        delivered: after a crash only that tells a fork from the same history, and a slot that moved
        from a new one.
        """
        known = self._progress.joined(opening)
        if known != self._progress:
            await self._cell.write(known.encode())
            self._progress = known

    async def _tell_divergence(self, place: ResumePoint, opening: Opening) -> None:
        """The last that this stream can say of its source: what follows there is another history."""
        # It is said of the stream's end, behind all that was taken for a part of it.
        await self._deliver_all()
        count(self._stats, "gaps")
        up_to = opening.current_lsn or opening.confirmed_lsn
        event = gap_event(
            Gap(place.position.lsn, up_to, "source_diverged"),
            self._source,
            self._settings.format.encoding,
        )
        # Its place means nothing to this stream, so nothing is skipped by it; a restart tells it
        # once.
        if self._settings.delivery.compat is Compat.NONE and event.msg_id not in place.ids_after:
            await self._pipe.publish(event)
            await self._pipe.drain()

    async def _tell_gap(self, gap: Gap) -> None:
        count(self._stats, "gaps")
        log.error(
            "gap",
            after=format_lsn(gap.after),
            up_to=format_lsn(gap.up_to),
            reason=gap.reason,
            remedy=(
                "changes in between are neither in the stream nor in the slot: bootstrap consumers "
                "again"
            ),
        )
        if self._settings.delivery.compat is Compat.NONE:
            await self._delivery.event(gap_event(gap, self._source, self._settings.format.encoding))
            await self._deliver_all()
        failpoint("publisher.after_gap_before_progress")
        self._progress = replace(self._progress, confirmed_lsn=gap.up_to, complete=())
        await self._cell.write(self._progress.encode())

    def _new_assembler(self) -> Assembler:
        form = self._settings.format
        return Assembler(
            self._source,
            form.encoding,
            self._book,
            message_prefixes=frozenset(form.message_prefixes),
            compat=self._settings.delivery.compat is Compat.BRIDGE,
            payload_bytes_max=self._client.max_payload - HEADERS_BYTES_MAX,
            large_bucket=self._settings.streams.large,
        )

    async def _new_pipe(self, tail: StreamTail) -> Ingest | FastIngest | AtomicPipe:
        limits, delivery = self._settings.publishing, self._settings.delivery
        stored = partial(tally, self._stats)
        if delivery.mode is DeliveryMode.TRANSACTION:
            self._stats["ingest_mode"] = one_of(INGEST_MODES, "atomic")
            window = Window(
                delivery.atomic_messages_max, delivery.atomic_bytes_max, limits.ack_timeout_s
            )
            return AtomicPipe(self._client, tail, self._stats, window, stored)
        fast = await self._is_fast(delivery.ingest)
        mode = "fast" if fast else "chain"
        self._stats["ingest_mode"] = one_of(INGEST_MODES, mode)
        log.info("ingest_chosen", kind=mode)
        window = Window(limits.window_messages_max, limits.window_bytes_max, limits.ack_timeout_s)
        if not fast:
            return Ingest(self._client, tail, self._stats, window, stored)
        turns = Turns(self._client, self._settings.streams.cdc, self._source, self._stats)
        return FastIngest(self._client, tail, self._stats, window, turns, stored)

    async def _is_fast(self, wanted: IngestMode) -> bool:
        if wanted is IngestMode.CHAIN:
            return False
        stream = self._settings.streams.cdc
        offered = await offers_fast_ingest(self._client.jetstream(), self._client, stream)
        if wanted is IngestMode.FAST and not offered:
            raise FastIngestUnsupportedError(
                f"the NATS server, or its stream {stream}, doesn't offer fast ingest"
            )
        return offered

    def _new_delivery(self) -> Delivery:
        large = LargeStore(
            self._client.jetstream(), self._settings.streams.large, self._client.max_payload
        )
        if isinstance(self._pipe, AtomicPipe):
            return Transactions(self._pipe, large, self._place, self._stats, self._source)
        if self._settings.delivery.mode is DeliveryMode.BATCH:
            room = self._client.max_payload - HEADERS_BYTES_MAX
            return Batches(self._pipe, large, self._place, self._stats, self._settings, room)
        return Delivery(self._pipe, large, self._place, self._stats, self._source)

    async def _on_entries(self, entries: Sequence[Entry]) -> None:
        """All that needs no waiting is assembled in one go; then it is delivered, before what needs
        some.
        """
        if entries:
            self.reached_lsn = max(self.reached_lsn, max(entries)[0])
        at = 0
        while at < len(entries) and not self._scope.stopping.is_set():
            try:
                at = self._assembler.take(entries, at)
            finally:
                await self._deliver(self._assembler.taken())
            if at < len(entries):
                await self._on_entry(*entries[at])
                at += 1

    async def _on_entry(self, lsn: int, message: bytes) -> None:
        """A message that needs the catalog, or one with something wrong with it."""
        try:
            items = await self._decoded(lsn, message)
        except DecodeError as error:
            if not self._parking.takes(message):
                raise
            position = self._assembler.cursor.unread(lsn)
            hidden = self._assembler.tables.hidden(message)
            await self._parking.put(lsn, position, message, error, hidden)
            failpoint("publisher.after_parking")
            self._assembler.cursor.pass_over()
            return
        await self._deliver(items)

    async def _deliver(self, items: list[Event | Mark]) -> None:
        items = await self._compression.of(items)
        rows: list[Event] = []
        for item in items:
            # No isinstance, which asks more of a class that is a tuple's.
            if item.__class__ is Event and item.advances:
                rows.append(item)
                continue
            if rows:
                await self._delivery.events(rows)
                rows = []
            if isinstance(item, Mark):
                await self._mark(item)
            else:
                await self._publish(item)
        if rows:
            await self._delivery.events(rows)

    async def _decoded(self, lsn: int, message: bytes) -> list[Event | Mark]:
        decoded = decode(message)
        if isinstance(decoded, Message) and (claimed := self._assembler.doubts(decoded)):
            now = await self._relations.now(self._scope, claimed, self._assembler.cursor.xid)
            return [] if now is None else self._assembler.feed_claim(lsn, decoded, now)
        if not isinstance(decoded, Relation):
            return self._assembler.feed(lsn, decoded)
        known_key = self._book.key_of(decoded.relation_id)
        shape = await self._relations.describe(self._scope, decoded, self._assembler.cursor.xid)
        if shape is not None:
            self._assembler.learn(TableEvents.of(shape, known_key))
        return []

    async def _mark(self, mark: Mark) -> None:
        await self._delivery.mark(mark)
        self._passed_lsn = max(self._passed_lsn, mark.lsn)

    async def _tell_catalog(self) -> None:
        """Schema events for what no row told of."""
        if not self._receiver.following or self._assembler.cursor.transaction is not None:
            return
        reading = self._watch.due(self._passed_lsn, self._delivery.reached_lsn)
        if reading is None:
            return
        for event in self._assembler.read_catalog(reading):
            await self._publish(event)
        for token in self._book.adopted:
            await self._keep(token)
        self._book.adopted.clear()

    async def _publish(self, event: Event) -> None:
        if not event.advances:
            # Before the event: what the stream may have must not be found out anew from a later
            # catalog.
            await self._keep(event.subject.split(".")[1])
            failpoint("publisher.after_shape_before_event")
        await self._delivery.event(event)

    async def _between_frames(self, *, idle: bool, more: bool) -> None:
        await self._pipe.settle()
        self._damage.check()
        await self._tell_catalog()
        await self._delivery.rest(more=more)
        # What is stored needs no memory of its own: a window of it, not all that an interval
        # brought.
        self._delivery.stored()
        due = time.monotonic() - self._written_at >= self._settings.state.progress_interval_s
        if self._writing is not None and self._writing.task.done() and await self._written():
            await self._confirm()
        if due and self._writing is None:
            # Events don't wait for it.
            self._begin_writing()
        if not idle:
            return
        join = self._receiver.tick(time.monotonic())
        if join is not None:
            self._scope.health.block("bus", "no frames from wal-reader")
            await self._control(join)

    async def _write_progress(self) -> bool:
        """Make durable how far the stream has come; whether that was news."""
        await self._written()
        self._begin_writing()
        return await self._written()

    def _begin_writing(self) -> None:
        self._written_at = time.monotonic()
        lsn = self._confirmable = self._delivery.settle()
        position, msg_id = self._delivery.stored()
        if lsn <= self._receiver.confirmed_lsn and position == self._progress.position:
            return
        progress = replace(
            self._progress,
            position=position,
            stream_seq=self._pipe.stored_seq or self._progress.stream_seq,
            msg_id=msg_id,
            confirmed_lsn=max(lsn, self._progress.confirmed_lsn),
            complete=self._progress.stored(position, lsn),
        )
        failpoint("publisher.before_progress")
        task = asyncio.create_task(self._cell.write(progress.encode()), name="progress")
        self._writing = _Writing(task, progress, lsn, self._receiver.epoch)

    async def _written(self) -> bool:
        """Wait for what is being written; only then may PostgreSQL forget it."""
        writing, self._writing = self._writing, None
        if writing is None:
            return False
        await writing.task
        failpoint("publisher.after_progress_before_confirm")
        self._progress = writing.progress
        self._judge(writing.lsn)
        if writing.epoch == self._receiver.epoch:
            self._receiver.confirmed_lsn = max(self._receiver.confirmed_lsn, writing.lsn)
            self._stats["confirmed_lsn"] = self._receiver.confirmed_lsn
        return True

    async def _abandon_writing(self) -> None:
        """What comes of it is read anew by whoever follows next."""
        if self._writing is not None:
            task, self._writing = self._writing.task, None
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()):
                log.debug("progress_not_written", reason=str(error))

    def _judge(self, stored_lsn: int) -> None:
        """What stood in the way is gone when everything behind it is stored."""
        if stored_lsn >= self._doubtful_lsn:
            self._scope.health.unblock("publish")

    async def _keep(self, token: str) -> None:
        entry = self._book.entry(token)
        if entry is not None:
            await self._shelf.keep(token, entry)

    async def _confirm(self) -> None:
        self._stats["window_messages"] = self._delivery.accepted - self._pipe.acked
        if self._receiver.following:
            confirm = self._receiver.confirm(settled=not self._delivery.waiting)
            durable = self._hold.confirmable(confirm.confirmed_lsn, time.monotonic())
            await self._control(replace(confirm, confirmed_lsn=durable))
            failpoint("publisher.after_confirm")

    async def _control(self, message: control.Control) -> None:
        await self._client.publish(subjects.control(self._source), control.encode(message))

    async def _leave(self) -> None:
        """Stop in order: what is published is awaited, written down and confirmed."""
        with self._scope.waiting_for("JetStream to acknowledge what is published"):
            await self._deliver_all()
            await self._write_progress()
            await self._confirm()
            await self._client.flush()

    async def _deliver_all(self) -> None:
        await self._delivery.flush()
        await self._pipe.drain()

    async def _give_up(self) -> None:
        """The next follower starts from the stream's tail; frames on their way are of no use to it."""
        if self._client.is_connected and not self._scope.stopping.is_set():
            await asyncio.shield(
                self._control(self._receiver.restart("the publisher finds its place again"))
            )
