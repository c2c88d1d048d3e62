"""Measures how far the lake is behind: archive files, seconds, and bytes of the source's log.

It runs next to the follower, so that the figures stay true while the follower copies a table, or
recovers. It never blocks the follower, and a failed measurement leaves the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import asyncpg

from headrace import log as logs
from headrace.archive.asynchronous import AsyncWalReader
from headrace.errors import HeadraceError, describe
from headrace.lake.catalog import Cut
from headrace.lsn import parse_lsn
from headrace.postgres.connection import BROKEN, connect
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("lake-writer")

INTERVAL_S = 10.0
_APPLICATION = "headrace lake lag"


class Lag:
    """Measures the lag of `last_cut`, which returns None if there is none."""

    def __init__(self, settings: Settings, last_cut: Callable[[], Cut | None]) -> None:
        assert settings.archive.url, "checked at the start"
        self._settings = settings
        self._reader = AsyncWalReader(settings.archive.url)
        self._last_cut = last_cut

    async def follow(self, scope: Scope) -> None:
        """Measure at intervals, once there is a cut."""
        stats = scope.health.stats
        while not scope.stopping.is_set():
            cut = self._last_cut()
            if cut is not None:
                try:
                    files, seconds = await self._behind(cut)
                    stats.set("lake_lsn", cut.lsn)
                    stats.set("lake_behind_files", files)
                    stats.set("lake_lag_seconds", seconds)
                    stats.set("lake_lag_bytes", max(0, await self._written() - cut.lsn))
                except (HeadraceError, *BROKEN, asyncpg.PostgresError) as error:
                    # The follower reports it, if it lasts.
                    log.debug("lag_unknown", reason=describe(error))
            await scope.pause(INTERVAL_S)

    async def _behind(self, cut: Cut) -> tuple[int, float]:
        """The number of archive files after a cut, and the age of the first."""
        files = await self._reader.list(cut.archive_file + 1)
        if not files:
            return 0, 0.0
        written = files[0].metadata.last_modified.timestamp()
        return len(files), max(0.0, time.time() - written)

    async def _written(self) -> int:
        """The end of the source's log."""
        session = await connect(self._settings.postgres, _APPLICATION)
        try:
            return parse_lsn(await session.fetchval("SELECT pg_current_wal_lsn()::text"))
        finally:
            session.terminate()
