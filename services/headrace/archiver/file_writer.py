"""Writes files at the archive's end, and the mark of how far the log contained nothing for it.

Promises that files come in order, each created or refused, never overwritten; `end` follows a file
only once the store has acknowledged it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from headrace import log as logs
from headrace.archive import layout
from headrace.archive.errors import ArchiveUnreachableError
from headrace.archive.mark import ArchiveMark
from headrace.archive.metadata import WalFileInfo
from headrace.archive.store import Store
from headrace.archiver.builder import Sealed
from headrace.archiver.open_file import OpenFile
from headrace.archiver.resume_point import (
    ArchiveEnd,
    last_info,
    resume_point,
)
from headrace.bus.frame import Opening
from headrace.jetstream.state import Cell
from headrace.lsn import ORIGIN, format_lsn
from headrace.metrics.counters import Counters
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.process.pyarrow_memory import give_back

log = logs.logger("archiver")

# A put whose answer was lost may have succeeded: then the next attempt is refused, and the run
# starts again from the file that it created.
PUT_ATTEMPTS = 3


@dataclass(slots=True)
class FileWriter:
    _scope: Scope
    _store: Store
    _cell: Cell
    end: ArchiveEnd
    _mark: ArchiveMark
    _source: str
    _session: str
    # Whether this run wrote anything.
    progressed: bool = False

    async def write(self, sealed: Sealed, file: OpenFile, opening: Opening) -> None:
        data, info = await file.finish(sealed.rest, self._info(sealed, opening))
        failpoint("archiver.before_put")
        await self._put(layout.file_name(info.id), data)
        size = len(data)
        # Released before the next file needs as much.
        del data, file
        give_back()
        failpoint("archiver.after_put_before_confirm")
        # Not before: an LSN is confirmed up to `end`, so the store must have acknowledged the file.
        self.end = replace(
            self.end,
            info=info,
            # A file that ends inside its first transaction repeats the end of the one before, which
            # an idle mark may have passed.
            known_lsn=max(self.end.known_lsn, info.end_lsn),
            next_id=info.next_id,
        )
        self.progressed = True
        await self.remember()
        _count(self._scope.health.stats, info, size)

    async def remember(self) -> None:
        """Note that this archive has files: one whose files are gone is not taken for new later."""
        known = self._mark.file and (self._mark.archive, self._mark.url) == (
            self.end.archive,
            self._store.url,
        )
        if self.end.info is not None and not known:
            await self._write_mark(self.end.known_lsn)

    async def pass_idle(self, lsn: int) -> None:
        """Note that the log up to there contained nothing for the archive."""
        # The mark first: a confirmed LSN without a mark would be a gap after a restart.
        await self._write_mark(lsn)
        self.end = replace(self.end, known_lsn=lsn)

    async def _write_mark(self, lsn: int) -> None:
        # It counts only as long as this is the last file (`resume_point`).
        self._mark = ArchiveMark(self.end.archive, self.end.next_id - 1, lsn, self._store.url)
        await self._cell.write(self._mark.encode())

    async def _put(self, name: str, data: bytes) -> None:
        """Ask again where no answer came; the next run finds out whose file it is that is there
        then.
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

    def _info(self, sealed: Sealed, opening: Opening) -> WalFileInfo:
        before = self.end.info
        return WalFileInfo(
            id=self.end.next_id,
            archive=self.end.archive,
            epoch=self.end.epoch,
            writer=self._session,
            source=self._source,
            database=opening.database,
            system_id=opening.system_id,
            timeline=opening.timeline,
            from_lsn=self.end.known_lsn,
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


async def at_the_end(
    scope: Scope, store: Store, cell: Cell, source: str, session: str
) -> FileWriter:
    """A writer that continues the archive behind its last file."""
    # Its file is where the listing starts: an archive may have a million files.
    mark = ArchiveMark.of(await cell.read())
    await asyncio.to_thread(store.prepare)
    info = await asyncio.to_thread(last_info, store, mark.file)
    end = resume_point(info, mark, store.url, source)
    writer = FileWriter(scope, store, cell, end, mark, source, session)
    await writer.remember()
    scope.health.unblock("store")
    log.info("place_found", file=end.next_id - 1, known=format_lsn(end.known_lsn))
    return writer


def _count(stats: Counters, info: WalFileInfo, size: int) -> None:
    stats.count("archive_files")
    stats.count("archive_rows", info.rows)
    stats.count("archive_bytes", size)
    stats.set("archive_file_id", info.id)
