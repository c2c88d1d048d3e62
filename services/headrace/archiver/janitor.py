"""Garbage collection by the archiver, if HEADRACE_ARCHIVE_KEEP_S says how long to keep files."""

from __future__ import annotations

import asyncio

from headrace import log as logs
from headrace.archive import collect
from headrace.archive.errors import ArchiveError
from headrace.archive.store import Store
from headrace.process.lifecycle import Scope

log = logs.logger("archiver")

INTERVAL_S_MAX = 600.0


async def run(scope: Scope, store: Store, keep_s: int) -> None:
    """Remove old files for the service's lifetime; never files that a registered reader needs."""
    while not scope.stopping.is_set():
        try:
            # A large archive takes seconds to list, during which the archiver has to answer.
            planned = await asyncio.to_thread(collect.plan, store, keep_s)
            await asyncio.to_thread(collect.carry_out, store, planned)
        except ArchiveError as error:
            # An archive that keeps too much is no reason to stop archiving.
            log.warning("garbage_not_collected", reason=str(error))
        else:
            if planned.remove or planned.bases:
                log.info("garbage_collected", files=len(planned.remove), bases=len(planned.bases))
            if (base := planned.kept_for) is not None:
                log.warning("files_kept_for_base", base=base.id, next_id=base.next_id)
            for reader in planned.kept_by:
                log.warning("files_kept_for_reader", reader=reader.name, next_id=reader.next_id)
        # No file stays much longer than it should, however short that is.
        await scope.pause(min(INTERVAL_S_MAX, max(1.0, keep_s / 10)))
