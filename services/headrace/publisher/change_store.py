"""The publisher's sink: changes become events, events become messages of the stream.

Promises: an LSN is reported stored only after every event before it is acknowledged by JetStream
and the progress is written; an event that the stream contains already is skipped by its position.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from headrace import log as logs
from headrace.bus.frame import Entry, Opening
from headrace.confirming.change_store import TICK_S, Demand, Stored, Taken
from headrace.confirming.relations import Relations
from headrace.errors import DecodeError
from headrace.lsn import Gap, format_lsn
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import LogicalMessage, Relation
from headrace.postgres.facts import UNKNOWN_SERVER, ServerIdentity
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.publisher.catalog_watch import CatalogWatch
from headrace.publisher.doubt import Doubt
from headrace.publisher.durability import Hold
from headrace.publisher.gaps import gap_event
from headrace.publisher.lag import AckLag, Frame, unix_s
from headrace.publisher.published_event import Assembled, CompleteUpTo, PublishedEvent
from headrace.publisher.resume_point import (
    ResumePoint,
    SourceDivergedError,
    check_source,
    gap_before,
)
from headrace.publisher.run_parts import RunParts
from headrace.publisher.table_events import TableEvents
from headrace.settings import Compat

log = logs.logger("publisher")

# Progress that is written is to be confirmed soon, even if no frame comes.
WRITING_TICK_S = 0.01


class StreamChangeStore:
    """One run of the publisher, with its own parts."""

    def __init__(
        self,
        scope: Scope,
        parts: RunParts,
        relations: Relations,
        watch: CatalogWatch,
        lag: AckLag,
        doubt: Doubt,
    ) -> None:
        settings = parts.settings
        self._scope = scope
        self._parts = parts
        self._relations = relations
        self._watch = watch
        self._lag = lag
        # Its measurements belong to messages of the run before.
        lag.forget()
        self._doubt = doubt
        self._source = settings.source.slot
        self._encoding = settings.format.encoding
        # The bridge's consumers know neither gaps nor schemas.
        self._reports_gaps = settings.delivery.compat is Compat.NONE
        self._interval_s = settings.state.progress_interval_s
        self._stats = scope.health.stats
        self._start = parts.start
        self._pipe = parts.pipe
        self._delivery = parts.delivery
        self._progress = parts.progress
        self._assembler = parts.assembler()
        self._hold = Hold(settings.delivery.hold_s)
        self._written_at = 0.0
        # Everything before this LSN has passed through here.
        self._passed_lsn = 0
        # Of the current epoch.
        self._server = UNKNOWN_SERVER

    async def on_epoch(self, opening: Opening) -> None:
        await self._finish_writing()
        self._server = ServerIdentity(opening.system_id, opening.timeline)
        # Published events stay where they are; those that the new epoch replays are skipped by
        # position.
        self._delivery.begin_epoch()
        self._parts.book.reach(self._delivery.position)
        # Those that were delivered since progress was written count too: changes are skipped by
        # their position, which so must mean what it meant.
        progress = self._progress.progress
        reached = max(progress.position, self._delivery.position)
        start = replace(self._start, progress=replace(progress, position=reached))
        try:
            check_source(start, opening)
        except SourceDivergedError:
            await self._report_divergence(start, opening)
            raise
        gap = gap_before(start, opening)
        # A gap is reported once.
        self._start = replace(self._start, lost_up_to=0)
        self._assembler = self._parts.assembler()
        if gap is not None:
            await self._report_gap(gap)
        # After the gap: progress in the new epoch claims everything before its first change.
        await self._progress.join(opening)
        self._doubt.stored(opening.confirmed_lsn)

    async def take(self, taken: Taken) -> Stored:
        self._note_acknowledged()
        began = time.monotonic()
        before = self._delivery.accepted
        self._assembler.begin_frame()
        await self._on_entries(taken.entries)
        if taken.entries:
            self._note_frame(taken.frame, began, before)
        return self._stored()

    async def store(self, demand: Demand) -> Stored:
        if demand is Demand.ALL:
            # Twice `_finish_writing`: a write that was under way comes first, and then the last
            # state is written.
            with self._scope.waiting_for("JetStream to acknowledge published messages"):
                await self._deliver_all()
                await self._finish_writing()
                self._begin_writing()
                await self._finish_writing()
            return self._stored()
        self._note_acknowledged()
        await self._pipe.catch_up()
        self._parts.damage.check()
        await self._report_catalog()
        await self._delivery.rest(more=demand is Demand.LITTLE)
        # Stored events need no memory: a window of them is held, not all that an interval brought.
        self._delivery.stored()
        # Only if it needs no waiting: events come first.
        if self._progress.done:
            await self._finish_writing()
        if not self._progress.busy and time.monotonic() - self._written_at >= self._interval_s:
            # Events don't wait for it.
            self._begin_writing()
        return self._stored()

    async def close(self) -> None:
        await self._progress.abandon()

    def _stored(self) -> Stored:
        self._stats.set("window_messages", self._delivery.accepted - self._pipe.acked)
        lsn = self._hold.confirmable(self._progress.confirmed_lsn, time.monotonic())
        # A frame that comes in the meantime asks anyway; this is for the last one before a quiet
        # time.
        tick_s = WRITING_TICK_S if self._progress.busy else TICK_S
        again_s = min(tick_s, self._delivery.wait_s or tick_s)
        return Stored(lsn, self._delivery.waiting, again_s)

    def _note_acknowledged(self) -> None:
        self._lag.acknowledged(self._pipe.acked, self._pipe.acked_at, self._doubt.read_lsn)

    def _note_frame(self, name: str, began: float, before: int) -> None:
        """Durations, once for a frame; one that brought nothing new has none to report."""
        took_s = time.monotonic() - began
        self._stats.set("last_processing_time_us", round(took_s * 1e6))
        accepted = self._delivery.accepted
        oldest = self._assembler.oldest_commit_us
        if oldest is not None and accepted > before:
            log.debug("frame_handed_over", frame=name, messages=accepted - before)
            received_s = time.time() - took_s
            self._lag.handed_over(
                Frame(name, accepted, unix_s(oldest), self._doubt.read_lsn, received_s)
            )

    async def _report_divergence(self, start: ResumePoint, opening: Opening) -> None:
        """The last event that this stream has of its source: another history follows there."""
        # It is about the stream's end, behind all that was taken for a part of it.
        await self._deliver_all()
        self._stats.count("gaps")
        up_to = opening.current_lsn or opening.confirmed_lsn
        gap = Gap(start.position.lsn, up_to, "source_diverged")
        event = gap_event(gap, self._source, self._encoding)
        # Its position means nothing to this stream, so nothing is skipped by it; a restart reports
        # it once.
        if self._reports_gaps and event.msg_id not in start.ids_after:
            await self._pipe.publish(event)
            await self._pipe.drain()

    async def _report_gap(self, gap: Gap) -> None:
        self._stats.count("gaps")
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
        msg_id = ""
        if self._reports_gaps:
            event = gap_event(gap, self._source, self._encoding)
            msg_id = event.msg_id
            await self._delivery.event(event)
            await self._deliver_all()
        failpoint("publisher.after_gap_before_progress")
        # After the event: a crash in between reports the gap again, under the same ID.
        await self._progress.pass_gap(gap.up_to, msg_id)

    async def _on_entries(self, entries: Sequence[Entry]) -> None:
        """All that needs no waiting is assembled in one go; then it is delivered, before an entry
        that needs some.
        """
        if entries:
            self._doubt.read(max(entries)[0])
        at = 0
        while at < len(entries) and not self._scope.stopping.is_set():
            try:
                # Events that were assembled before an error are delivered all the same.
                at = self._assembler.take(entries, at)
            finally:
                await self._deliver(self._assembler.taken())
            if at < len(entries):
                await self._on_entry(*entries[at])
                at += 1

    async def _on_entry(self, lsn: int, message: bytes) -> None:
        """A message that needs the catalog, or a malformed one."""
        try:
            items = await self._decoded(lsn, message)
        except DecodeError as error:
            # The operator wants to stop at what can't be read, or it is no change of a row.
            if not self._parts.parking.takes(message):
                raise
            cursor = self._assembler.cursor
            hidden = self._assembler.tables.hidden(message)
            await self._parts.parking.put(lsn, cursor.unread(lsn), message, error, hidden)
            failpoint("publisher.after_parking")
            # It takes its position, so that those of all later changes stay the same on a replay.
            cursor.pass_over()
            return
        await self._deliver(items)

    async def _decoded(self, lsn: int, message: bytes) -> list[Assembled]:
        assembler = self._assembler
        decoded = decode(message)
        if isinstance(decoded, LogicalMessage) and (claimed := assembler.doubts(decoded)):
            now = await self._relations.now(self._scope, claimed, assembler.cursor.xid)
            return assembler.feed_claim(lsn, decoded, now)
        if not isinstance(decoded, Relation):
            return assembler.feed(lsn, decoded)
        known_key = self._parts.book.key_of(decoded.relation_id)
        shape = await self._relations.describe(self._scope, decoded, assembler.cursor.xid)
        assembler.learn(TableEvents.of(shape, known_key))
        return []

    async def _deliver(self, items: list[Assembled]) -> None:
        items = await self._parts.compression.of(items)
        rows: list[PublishedEvent] = []
        for item in items:
            # No isinstance, which is slower for a class that is a tuple.
            if item.__class__ is PublishedEvent and item.advances:
                rows.append(item)
                continue
            if rows:
                await self._delivery.events(rows)
                rows = []
            if isinstance(item, CompleteUpTo):
                await self._delivery.mark(item)
                self._passed_lsn = max(self._passed_lsn, item.lsn)
            else:
                await self._publish(item)
        if rows:
            await self._delivery.events(rows)

    async def _report_catalog(self) -> None:
        """Schema events for changes that no row showed."""
        # A catalog is read between transactions: its changes have no position inside one.
        if self._assembler.cursor.transaction is not None:
            return
        reading = self._watch.due(self._passed_lsn, self._delivery.reached_lsn, self._server)
        if reading is None:
            return
        reported = list(self._assembler.read_catalog(reading))
        for event in reported:
            await self._publish(event, pending=True)
        if reported:
            # Before any row: a restart finds the event only at the stream's end.
            await self._deliver_all()
        for token in (*map(_token_of, reported), *self._parts.book.adopted):
            await self._keep(token)
        self._parts.book.adopted.clear()

    async def _publish(self, event: PublishedEvent, *, pending: bool = False) -> None:
        if not event.advances:
            # Before the event: a shape that the stream may have must not be worked out again from a
            # later catalog.
            await self._keep(_token_of(event), pending=pending)
            failpoint("publisher.after_shape_before_event")
        await self._delivery.event(event)

    async def _keep(self, token: str, *, pending: bool = False) -> None:
        entry = self._parts.book.entry(token)
        if entry is not None:
            await self._parts.shelf.keep(token, replace(entry, pending=pending))

    def _begin_writing(self) -> None:
        self._written_at = time.monotonic()
        # Read before anything else is delivered: progress never claims more than is acknowledged.
        lsn = self._delivery.confirmable()
        position, msg_id = self._delivery.stored()
        self._doubt.progressed |= lsn > 0
        self._progress.begin(
            lsn,
            position,
            msg_id,
            self._pipe.stored_seq,
            past_lanes=self._delivery.past_lanes,
            ids_in_doubt=self._pipe.ids_in_doubt,
        )

    async def _finish_writing(self) -> None:
        lsn = await self._progress.finish()
        if lsn is not None:
            self._doubt.stored(lsn)
            self._stats.set("confirmed_lsn", self._progress.confirmed_lsn)

    async def _deliver_all(self) -> None:
        await self._delivery.flush()
        await self._pipe.drain()


def _token_of(event: PublishedEvent) -> str:
    """The table of a schema event."""
    return event.subject.split(".")[1]
