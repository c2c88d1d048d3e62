"""Writes progress to the state bucket while events keep flowing.

Promises that one write is under way at most, and that `confirmed_lsn` follows a write that ended:
only then may PostgreSQL forget it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from headrace import log as logs
from headrace.bus.frame import Opening
from headrace.jetstream.state import Cell
from headrace.lsn import Position
from headrace.process.failpoint import failpoint
from headrace.publisher.resume_point import Progress

log = logs.logger("publisher")


@dataclass(frozen=True, slots=True)
class _Write:
    """Progress that is being written, and the LSN that may be confirmed when it is."""

    task: asyncio.Task[None]
    progress: Progress
    lsn: int


@dataclass(eq=False)
class ProgressWriter:
    _cell: Cell
    # As it was written last, with the source of the epoch.
    progress: Progress
    # Everything before it is durable, of what came in this epoch.
    confirmed_lsn: int = 0
    _write: _Write | None = None

    @property
    def busy(self) -> bool:
        return self._write is not None

    @property
    def done(self) -> bool:
        """Whether a write ended that `finish` was not called for."""
        return self._write is not None and self._write.task.done()

    async def join(self, opening: Opening) -> None:
        """An epoch begins, with nothing of it confirmed.

        Which server this is, and where its slot was first, is written before anything of it is
        delivered: after a crash only that tells a fork from the same history, and a slot that moved
        from a new one.
        """
        self.confirmed_lsn = 0
        known = self.progress.joined(opening)
        # Messages that are published again soon hide the reason for the doubt.
        if known != self.progress or known.ids_in_doubt:
            await self._cell.write(known.encode())
            self.progress = known

    async def pass_gap(self, up_to: int, gap_id: str) -> None:
        """Write that a gap up to this LSN is reported, by the event of this id (none: empty)."""
        self.progress = self.progress.reported(up_to, gap_id)
        await self._cell.write(self.progress.encode())

    def begin(
        self,
        lsn: int,
        position: Position,
        msg_id: str,
        stream_seq: int,
        *,
        past_lanes: bool,
        ids_in_doubt: bool,
    ) -> None:
        """Write that everything before `lsn` is stored, the last event of it at `position`; some of
        it may be beyond, unless the stream is past the lanes of a crash.
        """
        assert self._write is None, "two concurrent writes of the progress"
        # Nothing is new: an idle publisher must not write every interval.
        if lsn <= self.confirmed_lsn and position == self.progress.position:
            return
        progress = replace(
            self.progress,
            position=position,
            stream_seq=stream_seq or self.progress.stream_seq,
            msg_id=msg_id,
            # A replay confirms from the slot's LSN on, which may be behind what was written.
            confirmed_lsn=max(lsn, self.progress.confirmed_lsn),
            complete=self.progress.stored(position, lsn, past_lanes=past_lanes),
            ids_in_doubt=ids_in_doubt,
        )
        failpoint("publisher.before_progress")
        task = asyncio.create_task(self._cell.write(progress.encode()), name="progress")
        self._write = _Write(task, progress, lsn)

    async def finish(self) -> int | None:
        """Wait for the write that is under way; the LSN that it was about, None where none was."""
        # Forgotten before it is awaited: if it failed, it is unknown what is written.
        write = self._write
        self._write = None
        if write is None:
            return None
        await write.task
        failpoint("publisher.after_progress_before_confirm")
        self.progress = write.progress
        self.confirmed_lsn = max(self.confirmed_lsn, write.lsn)
        return write.lsn

    async def abandon(self) -> None:
        """The next publisher reads from the state bucket how it ended."""
        if self._write is not None:
            task = self._write.task
            self._write = None
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()):
                log.debug("progress_not_written", reason=str(error))
