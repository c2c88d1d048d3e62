"""The lake's upkeep between cuts: compaction, and the removal of files that nothing refers to.

A step runs only when no change waits for a cut and no table is to be copied: the last cut then
refers to all files that the writer has written. Each step is small, so that cuts stay timely.
"""

from __future__ import annotations

import asyncio
import time

from headrace import log as logs
from headrace.lake import cleanup
from headrace.lake.catalog import Catalog, TableName
from headrace.lake.cleanup import FirstSeen
from headrace.lake.compaction import CompactionLimits, replaced, worth
from headrace.lake.engine import Engine
from headrace.lake.files import LakeFiles
from headrace.lake.writer import LakeWriter
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("lake-writer")


class Upkeep:
    """The upkeep of one process; remembers what it saw when the writer starts again."""

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        files: LakeFiles,
        catalog: Catalog,
        engine: Engine,
    ) -> None:
        self._scope = scope
        self._settings = settings.lake
        self._slot = settings.source.slot
        self._files = files
        self._catalog = catalog
        self._engine = engine
        self._limits = CompactionLimits.of(settings.lake)
        self._seen = FirstSeen()
        self._compacted_cut = 0
        self._cleaned_at = time.monotonic()
        # The tables that the present round of cleanup has not looked at; None stands for folders.
        self._to_clean: list[TableName | None] = []

    async def step(self, writer: LakeWriter) -> None:
        """Do a little, if nothing waits."""
        # Files of waiting changes are referred to by no cut: cleanup would take them for unused
        # ones.
        if writer.last_cut is None or writer.changed or writer.to_copy:
            return
        started = time.monotonic()
        # First: what compaction writes is not referred to yet. Under load, both have a turn only
        # after a cut.
        worked = await self._clean(writer)
        if self._limits.bytes_max and writer.last_cut.number != self._compacted_cut:
            # Noted before the work: a rewrite that fails is tried after the next cut and not in a
            # loop.
            self._compacted_cut = writer.last_cut.number
            worked |= await self._compact(writer)
        if worked:
            self._scope.health.stats.observe("lake_upkeep_seconds", time.monotonic() - started)

    async def _compact(self, writer: LakeWriter) -> bool:
        stats = self._scope.health.stats
        every = [table.files for table in writer.snapshots.values()]
        stats.set("lake_data_files", sum(len(files.data) for files in every))
        stats.set("lake_delete_files", sum(len(files.deletes) for files in every))
        works = worth(writer, self._limits)
        if works:
            done = replaced(writer, works, await self._engine.compact(works))
            stats.count("lake_compacted_files", done.files_before)
            stats.count("lake_compacted_bytes", done.bytes)
            log.info(
                "compacted",
                tables=done.tables,
                files_before=done.files_before,
                files_after=done.files_after,
                bytes=done.bytes,
            )
        return bool(works)

    async def _clean(self, writer: LakeWriter) -> bool:
        """Look for unused files of one table, or for unused folders; False if it is not time."""
        if not self._to_clean:
            if time.monotonic() - self._cleaned_at < self._settings.cleanup_interval_s:
                return False
            # One table for each step: listing a large one takes long enough.
            self._to_clean = [None, *writer.snapshots]
            self._cleaned_at = time.monotonic()
        name = self._to_clean.pop()
        table = None if name is None else writer.snapshots.get(name)
        if name is None:
            await asyncio.to_thread(self._clean_folders)
        elif table is not None:
            removed = await asyncio.to_thread(self._clean_table, table.location)
            if removed:
                log.info("files_removed", table=str(name), files=removed)
        return True

    def _clean_table(self, location: str) -> int:
        now = time.time()
        grace_s = self._settings.grace_s
        found = cleanup.unused_files(self._files, location, now - grace_s)
        # By this process's own clock as well: the store's times may be wrong.
        ripe = self._seen.ripe(found, cleanup.folder_of(location), now, grace_s)
        self._files.delete([each.location for each in ripe])
        self._scope.health.stats.count("lake_removed_files", len(ripe))
        return len(ripe)

    def _clean_folders(self) -> None:
        now = time.time()
        grace_s = self._settings.grace_s
        found = cleanup.unused_folders(self._files, self._catalog, self._slot, now - grace_s)
        for folder in found:
            if folder.since <= now - self._settings.keep_dropped_s:
                cleanup.remove_folder(self._files, self._catalog, self._slot, folder)
                self._scope.health.stats.count("lake_removed_files", folder.files)
                log.info("folder_removed", location=folder.location, files=folder.files)
