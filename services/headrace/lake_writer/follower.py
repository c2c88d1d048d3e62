"""Follows the archive: applies its files, copies tables where that is needed, makes cuts.

There is no cut while a table is being copied, nor before the archive has reached the copy's LSN:
readers keep the cut before, in which all tables show one moment.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import asyncpg
import pyarrow as pa

from headrace import log as logs
from headrace.archive import registry
from headrace.archive.asynchronous import AsyncWalFile, AsyncWalReader
from headrace.archive.layout import FIRST_ID
from headrace.archive.mark import ArchiveMark
from headrace.archive.metadata import SegmentInfo
from headrace.archive.reader import WalReaderOptions
from headrace.archive.store import Store
from headrace.contract.selection import Selection
from headrace.jetstream.state import Cell
from headrace.lake.catalog import Catalog, TableName
from headrace.lake.files import LakeFiles
from headrace.lake.writer import LakeWriter, Source
from headrace.lake_writer.rewrites import Rewrites
from headrace.lake_writer.table_copy import copy_table
from headrace.lsn import format_lsn, parse_lsn
from headrace.postgres import catalog as postgres_catalog
from headrace.postgres.connection import BROKEN, PostgresUnreachableError, connect, explained
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("lake-writer")

POLL_S = 0.2
# New and dropped tables are looked for this often, and when a change names an unknown table.
TABLES_S = 10.0
_APPLICATION = "headrace lake"


class Follower:
    """One attempt to follow the archive, from the last cut on."""

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        files: LakeFiles,
        catalog: Catalog,
        archive: Store,
        mark: Cell,
        rewrites: Rewrites,
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._files = files
        self._archive = archive
        self._mark = mark
        self._rewrites = rewrites
        assert settings.archive.url, "checked at the start"
        options = WalReaderOptions(raise_at_gap=False)
        self._reader = AsyncWalReader(settings.archive.url, options)
        self._catalog = catalog
        self._writer: LakeWriter | None = None
        self._next_id = 0
        self._lsn = 0
        self._ordinal = 0
        self._commit_us: int | None = None
        self._whole = True
        self._cut_at = 0.0
        self._tables_at = 0.0
        self._wanted: dict[TableName, int] = {}
        # Tables that left the publication, and from which LSN on.
        self._leaving: dict[TableName, int] = {}
        self._renamed: dict[TableName, TableName] = {}
        self.progressed = False

    async def run(self) -> None:
        writer = await self._begin()
        while not self._scope.stopping.is_set():
            await self._reconcile(writer)
            await self._copy(writer)
            if not await self._step(writer):
                self._scope.health.started()
                await self._scope.pause(POLL_S)
            self._leave(writer)
            if self._due(writer):
                await self._cut(writer)

    async def _begin(self) -> LakeWriter:
        """The writer as of the last cut, and the archive's file to continue with."""
        first = await self._first_file()
        settings = self._settings
        source = Source(settings.source.slot, "", 0)
        if first is not None:
            source = Source(settings.source.slot, first.system_id, first.timeline)
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
        if writer.last_cut is not None:
            self._next_id = writer.last_cut.archive_file + 1
            self._lsn = writer.last_cut.lsn
            self._ordinal = writer.last_cut.ordinal
        self._scope.health.unblock("lake")
        return writer

    async def _first_file(self) -> SegmentInfo | None:
        """The archive's first file, once the archive covers the present."""
        while not self._scope.stopping.is_set():
            found = await self._reader.list(FIRST_ID)
            if found:
                file = await self._reader.get(found[-1].id)
                return None if file is None else file.info
            mark = ArchiveMark.of(await self._mark.read())
            if mark.lsn:
                return None
            self._scope.health.block("archive", "the archive is empty")
            await self._scope.pause(POLL_S)
        return None

    async def _step(self, writer: LakeWriter) -> bool:
        """Apply the archive's next file; False if there is none yet."""
        # Read before: if no file follows then, the archive is complete up to it.
        mark = ArchiveMark.of(await self._mark.read())
        file = await self._reader.get(self._next_id)
        if file is None:
            if mark.file == self._next_id - 1 and self._whole:
                self._lsn = max(self._lsn, mark.lsn)
            return False
        info = file.info
        if info.gap is not None:
            for name in writer.tables:
                writer.to_copy[name] = "the archive has a gap"
        else:
            await self._take(writer, file)
        self._next_id = info.next_id
        self._lsn = max(self._lsn, info.end_lsn)
        self._ordinal = info.last.seq
        self._commit_us = info.time_us or self._commit_us
        self._whole = info.whole
        return True

    async def _take(self, writer: LakeWriter, file: AsyncWalFile) -> None:
        batches = [batch async for batch in file.batches()]
        if not batches:
            return
        rows = pa.Table.from_batches(batches).unify_dictionaries()
        unknown = {TableName(table.schema, table.table) for table in file.info.tables}
        if unknown - writer.tables.keys():
            self._tables_at = 0.0
        await asyncio.to_thread(writer.take, file.info, rows)
        self._scope.health.stats.count("lake_rows", rows.num_rows)

    # Tables

    async def _reconcile(self, writer: LakeWriter) -> None:
        """Compare the lake's tables with the publication's."""
        if time.monotonic() - self._tables_at < TABLES_S and self._wanted:
            return
        self._wanted, lsn = await self._published()
        self._tables_at = time.monotonic()
        gone = {
            table.relation_id: name
            for name, table in writer.tables.items()
            if name not in self._wanted
        }
        self._renamed.clear()
        for name in self._wanted.keys() - writer.tables.keys():
            before = gone.pop(self._wanted[name], None)
            if before is None:
                writer.to_copy.setdefault(name, "it is new")
            else:
                self._renamed[before] = name
        for name in writer.tables.keys() - self._wanted.keys():
            self._leaving.setdefault(name, lsn)
        self._scope.health.stats.set("lake_tables", len(writer.tables))

    async def _published(self) -> tuple[dict[TableName, int], int]:
        settings = self._settings
        try:
            session = await connect(settings.postgres, _APPLICATION)
            try:
                lsn = parse_lsn(await session.fetchval("SELECT pg_current_wal_lsn()::text"))
                chosen = settings.format
                tables = postgres_catalog.delivered(
                    await postgres_catalog.published_tables(session, settings.source.publication),
                    Selection(chosen.include, chosen.exclude, chosen.exclude_columns),
                )
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
            if table is not None and table.from_lsn <= lsn:
                writer.to_copy.setdefault(name, "it was rewritten")
        stats = self._scope.health.stats
        for name, reason in list(writer.to_copy.items()):
            if name not in self._wanted:
                writer.to_copy.pop(name)
                continue
            log.info("copy_started", table=str(name), reason=reason)
            copy = await copy_table(
                self._settings,
                self._files,
                name,
                writer.table_for_copy(name),
                writer.prepare_copy,
                partial(stats.set, "lake_copied_rows"),
            )
            await asyncio.to_thread(writer.adopt, copy.table, copy.folder, copy.files)
            stats.count("lake_copies")
            log.info(
                "copy_finished",
                table=str(name),
                rows=copy.rows,
                files=len(copy.files),
                lsn=format_lsn(copy.table.from_lsn),
            )
        if not self._next_id:
            await self._find_start(writer)

    async def _find_start(self, writer: LakeWriter) -> None:
        """The first file with changes that the copies don't contain."""
        begins = min((table.from_lsn for table in writer.tables.values()), default=self._lsn)
        files = await self._reader.list(FIRST_ID)
        self._next_id = files[0].id if files else FIRST_ID
        for listed in files:
            file = await self._reader.get(listed.id)
            if file is not None and file.info.end_lsn <= begins and file.info.whole:
                self._next_id = file.next_id
        self._lsn = begins

    # Cuts

    def _due(self, writer: LakeWriter) -> bool:
        if not self._whole or writer.to_copy or self._lsn < writer.complete_from:
            return False
        since = time.monotonic() - self._cut_at
        moved = writer.last_cut is None or self._lsn > writer.last_cut.lsn
        interval_s = self._settings.lake.flush_interval_s
        return (moved or writer.changed) and since >= interval_s

    async def _cut(self, writer: LakeWriter) -> None:
        started = time.monotonic()
        if writer.last_cut is not None and not writer.changed:
            await asyncio.to_thread(writer.advance, self._lsn, self._next_id - 1)
            self._cut_at = time.monotonic()
            return
        failpoint("lake.before_cut")
        cut = await asyncio.to_thread(
            writer.cut, self._lsn, self._ordinal, self._next_id - 1, self._commit_us
        )
        self._cut_at = time.monotonic()
        self.progressed = True
        stats = self._scope.health.stats
        stats.count("lake_cuts")
        stats.observe("lake_cut_seconds", self._cut_at - started)
        stats.set("lake_lsn", cut.lsn)
        log.info("cut", number=cut.number, lsn=format_lsn(cut.lsn), tables=len(cut.tables))
        name = f"lake-{self._settings.source.slot}"
        await asyncio.to_thread(registry.register, self._archive, name, self._next_id)
