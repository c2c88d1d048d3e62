"""Following one run of epochs: frames in, files out, LSNs confirmed.

Lives from one reading of the archive's end to the next doubt: a file that somebody else wrote, a
store that does not answer, a lost race. Then the service makes a new one, which reads the end anew.
An LSN is confirmed only when everything before it is in a file that the store has acknowledged. One
file is written while the next one fills; no more is taken from the bus than that, nor than fits
`HELD_BYTES_MAX`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError

from headrace import log as logs
from headrace.archive import layout
from headrace.archive.errors import ArchiveUnreachableError
from headrace.archive.metadata import SegmentInfo
from headrace.archive.store import Store
from headrace.archiver.archived_table import ArchivedTable
from headrace.archiver.builder import Builder, Limits, Sealed
from headrace.archiver.open_file import OpenFile
from headrace.archiver.pyarrow_memory import give_back
from headrace.archiver.resume_point import ArchiveMark, last_info, read_mark, resume_point
from headrace.bus import control, subjects
from headrace.bus.frame import Opening
from headrace.bus.receiver import FrameReceiver
from headrace.confirming.relations import Relations
from headrace.errors import DecodeError, describe
from headrace.jetstream.object_store import LargeStore
from headrace.jetstream.parking import Parking
from headrace.jetstream.state import Cell
from headrace.lsn import ORIGIN, format_lsn
from headrace.metrics.counting import Stats, count
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import Commit, Relation
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("archiver")

TICK_S = 0.25
PUT_ATTEMPTS = 3
_INSERT = ord("I")
# The credit bounds it while the wal-reader waits for this service, and memory when it does not.
QUEUE_MESSAGES_MAX = 1_000_000
# Encoded bytes of the file that is written and the one that fills; at this, the first is waited
# for.
HELD_BYTES_MAX = 24 << 20


class Follower:
    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        client: Client,
        relations: Relations,
        store: Store,
        cell: Cell,
        session: str,
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._client = client
        self._relations = relations
        self._store = store
        self._cell = cell
        self._stats = scope.health.stats
        self._source = settings.source.slot
        self._session = session
        self._receiver = FrameReceiver("archiver", session)
        parked = LargeStore(client.jetstream(), settings.streams.parked, client.max_payload)
        self._parking = Parking(
            settings.delivery.poison, parked, self._source, self._stats, "archive_parked_messages"
        )
        self._limits = Limits(settings.archive.file_rows_max, settings.archive.file_bytes_max)
        self._writing: asyncio.Task[None] | None = None
        self._writing_bytes = 0
        self._open = OpenFile()
        self._opened_at = 0.0
        self._marked_at = 0.0
        self.progressed = False

    async def run(self) -> None:
        """Follow until the service stops; raises when the outcome of something is in doubt."""
        self._mark = await read_mark(self._cell)
        await asyncio.to_thread(self._store.prepare)
        info = await asyncio.to_thread(last_info, self._store, self._mark.file)
        self._place = resume_point(info, self._mark, self._store.url, self._source)
        await self._remember()
        self._builder = Builder(self._place.begun(), self._limits)
        self._scope.health.unblock("store")
        log.info(
            "place_found", file=self._place.next_id - 1, known=format_lsn(self._place.known_lsn)
        )
        try:
            await self._follow()
        finally:
            if self._writing is not None:
                # A thread can't be stopped: what it is about to write must not meet the next
                # follower's.
                await asyncio.wait({self._writing})
            await self._open.settle()

    async def _follow(self) -> None:
        subscription = await self._client.subscribe(
            subjects.frames(self._source),
            pending_msgs_limit=QUEUE_MESSAGES_MAX,
            pending_bytes_limit=4 * self._settings.bus.in_flight_bytes_max
            + self._client.max_payload,
        )
        try:
            await self._control(self._receiver.join())
            while not self._scope.stopping.is_set():
                message = await self._next(subscription)
                if message is not None:
                    await self._on_frame(message.data)
                await self._between_frames(idle=message is None)
            await self._leave()
        except BaseException as error:
            if self._client.is_connected and not self._scope.stopping.is_set():
                await asyncio.shield(self._control(self._receiver.restart(describe(error))))
            raise
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def _next(self, subscription: object) -> Msg | None:
        wait_s = TICK_S
        if self._builder.rows:
            wait_s = min(wait_s, max(0.001, self._opened_at + self._age_max_s - time.monotonic()))
        try:
            return await subscription.next_msg(timeout=wait_s)  # type: ignore[attr-defined,no-any-return]  # nats-py's
        except NatsTimeoutError:
            return None

    @property
    def _age_max_s(self) -> float:
        return self._settings.archive.file_age_max_s

    async def _on_frame(self, data: bytes) -> None:
        count(self._stats, "frames_received")
        received = self._receiver.receive(data, time.monotonic())
        if received.reply is not None:
            await self._control(received.reply)
        if received.opening is not None:
            await self._on_opening(received.opening)
        for lsn, message in received.entries:
            await self._on_entry(lsn, message)
        if received.flush:
            await self._write_out()
        if received.entries or received.confirm:
            # A wal-reader that was silent and goes on in its epoch opens no new one.
            self._scope.health.unblock("bus")
            await self._confirm()

    async def _on_opening(self, opening: Opening) -> None:
        """A new epoch replays from what was confirmed: what is open is dropped, and comes again."""
        await self._written()
        self._place.check_source(opening)
        self._opening = opening
        gap = self._place.gap_before(opening)
        if not self._place.known_lsn:
            self._place = replace(self._place, known_lsn=opening.confirmed_lsn)
        await self._drop_open()
        if gap is not None:
            log.error(
                "gap", after=format_lsn(gap.after), up_to=format_lsn(gap.up_to), reason=gap.reason
            )
            count(self._stats, "archive_gaps")
            await self._write(self._builder.tell_gap(gap, time.time_ns() // 1000), OpenFile())
        self._scope.health.started()
        self._scope.health.unblock("bus")
        log.info(
            "epoch_joined", epoch=self._receiver.epoch, confirmed=format_lsn(opening.confirmed_lsn)
        )

    async def _on_entry(self, lsn: int, message: bytes) -> None:
        builder = self._builder
        if not message:
            builder.keepalive(lsn)
            return
        if message[0] == _INSERT and builder.insert(lsn, message):
            if builder.due:
                await self._make_room()
            return
        try:
            decoded = decode(message)
            if isinstance(decoded, Relation):
                shape = await self._relations.describe(self._scope, decoded, builder.cursor.xid)
                if shape is not None:
                    builder.learn(ArchivedTable.of(shape))
                return
            builder.feed(lsn, decoded)
        except DecodeError as error:
            await self._park(lsn, message, error)
            return
        if builder.full and isinstance(decoded, Commit):
            await self._seal()
        elif builder.due:
            await self._make_room()

    async def _park(self, lsn: int, message: bytes, error: DecodeError) -> None:
        """The change is kept elsewhere before the archive passes it; where that is not wanted, it
        stops here.
        """
        if not self._parking.takes(message):
            raise error
        await self._parking.put(
            lsn,
            self._builder.cursor.unread(lsn),
            message,
            error,
            self._builder.tables.hidden(message),
        )
        self._builder.cursor.pass_over()

    async def _make_room(self) -> None:
        """Rows become bytes of the open file, or the file is closed, whether or not its transaction
        has ended.
        """
        if self._builder.overfull:
            await self._seal()
            return
        await self._open.add(self._builder.take_group())
        if self._writing is not None and self._writing_bytes + self._open.size >= HELD_BYTES_MAX:
            await self._written()

    async def _drop_open(self) -> None:
        """Begin at the archive's end, with nothing taken."""
        await self._open.settle()
        self._builder, self._open = Builder(self._place.begun(), self._limits), OpenFile()

    async def _between_frames(self, *, idle: bool) -> None:
        now = time.monotonic()
        if not self._builder.rows:
            self._opened_at = now
        elif now - self._opened_at >= self._age_max_s and self._builder.cursor.transaction is None:
            await self._seal()
        if self._writing is not None and self._writing.done():
            await self._written()
        await self._pass_idle(now)
        self._stats["archive_waiting_rows"] = self._builder.rows
        if idle:
            join = self._receiver.tick(now)
            if join is not None:
                self._scope.health.block("bus", "no frames from wal-reader")
                await self._control(join)

    async def _pass_idle(self, now: float) -> None:
        """With nothing to write, what passed is marked, and then confirmed."""
        lsn = self._builder.complete_lsn
        if (
            self._builder.rows
            or self._writing is not None
            or lsn <= self._place.known_lsn
            or not self._place.known_lsn
        ):
            return
        if (
            now - self._marked_at < self._settings.state.progress_interval_s
            and not self._scope.stopping.is_set()
        ):
            return
        self._marked_at = now
        await self._write_mark(lsn)
        self._place = replace(self._place, known_lsn=lsn)
        await self._confirm()

    async def _remember(self) -> None:
        """That this archive has files: one that has none is not taken for new later."""
        known = self._mark.file and (self._mark.archive, self._mark.url) == (
            self._place.archive,
            self._store.url,
        )
        if self._place.info is not None and not known:
            await self._write_mark(self._place.known_lsn)

    async def _write_mark(self, lsn: int) -> None:
        self._mark = ArchiveMark(self._place.archive, self._place.next_id - 1, lsn, self._store.url)
        await self._cell.write(self._mark.encode())

    async def _seal(self) -> None:
        """Close the open file and write it, once the one before is written."""
        await self._written()
        sealed, file, self._open = self._builder.seal(), self._open, OpenFile()
        self._opened_at = time.monotonic()
        self._writing_bytes = file.size
        self._writing = asyncio.create_task(
            self._write(sealed, file), name=f"archive file {self._place.next_id}"
        )

    async def _written(self) -> None:
        """Wait for the file that is being written; raises what went wrong with it."""
        if self._writing is not None:
            with self._scope.waiting_for("the archive's store to take a file"):
                try:
                    await self._writing
                finally:
                    if self._writing.done():
                        self._writing = None

    async def _write(self, sealed: Sealed, file: OpenFile) -> None:
        data, info = await file.finish(sealed.rest, self._info(sealed))
        failpoint("archiver.before_put")
        await self._put(layout.file_name(info.id), data)
        size = len(data)
        del data, file
        give_back()
        failpoint("archiver.after_put_before_confirm")
        self._place = replace(
            self._place,
            info=info,
            known_lsn=max(self._place.known_lsn, info.end_lsn),
            next_id=info.next_id,
        )
        self.progressed = True
        await self._remember()
        _tell(self._stats, info, size)
        await self._confirm()

    async def _put(self, name: str, data: bytes) -> None:
        """Ask again where no answer came; whose file it is that is there then, the next follower
        finds out.
        """
        for attempt in range(PUT_ATTEMPTS):
            try:
                await asyncio.to_thread(self._store.put_new, name, data)
            except ArchiveUnreachableError as error:
                self._scope.health.block("store", str(error))
                if attempt == PUT_ATTEMPTS - 1:
                    raise
                await self._scope.pause(0.2 * (attempt + 1))
            else:
                self._scope.health.unblock("store")
                return

    def _info(self, sealed: Sealed) -> SegmentInfo:
        before = self._place.info
        return SegmentInfo(
            id=self._place.next_id,
            archive=self._place.archive,
            epoch=self._place.epoch,
            writer=self._session,
            source=self._source,
            database=self._opening.database,
            system_id=self._opening.system_id,
            timeline=self._opening.timeline,
            from_lsn=self._place.known_lsn,
            end_lsn=sealed.end_lsn,
            rows=sealed.rows,
            first=sealed.first,
            last=sealed.last,
            whole=sealed.whole,
            after=before.last if before else ORIGIN,
            time_us=sealed.time_us,
            gap=sealed.gap,
            tables=sealed.tables,
            versions=sealed.versions,
            previous=before.checksum if before else "",
        )

    async def _confirm(self) -> None:
        self._receiver.confirmed_lsn = max(self._receiver.confirmed_lsn, self._place.known_lsn)
        self._stats["archive_confirmed_lsn"] = self._receiver.confirmed_lsn
        if self._receiver.following:
            settled = not self._builder.rows and self._writing is None
            await self._control(self._receiver.confirm(settled=settled))

    async def _control(self, message: control.Control) -> None:
        await self._client.publish(subjects.control(self._source), control.encode(message))

    async def _write_out(self) -> None:
        """Whatever is whole goes into a file now."""
        if self._builder.rows and self._builder.cursor.transaction is None:
            await self._seal()
        await self._written()

    async def _leave(self) -> None:
        """Stop in order: what is whole is written and confirmed; the rest comes again."""
        await self._write_out()
        with contextlib.suppress(TimeoutError):
            await self._confirm()
            await self._client.flush()


def _tell(stats: Stats, info: SegmentInfo, size: int) -> None:
    count(stats, "archive_files")
    count(stats, "archive_rows", info.rows)
    count(stats, "archive_bytes", size)
    stats["archive_file_id"] = info.id
