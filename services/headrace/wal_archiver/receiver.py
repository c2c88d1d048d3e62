"""Receives the log on one connection, stores it, and confirms what is stored.

Promises: only log without a hole is confirmed to the slot, and only once it is stored; a piece is
stored in order; a server that isn't the store's is refused. After a lost
connection, the store's listing decides again where the log continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from headrace import log as logs
from headrace.backup.commits import CommitRecord, CommitScan, summary
from headrace.backup.errors import BackupError, ForeignStoreError
from headrace.backup.layout import LogPiece
from headrace.backup.log_reading import segment, steady_pieces
from headrace.backup.restored import RESTORED_FROM
from headrace.backup.segments import holes, ranges
from headrace.backup.store import BackupStore
from headrace.lsn import format_lsn
from headrace.postgres.physical import PhysicalConnection, TimelineEndError
from headrace.postgres.replication import Keepalive, Message
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.timing.waits import wait_for
from headrace.wal_archiver.assembly import Job, LogAssembly
from headrace.wal_archiver.resume import LogStart, Server, resume

log = logs.logger("wal-archiver")

# Complete segments that wait for the store: more would only fill memory.
WAITING_SEGMENTS_MAX = 2
READ_WAIT_S = 0.5


class BackupSlotMissingError(BackupError):
    """The physical slot doesn't exist."""

    retry = True
    remedy = "Create it with `headrace backup init`."


class Receiver:
    """One connection's worth of work; a new one continues from the store."""

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        store: BackupStore,
        on_commits: Callable[[list[CommitRecord]], None],
        *,
        past_hole: bool = False,
    ) -> None:
        """`past_hole`: continue with what the slot retains, because the server has removed what the
        store lacks.
        """
        self._scope = scope
        self._settings = settings
        self._store = store
        self._on_commits = on_commits
        self._past_hole = past_hole
        self._connection: PhysicalConnection | None = None
        self._assembly: LogAssembly | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self.timeline = 0
        # Everything before it is stored, without a hole since this receiver began.
        self.stored = 0
        self._reported_lsn = 0
        self._reported_at = 0.0
        self._chunk_at = 0.0
        self.progressed = False
        # Stored parts of segments, until a larger piece contains them.
        self._parts: list[LogPiece] = []
        self._removing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Receive until the timeline or the connection ends, or the service stops."""
        slot = self._settings.backup.slot
        # Under the slot's name, which synchronous_standby_names lists.
        connection = await PhysicalConnection.open(self._settings.postgres, slot)
        try:
            start = await self._begin(connection)
            await self._receive(connection, start)
        finally:
            self._connection = None
            connection.close()

    async def _begin(self, connection: PhysicalConnection) -> LogStart:
        identity = await connection.identify()
        # Nothing is written, and nothing confirmed, before this.
        await asyncio.to_thread(self._store.check, identity.system_id)
        await self._refuse_restored(connection)
        slot = await connection.physical_slot(self._settings.backup.slot)
        if slot is None:
            raise BackupSlotMissingError(
                f"the physical replication slot {self._settings.backup.slot} doesn't exist"
            )
        if slot.wal_status == "lost":
            slot_lsn = await self._renewed_slot(connection)
        else:
            slot_lsn = slot.restart_lsn or identity.lsn
        server = Server(
            identity.timeline, identity.lsn, await connection.history(identity.timeline), slot_lsn
        )
        pieces = await asyncio.to_thread(steady_pieces, self._store)
        # Raises if the server isn't the one that the store continues with.
        start = resume(pieces, server, self._store.segments)
        if server.timeline > 1:
            # Before the log of the timeline: nobody could follow it without.
            await asyncio.to_thread(self._store.put_history, server.timeline, server.history)
        if self._past_hole:
            start = resume([], server, self._store.segments)
        self._report_holes(pieces, start)
        await self._prepare(connection, start, pieces)
        return start

    async def _refuse_restored(self, connection: PhysicalConnection) -> None:
        row = await connection.facts(f"SELECT current_setting('{RESTORED_FROM}', true)")
        if row[0] == self._store.identity.store:
            raise ForeignStoreError(
                f"this cluster was restored from {self._store.url}, which the first cluster may "
                "still write to"
            )

    async def _renewed_slot(self, connection: PhysicalConnection) -> int:
        """PostgreSQL has given the slot up: its log is gone, and so is its use."""
        name = self._settings.backup.slot
        await connection.drop_slot(name)
        await connection.create_physical_slot(name)
        log.warning("slot_recreated", slot=name, reason="PostgreSQL had invalidated it")
        slot = await connection.physical_slot(name)
        assert slot is not None
        return slot.restart_lsn or 0

    def _report_holes(self, pieces: list[LogPiece], start: LogStart) -> None:
        added = LogPiece(start.timeline, start.end, start.end)
        found = holes(ranges([*pieces, added]))
        self._scope.health.stats.set("backup_holes", len(found))
        if not found:
            self._scope.health.warnings.pop("hole", None)
        for hole in found:
            text = f"{format_lsn(hole.start)} to {format_lsn(hole.end)}"
            log.warning("log_hole", timeline=hole.timeline, missing=text)
            self._scope.health.warnings["hole"] = (
                f"the log from {text} is missing: moments up to the next backup can't be restored"
            )

    async def _prepare(
        self, connection: PhysicalConnection, start: LogStart, pieces: list[LogPiece]
    ) -> None:
        segments = self._store.segments
        begin = segments.begin(start.end)
        own = [piece for piece in pieces if piece.timeline == start.timeline]
        scan = CommitScan(segments.size, connection.server_version)
        earlier = next((one for one in own if not one.partial and one.end == begin), None)
        if earlier is not None:
            # A commit record may start there.
            content = await asyncio.to_thread(self._store.read_piece, earlier)
            await asyncio.to_thread(scan.read, earlier.start, content)
        known = await asyncio.to_thread(self._known, own, begin, start.end)
        parts = [piece for piece in own if piece.partial]
        # Those that a killed life left next to a larger one.
        begins = {segments.begin(one.start) for one in parts}
        near = [one for one in own if segments.begin(one.start) in begins]
        gone = {one for one in parts if any(other.contains(one) for other in near)}
        await asyncio.to_thread(self._remove, gone)
        self._parts = [one for one in parts if one not in gone]
        self._assembly = LogAssembly(segments, start.timeline, begin, known, scan)
        self.timeline = start.timeline
        # PostgreSQL sends from the segment's beginning; that much is stored already.
        self.stored = begin + len(known)
        self._reported_lsn = self.stored
        self._connection = connection
        try:
            await connection.start_log(self._settings.backup.slot, begin, start.timeline)
        except TimelineEndError:
            log.info("timeline_ended", timeline=start.timeline)
            raise
        self._scope.health.started()
        self._scope.health.unblock("postgres")
        self._scope.health.unblock("store")
        log.info("receiving", timeline=start.timeline, lsn=format_lsn(self.stored))

    def _known(self, own: list[LogPiece], begin: int, end: int) -> bytes:
        """The stored part of the segment that isn't complete."""
        parts = sorted(piece for piece in own if piece.partial and begin <= piece.start < end)
        if not parts:
            return b""
        # An earlier life that has lost its connection may still merge parts.
        return segment(self._store, parts)[: end - begin]

    async def _receive(self, connection: PhysicalConnection, start: LogStart) -> None:
        storing = asyncio.create_task(self._store_on(), name="store-log")
        try:
            while not self._scope.stopping.is_set():
                self._raise_from(storing)
                await self._step(connection)
            await self._drain(connection, storing)
        except TimelineEndError:
            await self._drain(connection, storing)
            log.info("timeline_ended", timeline=start.timeline, lsn=format_lsn(self.stored))
        finally:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
            if self._removing is not None:
                # The next receiver's listing must not find parts that are about to go. The next
                # receiver removes the rest after a failure.
                await asyncio.gather(self._removing, return_exceptions=True)

    def _raise_from(self, storing: asyncio.Task[None]) -> None:
        if storing.done():
            storing.result()

    async def _step(self, connection: PhysicalConnection) -> None:
        assert self._assembly is not None
        messages: list[Message] = []
        if self._assembly.waiting_segments < WAITING_SEGMENTS_MAX:
            messages = await connection.read(READ_WAIT_S)
        else:
            self._room.clear()
            await wait_for(self._room, READ_WAIT_S)
        wanted = False
        for message in messages:
            if isinstance(message, Keepalive):
                # PostgreSQL ends a connection that doesn't answer for wal_sender_timeout.
                wanted = wanted or message.reply_wanted
            else:
                found = self._assembly.add(*message)
                if found:
                    self._on_commits(found)
        if messages:
            self._news.set()
            # `read` doesn't suspend while there is more to read: under constant load nothing would
            # be stored until two segments are full, and no health request answered.
            await asyncio.sleep(0)
        due = time.monotonic() - self._reported_at > self._settings.bus.status_interval_s
        if wanted or due or self.stored > self._reported_lsn:
            await self._report_confirmed(connection)

    async def _report_confirmed(self, connection: PhysicalConnection) -> None:
        """Confirm what is stored: PostgreSQL may then remove it."""
        assert self._assembly is not None
        # Read once: it may grow while the message is sent.
        stored = self.stored
        failpoint("wal_archiver.before_status")
        await connection.status(self._assembly.received, stored)
        failpoint("wal_archiver.after_status")
        self._reported_lsn = stored
        self._reported_at = time.monotonic()

    async def _store_on(self) -> None:
        while True:
            self._news.clear()
            job = self._next_job()
            if job is not None:
                await self._put(job)
            else:
                await wait_for(self._news, self._pause_s())

    def _pause_s(self) -> float:
        assert self._assembly is not None
        if self._assembly.has_part:
            return max(0.001, self._chunk_at - time.monotonic())
        return READ_WAIT_S

    def _next_job(self) -> Job | None:
        assert self._assembly is not None
        job = self._assembly.take_segment()
        if job is not None:
            return job
        backup = self._settings.backup
        now = time.monotonic()
        if not backup.synchronous and now < self._chunk_at:
            return None
        job = self._assembly.take_part()
        if job is not None:
            self._chunk_at = now + backup.chunk_interval_s
        return job

    async def _put(self, job: Job) -> None:
        failpoint("wal_archiver.before_put")
        await asyncio.to_thread(self._store.put_piece, job.piece, job.content, summary(job.commits))
        failpoint("wal_archiver.after_put")
        # Jobs are in order and one at a time, so everything before it is stored, too.
        self.stored = job.piece.end
        self.progressed = True
        stats = self._scope.health.stats
        stats.count("backup_log_bytes", len(job.content))
        stats.count("backup_log_objects")
        self._room.set()
        if self._connection is not None:
            # The loop that reads is the only one that writes to the connection.
            self._connection.interrupt()
        gone = {one for one in self._parts if job.piece.contains(one)}
        if job.piece.partial:
            self._parts.append(job.piece)
        if gone:
            self._parts = [one for one in self._parts if one not in gone]
            # One at a time; raises if the store refused the last one.
            if self._removing is not None:
                await self._removing
            # Alongside the log: commits may wait for the next piece, and a removal is one request
            # for each of many parts.
            work = asyncio.to_thread(self._remove, gone)
            self._removing = asyncio.create_task(work, name="remove-parts")

    def _remove(self, parts: Collection[LogPiece]) -> None:
        """Remove parts that a stored piece contains."""
        for piece in sorted(parts):
            failpoint("wal_archiver.before_remove")
            self._store.remove_piece(piece)

    async def _drain(self, connection: PhysicalConnection, storing: asyncio.Task[None]) -> None:
        """Store what was received, and confirm it."""
        assert self._assembly is not None
        with self._scope.waiting_for("the received log to be stored"):
            self._chunk_at = 0.0
            # Also at the end of a timeline: the next one continues exactly there.
            while self.stored < self._assembly.received:
                self._raise_from(storing)
                self._news.set()
                self._room.clear()
                await wait_for(self._room, READ_WAIT_S)
                self._chunk_at = 0.0
        if self._scope.stopping.is_set():
            await self._report_confirmed(connection)
