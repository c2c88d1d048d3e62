"""The archiver's sink: changes become rows, rows become files.

Promises: an LSN is reported stored only when everything before it is in a file that the store has
acknowledged. One file is written while the next one fills; no more is held than that, nor than fits
`HELD_BYTES_MAX`.
"""

from __future__ import annotations

import asyncio
import time

from headrace import log as logs
from headrace.archiver.archived_table import ArchivedTable
from headrace.archiver.builder import Builder, Limits
from headrace.archiver.file_writer import FileWriter
from headrace.archiver.open_file import OpenFile
from headrace.bus.frame import Opening
from headrace.confirming.change_store import TICK_S, Demand, Stored, Taken
from headrace.confirming.relations import Relations
from headrace.errors import DecodeError
from headrace.jetstream.parking import Parking
from headrace.lsn import format_lsn
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import Commit, Relation
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("archiver")

# A file that is written is to be confirmed soon, even if no frame comes.
WRITING_TICK_S = 0.02
_INSERT = ord("I")
# Encoded bytes of the file that is being written and the one that fills; above this, wait for the
# first.
HELD_BYTES_MAX = 24 << 20


class ArchiveChangeStore:
    """One run of the archiver, from the archive's end as its writer found it."""

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        relations: Relations,
        parking: Parking,
        writer: FileWriter,
    ) -> None:
        self._scope = scope
        self._relations = relations
        self._parking = parking
        self._writer = writer
        self._stats = scope.health.stats
        self._age_max_s = settings.archive.file_age_max_s
        self._interval_s = settings.state.progress_interval_s
        self._limits = Limits(settings.archive.file_rows_max, settings.archive.file_bytes_max)
        self._opening: Opening | None = None
        self._builder = Builder(writer.end.begun(), self._limits)
        self._open = OpenFile()
        self._writing: asyncio.Task[None] | None = None
        self._writing_bytes = 0
        self._opened_at = 0.0
        self._marked_at = 0.0

    async def on_epoch(self, opening: Opening) -> None:
        """A new epoch replays from the confirmed LSN: the open file is dropped, and its changes
        come again.
        """
        # The file is complete, so the new epoch has to skip its changes and not repeat them.
        await self._finish_writing()
        end = self._writer.end
        end.check_source(opening)
        self._opening = opening
        gap = end.gap_before(opening)
        # A new archive starts where the slot does, and misses nothing.
        if not end.known_lsn:
            await self._writer.pass_idle(opening.confirmed_lsn)
        # A thread may be encoding a group of the file that is dropped.
        await self._open.encoded()
        self._builder = Builder(self._writer.end.begun(), self._limits)
        self._open = OpenFile()
        self._opened_at = time.monotonic()
        if gap is not None:
            log.error(
                "gap", after=format_lsn(gap.after), up_to=format_lsn(gap.up_to), reason=gap.reason
            )
            self._stats.count("archive_gaps")
            sealed = self._builder.tell_gap(gap, time.time_ns() // 1000)
            await self._writer.write(sealed, OpenFile(), opening)

    async def take(self, taken: Taken) -> Stored:
        insert = self._builder.insert
        for lsn, message in taken.entries:
            # The hot path: an Insert of a known kind is taken without being decoded.
            if message and message[0] == _INSERT and insert(lsn, message):
                if self._builder.due:
                    await self._make_room()
            elif self._scope.stopping.is_set():
                # Anything else may wait for the catalog or the store; what is left comes again.
                break
            else:
                await self._on_entry(lsn, message)
        return self._stored()

    async def store(self, demand: Demand) -> Stored:
        now = time.monotonic()
        # A file that ends inside a transaction confirms nothing, so only its size may cut it.
        whole = self._builder.cursor.transaction is None
        if not self._builder.rows:
            self._opened_at = now
        elif whole and (demand is Demand.ALL or now - self._opened_at >= self._age_max_s):
            await self._seal()
        if self._writing is not None and (demand is Demand.ALL or self._writing.done()):
            await self._finish_writing()
        await self._pass_idle(now)
        self._stats.set("archive_waiting_rows", self._builder.rows)
        return self._stored()

    async def close(self) -> None:
        """Wait for threads, which can't be stopped: what one is about to write must not meet the
        next run's.
        """
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._open.encoded()

    def _stored(self) -> Stored:
        lsn = self._writer.end.known_lsn
        self._stats.set("archive_confirmed_lsn", lsn)
        again_s = TICK_S if self._writing is None else WRITING_TICK_S
        if self._builder.rows:
            left_s = self._opened_at + self._age_max_s - time.monotonic()
            # Never 0, which would be a busy loop.
            again_s = min(again_s, max(0.001, left_s))
        return Stored(lsn, bool(self._builder.rows) or self._writing is not None, again_s)

    async def _on_entry(self, lsn: int, message: bytes) -> None:
        builder = self._builder
        if not message:
            builder.keepalive(lsn)
            return
        try:
            decoded = decode(message)
            if isinstance(decoded, Relation):
                shape = await self._relations.describe(self._scope, decoded, builder.cursor.xid)
                builder.learn(ArchivedTable.of(shape))
                return
            builder.feed(lsn, decoded)
        except DecodeError as error:
            await self._park(lsn, message, error)
            return
        # Between two transactions, so that the file confirms the whole of the last one.
        if builder.full and isinstance(decoded, Commit):
            await self._seal()
        elif builder.due:
            await self._make_room()

    async def _park(self, lsn: int, message: bytes, error: DecodeError) -> None:
        """The change is parked before the archive passes it; without parking, it stops here."""
        if not self._parking.takes(message):
            raise error
        cursor = self._builder.cursor
        hidden = self._builder.tables.hidden(message)
        await self._parking.put(lsn, cursor.unread(lsn), message, error, hidden)
        cursor.pass_over()

    async def _make_room(self) -> None:
        """Encode rows into the open file, or close the file, whether or not its transaction has
        ended.
        """
        if self._builder.overfull:
            await self._seal()
            return
        await self._open.add(self._builder.take_group())
        # The file that is written is held in memory until the store has acknowledged it.
        if self._writing is not None and self._writing_bytes + self._open.size >= HELD_BYTES_MAX:
            await self._finish_writing()

    async def _pass_idle(self, now: float) -> None:
        """With nothing to write, the log that passed is marked, and then confirmed."""
        lsn = self._builder.complete_lsn
        known_lsn = self._writer.end.known_lsn
        if self._builder.rows or self._writing is not None or not 0 < known_lsn < lsn:
            return
        if now - self._marked_at >= self._interval_s or self._scope.stopping.is_set():
            self._marked_at = now
            await self._writer.pass_idle(lsn)

    async def _seal(self) -> None:
        """Close the open file and write it, once the previous one is written."""
        await self._finish_writing()
        assert self._opening is not None, "rows came outside an epoch"
        # One at a time: ids have no gaps only if a file exists before the next one is created.
        sealed = self._builder.seal()
        file = self._open
        self._open = OpenFile()
        self._opened_at = time.monotonic()
        self._writing_bytes = file.size
        self._writing = asyncio.create_task(
            self._writer.write(sealed, file, self._opening),
            name=f"archive file {self._writer.end.next_id}",
        )

    async def _finish_writing(self) -> None:
        """Wait for the file that is being written; raises its error."""
        if self._writing is not None:
            with self._scope.waiting_for("the archive's store to take a file"):
                try:
                    await self._writing
                finally:
                    # A cancelled wait leaves the task running: `close` waits for it.
                    if self._writing.done():
                        self._writing = None
