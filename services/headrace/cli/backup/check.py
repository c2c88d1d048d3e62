"""`headrace backup verify`: reads the whole store, and compares its end with the server's log."""

from __future__ import annotations

import asyncio
import json
import time

from headrace.backup.plan import Planner
from headrace.backup.segments import reach
from headrace.backup.store import BackupStore
from headrace.backup.verify import Checked, verify
from headrace.cli.backup.listing import shown
from headrace.cli.terminal import Console
from headrace.lsn import parse_lsn
from headrace.postgres.physical import PhysicalConnection
from headrace.settings import Settings

DAMAGED_EXIT = 3
# wal-archiver stores what was written a moment ago.
CATCH_UP_S = 15.0
_POLL_S = 0.2


async def run(settings: Settings, store: BackupStore, *, offline: bool, as_json: bool) -> int:
    """Check everything; returns the exit code."""
    console = Console(stderr=True)
    up_to = None
    if not offline:
        # Asked first: what is written during the check isn't expected in the store.
        up_to = await _server_end(settings, store)
        await _caught_up(store, up_to)
    checked = Checked()

    def tell(what: str) -> None:
        console.print(f"reading {what}")

    found = await asyncio.to_thread(lambda: list(verify(store, checked, tell, up_to)))
    if as_json:
        print(
            json.dumps(
                {
                    "backups": checked.backups,
                    "files": checked.files,
                    "log_bytes": checked.log_bytes,
                    "findings": [{"name": one.name, "what": one.what} for one in found],
                }
            )
        )
    else:
        for one in found:
            print(f"{one.name}: {one.what}")
        verdict = "damaged" if found else "complete"
        print(
            f"{verdict}: {checked.backups} backups with {checked.files} files, "
            f"{shown(checked.log_bytes)} of log"
        )
    return DAMAGED_EXIT if found else 0


async def _server_end(settings: Settings, store: BackupStore) -> int:
    connection = await PhysicalConnection.open(settings.postgres, "headrace backup verify")
    try:
        identity = await connection.identify()
        # An LSN of another cluster says nothing about this store.
        await asyncio.to_thread(store.check, identity.system_id)
        (lsn,) = await connection.facts("SELECT pg_current_wal_flush_lsn()::text")
        return parse_lsn(lsn or "")
    finally:
        connection.close()


async def _caught_up(store: BackupStore, up_to: int) -> None:
    deadline = time.monotonic() + CATCH_UP_S
    while time.monotonic() < deadline:
        planner = await asyncio.to_thread(Planner, store)
        if not planner.records:
            return
        start = planner.records[-1].start_lsn
        if reach(planner.pieces, planner.way(planner.timeline), start) >= up_to:
            return
        await asyncio.sleep(_POLL_S)
