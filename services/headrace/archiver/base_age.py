"""The age of the base snapshots, as a metric: the archive retains all files since the oldest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from headrace import log as logs
from headrace.archive.bases import BaseRecord, Bases
from headrace.archive.errors import ArchiveError
from headrace.archive.store import Store
from headrace.process.lifecycle import Scope

log = logs.logger("archiver")

INTERVAL_S = 600.0


async def run(scope: Scope, store: Store) -> None:
    """Report the age for the service's lifetime."""
    # One for all rounds: it reads each record once.
    bases = Bases(store)
    taken_at: float | None = None
    while not scope.stopping.is_set():
        try:
            listed = await asyncio.to_thread(bases.all)
        except ArchiveError as error:
            # The last known age continues to grow.
            log.warning("bases_not_read", reason=str(error))
        else:
            taken_at = oldest(base.record for base in listed)
        if taken_at is None:
            scope.health.stats.unset("archive_base_age_seconds")
        else:
            age_s = max(0.0, time.time() - taken_at)
            scope.health.stats.set("archive_base_age_seconds", age_s)
        await scope.pause(INTERVAL_S)


def oldest(records: Iterable[BaseRecord]) -> float | None:
    """Of each table's newest base, the oldest one's time in seconds; None if there is no base."""
    newest: dict[tuple[str, str], int] = {}
    for record in records:
        newest[record.name] = max(record.time_us, newest.get(record.name, 0))
    return min(newest.values()) / 1e6 if newest else None
