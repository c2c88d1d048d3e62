"""Follows the archive: applies its files, copies tables where that is needed, makes cuts.

There is no cut while a table is being copied, nor before the archive has reached the copy's LSN:
readers keep the cut before, in which all tables show one moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import asyncpg

from headrace import log as logs
from headrace.archive import registry
from headrace.archive.asynchronous import AsyncWalFile, AsyncWalReader
from headrace.archive.errors import WalFileCollectedError
from headrace.archive.layout import FIRST_ID
from headrace.archive.mark import ArchiveMark
from headrace.archive.reader import ReadingStart, WalReaderOptions
from headrace.archive.store import Store
from headrace.contract.selection import Selection
from headrace.errors import HeadraceError, describe
from headrace.jetstream.state import Cell
from headrace.lake.catalog import Catalog, Cut, TableName
from headrace.lake.engine import Engine
from headrace.lake.errors import LakeError
from headrace.lake.files import LakeFiles
from headrace.lake.writer import LakeWriter, Source
from headrace.lake_writer.cut_times import CutTimes
from headrace.lake_writer.requested_copies import RequestedCopies
from headrace.lake_writer.rewrites import Rewrites
from headrace.lake_writer.table_copy import attempted, copy_table
from headrace.lake_writer.upkeep import Upkeep
from headrace.lsn import format_lsn, parse_lsn
from headrace.postgres import catalog as postgres_catalog
from headrace.postgres.connection import BROKEN, PostgresUnreachableError, connect, explained
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.spark.driver_process import SparkUnusableError

log = logs.logger("lake-writer")

POLL_S = 0.2
# New and dropped tables are looked for this often, and before a cut if a change names an unknown
# table.
TABLES_S = 10.0
# The files that an engine receives together; it may apply fewer.
BATCH_FILES_MAX = 256
BATCH_ROWS_MAX = 1_000_000
# A table that could not be copied is tried again after this time.
PARKED_S = 60.0
_APPLICATION = "headrace lake"


@dataclass(frozen=True, slots=True)
class Places:
    """The lake's parts: its source, its place, and the engine that writes its files."""

    files: LakeFiles
    catalog: Catalog
    archive: Store
    engine: Engine


class Follower:
    """One attempt to follow the archive, from the last cut on."""

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        places: Places,
        mark: Cell,
        rewrites: Rewrites,
        upkeep: Upkeep,
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._files = places.files
        self._archive = places.archive
        self._engine = places.engine
        self._mark = mark
        self._rewrites = rewrites
        self._upkeep = upkeep
        self._requested = RequestedCopies(places.catalog, settings.source.slot)
        assert settings.archive.url, "checked at the start"
        options = WalReaderOptions(raise_at_gap=False)
        self._reader = AsyncWalReader(settings.archive.url, options)
        self._catalog = places.catalog
        self._writer: LakeWriter | None = None
        self._next_id = 0
        # Files from `_next_id` on, opened and not applied yet.
        self._ahead: list[AsyncWalFile] = []
        self._lsn = 0
        self._ordinal = 0
        self._commit_us: int | None = None
        self._whole = True
        self._times = CutTimes(settings.lake.flush_interval_s)
        # Whether the archive may have more files.
        self._behind = False
        self._tables_at = 0.0
        self._wanted: dict[TableName, int] = {}
        # Whether an applied change names a table that the lake doesn't have.
        self._unknown = False
        # Tables that left the publication, and from which LSN on.
        self._leaving: dict[TableName, int] = {}
        self._renamed: dict[TableName, TableName] = {}
        # Tables that can't be copied, and when that is tried again.
        self._parked: dict[TableName, float] = {}
        self.progressed = False

    @property
    def last_cut(self) -> Cut | None:
        """The last cut, once it has been read."""
        if self._writer is None:
            return None
        return self._writer.last_cut

    async def run(self) -> None:
        writer = await self._begin()
        while not self._scope.stopping.is_set():
            # In this order: a table that is new is copied before the changes that follow its copy
            # are read.
            await self._reconcile(writer)
            await self._copy(writer)
            self._behind = await self._step(writer)
            # Ready only once readers find a cut, and nothing older than this moment waits.
            if not self._behind and writer.last_cut is not None:
                self._scope.health.started()
            self._leave(writer)
            if (
                self._due(writer)
                and not self._requested.held
                and await self._has_every_table(writer)
            ):
                await self._cut(writer)
            await self._upkeep.step(writer)
            # Last: what was applied is cut before the wait.
            if not self._behind:
                await self._scope.pause(POLL_S)

    async def _begin(self) -> LakeWriter:
        """The writer as of the last cut, and the archive's file to continue with."""
        settings = self._settings
        source = await self._source()
        writer = LakeWriter(
            self._files,
            self._catalog,
            source,
            settings.lake.cache_bytes,
            settings.lake.keep_cuts,
            settings.lake.keep_s,
        )
        await asyncio.to_thread(writer.open)
        self._writer = writer
        cut = writer.last_cut
        if cut is not None:
            self._check_source(cut, source)
            self._lsn = cut.lsn
            self._ordinal = cut.ordinal
            # The cut is the only state: files after it are applied again, to tables as they were in
            # it.
            self._next_id = cut.archive_file + 1
            # File numbers of another archive mean other changes; the tables can't be continued from
            # them.
            if cut.archive != source.archive:
                self._start_over(writer, "the archive is another one now")
        self._scope.health.unblock("lake")
        return writer

    async def _source(self) -> Source:
        """The archive's origin, once the archive covers the present."""
        slot = self._settings.source.slot
        while not self._scope.stopping.is_set():
            found = await self._reader.list(FIRST_ID)
            file = await self._reader.get(found[-1].id) if found else None
            mark = ArchiveMark.of(await self._mark.read())
            if file is not None or mark.lsn:
                self._scope.health.unblock("archive")
            if file is not None:
                info = file.info
                return Source(slot, info.system_id, info.timeline, info.archive)
            if mark.lsn:
                return Source(slot, "", 0, mark.archive)
            self._scope.health.block("archive", "the archive is empty")
            await self._scope.pause(POLL_S)
        return Source(slot, "", 0, "")

    def _check_source(self, cut: Cut, source: Source) -> None:
        """LSNs of another server mean something else."""
        if cut.system_id and source.system_id and cut.system_id != source.system_id:
            raise LakeError(
                f"the lake is of the PostgreSQL server {cut.system_id}, and the archive of "
                f"{source.system_id}",
                remedy="Use a new location for HEADRACE_LAKE_URL, or connect the server that the "
                "lake was built from.",
            )

    def _start_over(self, writer: LakeWriter, reason: str) -> None:
        """Copy every table again, and continue with the first file after the copies."""
        log.warning("lake_starts_over", reason=reason)
        writer.copy_all(reason)
        self._next_id = 0
        self._ahead.clear()

    async def _step(self, writer: LakeWriter) -> bool:
        """Apply the archive's next files; False if there is none yet."""
        # Read before: if no file follows then, the archive is complete up to it.
        mark = ArchiveMark.of(await self._mark.read())
        try:
            await self._look_ahead()
        except WalFileCollectedError as error:
            self._start_over(writer, describe(error))
            return True
        if not self._ahead:
            if mark.file == self._next_id - 1 and self._whole:
                self._lsn = max(self._lsn, mark.lsn)
            return False
        # Changes are missing between the tables and this file. No table can be trusted before it is
        # copied again.
        if self._ahead[0].info.gap is not None:
            writer.copy_all("the archive has a gap")
            self._applied(1)
        else:
            self._applied(await self._take(writer, self._ahead))
        return True

    async def _look_ahead(self) -> None:
        """Open the archive's next files, as many as one batch may contain."""
        # A file is opened once, and stays open until a batch has taken it.
        rows = sum(file.info.rows for file in self._ahead)
        while len(self._ahead) < BATCH_FILES_MAX and rows < BATCH_ROWS_MAX:
            file = await self._reader.get(self._next_id + len(self._ahead))
            # It isn't there yet. Files have consecutive numbers, so none after it exists either.
            if file is None:
                return
            self._ahead.append(file)
            rows += file.info.rows

    def _applied(self, count: int) -> None:
        """The first files are part of the next cut."""
        info = self._ahead[count - 1].info
        del self._ahead[:count]
        self._times.applied(time.monotonic())
        self._next_id = info.next_id
        # After a copy, files that end before the copies' LSN are read, too: the LSN never goes
        # back.
        self._lsn = max(self._lsn, info.end_lsn)
        self._ordinal = info.last.seq
        self._commit_us = info.time_us or self._commit_us
        # A file may end within a transaction: no cut between its files.
        self._whole = info.whole

    async def _take(self, writer: LakeWriter, files: Sequence[AsyncWalFile]) -> int:
        """Apply the first of these files; how many."""
        count = await self._engine.apply(writer, files)
        for file in files[:count]:
            named = {TableName(table.schema, table.table) for table in file.info.tables}
            # It may have been created since the publication was read. The cut waits until that is
            # known.
            self._unknown |= not named <= writer.tables.keys()
            self._scope.health.stats.count("lake_rows", file.info.rows)
        return count

    # Tables

    async def _reconcile(self, writer: LakeWriter) -> None:
        """Compare the lake's tables with the publication's."""
        if time.monotonic() - self._tables_at < TABLES_S and self._wanted:
            return
        self._unknown = False
        self._wanted, lsn = await self._published()
        now = time.monotonic()
        self._tables_at = now
        self._parked = {name: at for name, at in self._parked.items() if at > now}
        self._scope.health.stats.set("lake_parked_tables", len(self._parked))
        gone = {
            table.relation_id: name
            for name, table in writer.tables.items()
            if name not in self._wanted
        }
        self._renamed.clear()
        for name in self._wanted.keys() - writer.tables.keys() - self._parked.keys():
            # The same relation under another name is a renamed table: its rows are here already.
            before = gone.pop(self._wanted[name], None)
            if before is None:
                writer.to_copy.setdefault(name, "it is new")
            else:
                self._renamed[before] = name
        for name in writer.tables.keys() - self._wanted.keys():
            # Not immediately: changes before this LSN are still to come, and cuts up to it show the
            # table.
            self._leaving.setdefault(name, lsn)
        rows = sum(each.files.rows for each in writer.snapshots.values())
        deleted = sum(each.files.deleted_rows for each in writer.snapshots.values())
        self._scope.health.stats.set("lake_tables", len(writer.tables))
        self._scope.health.stats.set("lake_deleted_ratio", deleted / max(1, rows))

    async def _published(self) -> tuple[dict[TableName, int], int]:
        settings = self._settings
        try:
            session = await connect(settings.postgres, _APPLICATION)
            try:
                chosen = settings.format
                tables = postgres_catalog.delivered(
                    await postgres_catalog.published_tables(session, settings.source.publication),
                    Selection(chosen.include, chosen.exclude, chosen.exclude_columns),
                )
                # After the tables: one that has left them by now has no changes after this LSN.
                lsn = parse_lsn(await session.fetchval("SELECT pg_current_wal_lsn()::text"))
            finally:
                session.terminate()
        except BROKEN as error:
            raise PostgresUnreachableError(f"the publication can't be read: {error}") from error
        except asyncpg.PostgresError as error:
            raise explained(error.sqlstate, str(error), settings.postgres) from error
        return {TableName(each.schema, each.name): each.relation_id for each in tables}, lsn

    def _leave(self, writer: LakeWriter) -> None:
        """Tables that are gone, or have another name, are so in cuts from that LSN on."""
        for name, lsn in list(self._leaving.items()):
            # It came back before its end was reached.
            if name in self._wanted:
                del self._leaving[name]
            elif self._lsn >= lsn:
                del self._leaving[name]
                if name not in writer.tables:
                    continue
                new_name = self._renamed.pop(name, None)
                if new_name is None:
                    writer.drop(name)
                    log.info("table_left", table=str(name))
                elif new_name not in writer.tables:
                    writer.rename(name, new_name)
                    log.info("table_renamed", table=str(name), to=str(new_name))

    async def _copy(self, writer: LakeWriter) -> None:
        """Copy tables that are new, or that changes don't describe completely."""
        for name, lsn in self._rewrites.at.items():
            table = writer.tables.get(name)
            # A copy from after the rewrite has the new values already.
            if table is not None and table.from_lsn <= lsn:
                writer.to_copy.setdefault(name, "it was rewritten")
        await self._requested.take(writer, self._wanted)
        for name, reason in list(writer.to_copy.items()):
            if name not in self._wanted:
                # It left the publication or has another name: what it lacks can't be copied.
                writer.to_copy.pop(name)
                if name in writer.tables:
                    writer.drop(name)
                continue
            log.info("copy_started", table=str(name), reason=reason)
            try:
                await self._copy_table(writer, name)
            except SparkUnusableError:
                # The table can be copied.
                raise
            except HeadraceError as error:
                if error.retry:
                    raise
                self._park(writer, name, describe(error))
        # The first start, or one that starts over: the archive is read from the copies on.
        if not self._next_id:
            await self._find_start(writer)

    async def _copy_table(self, writer: LakeWriter, name: TableName) -> None:
        stats = self._scope.health.stats
        progress = partial(stats.set, "lake_copied_rows")
        async with self._requested.reporting(name, progress) as noted:
            copy = await attempted(
                name,
                partial(
                    copy_table,
                    self._settings,
                    self._engine,
                    name,
                    writer.table_for_copy(name),
                    writer.prepare_copy,
                    noted,
                ),
            )
        failpoint("lake.copied")
        await asyncio.to_thread(writer.adopt, copy.table, copy.folder, copy.files)
        stats.count("lake_copies")
        log.info(
            "copy_finished",
            table=str(name),
            rows=copy.rows,
            files=len(copy.files),
            lsn=format_lsn(copy.table.from_lsn),
        )

    def _park(self, writer: LakeWriter, name: TableName, reason: str) -> None:
        """The table leaves the lake until it can be copied; the others continue without it."""
        log.error("table_parked", table=str(name), reason=reason)
        self._parked[name] = time.monotonic() + PARKED_S
        writer.to_copy.pop(name, None)
        if name in writer.tables:
            writer.drop(name)
        self._scope.health.stats.set("lake_parked_tables", len(self._parked))

    async def _find_start(self, writer: LakeWriter) -> None:
        """The first file with changes that the copies don't contain."""
        # The earliest copy needs the most changes; the others skip what is before their own LSN.
        begins = min((table.from_lsn for table in writer.tables.values()), default=self._lsn)
        reading = self._reader.reading
        start = ReadingStart(from_lsn=begins).first_id(reading.options, reading.seen)
        try:
            self._next_id = await self._reader.run(start)
        except WalFileCollectedError:
            files = await self._reader.list(FIRST_ID)
            if not files or files[0].id != FIRST_ID:
                raise
            # It was written after the copies. The archive had started before them, so nothing is
            # missing between them and its first change.
            self._next_id = FIRST_ID
        self._lsn = begins

    # Cuts

    def _due(self, writer: LakeWriter) -> bool:
        # A cut shows one moment of all tables, between two transactions (ADR 0032).
        if not self._whole or writer.to_copy or not self._next_id:
            return False
        if self._lsn < writer.complete_from:
            return False
        moved = writer.last_cut is None or self._lsn > writer.last_cut.lsn
        if not moved and not writer.changed:
            return False
        return self._times.due(time.monotonic(), changed=writer.changed, behind=self._behind)

    async def _has_every_table(self, writer: LakeWriter) -> bool:
        """Whether the next cut has all tables. One that is new is copied before: otherwise a cut
        after its first rows would be without it.
        """
        if self._unknown:
            self._tables_at = 0.0
            await self._reconcile(writer)
        return not writer.to_copy

    async def _cut(self, writer: LakeWriter) -> None:
        started = time.monotonic()
        if writer.last_cut is not None and not writer.changed:
            # Without a new snapshot of any table: an idle source still moves the cut's LSN forward.
            await asyncio.to_thread(writer.advance, self._lsn, self._next_id - 1)
            self._times.advanced(time.monotonic())
            return
        cut = await asyncio.to_thread(
            writer.cut, self._lsn, self._ordinal, self._next_id - 1, self._commit_us
        )
        cut_s = self._times.cut(started, time.monotonic())
        self.progressed = True
        stats = self._scope.health.stats
        stats.count("lake_cuts")
        stats.observe("lake_cut_seconds", cut_s)
        stats.set("lake_lsn", cut.lsn)
        await self._requested.settle(cut)
        log.info("cut", number=cut.number, lsn=format_lsn(cut.lsn), tables=len(cut.tables))
        name = f"lake-{self._settings.source.slot}"
        # After the cut: the archive may now remove files before it, which no restart will read
        # again.
        await asyncio.to_thread(registry.register, self._archive, name, self._next_id)
