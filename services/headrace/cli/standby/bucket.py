"""A standby that sees only the backup store: created from it, and fed by it.

Promises that a promoted standby can't write to the store that it came from, and that a folder with
content is refused.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

from headrace.backup.errors import BackupError
from headrace.backup.plan import Planner, RestoreTarget, TargetKind, format_time
from headrace.backup.restore import (
    append_settings,
    forget_recovery,
    owner,
    place_of,
    restore,
    restore_command,
)
from headrace.backup.spool import Spool
from headrace.backup.store import BackupStore
from headrace.cli.restore.cluster import programs_of, say
from headrace.cli.terminal import Console
from headrace.embedded.account import unprivileged_account
from headrace.lsn import format_lsn
from headrace.settings import Settings

NOTE = "standby.json"
FEED_S = 0.2


def create(settings: Settings, store: BackupStore, folder: Path) -> None:
    """Restore the newest backup into the folder, as a standby."""
    plan = Planner(store).plan(RestoreTarget(TargetKind.LATEST))
    console = Console(stderr=True)
    say(console, plan)
    place = place_of(folder, owner(folder, unprivileged_account()))
    programs = programs_of(settings, plan, place)
    # The first segment is enough to start: the feeder brings the others.
    restore(store, replace(plan, segments=plan.segments[:1]), place, programs)
    forget_recovery(place.folder)
    cleanup = f"{programs / 'pg_archivecleanup'} {place.spool} %r"
    given = {
        "restore_command": restore_command(place.spool),
        "recovery_target_timeline": "latest",
        "archive_cleanup_command": cleanup,
        "hot_standby": "on",
        # The spool grows all the time: look again soon.
        "wal_retrieve_retry_interval": "100ms",
    }
    append_settings(place.folder, given)
    (place.folder / "recovery.signal").unlink()
    (place.folder / "standby.signal").touch(mode=0o600)
    (place.work / NOTE).write_text(json.dumps({"start": plan.backup.start_lsn}))
    if place.account is not None:
        for path in (place.folder, place.work):
            place.account.own(path)
    print(f"created a standby in {folder}, from backup {plan.backup.label}")
    print(f"feed it with:     headrace standby feed {folder}")
    print(f"start it with:    {programs / 'pg_ctl'} -D {folder} start")
    print(f"promote it with:  {programs / 'pg_ctl'} -D {folder} promote")
    print("before its wal-archiver starts, give it another HEADRACE_BACKUP_URL")


async def feed(store: BackupStore, folder: Path) -> None:
    """Keep the standby's log up to date until it is interrupted or promoted."""
    place = place_of(folder, owner(folder, unprivileged_account()))
    note = place.work / NOTE
    if not note.exists():
        raise BackupError(
            f"{folder} is not a standby of `headrace standby create`",
            remedy="Name the folder of one.",
        )
    spool = Spool(store, place.spool, place.account)
    start = json.loads(note.read_text())["start"]
    shown_end = 0
    shown_at = time.monotonic()
    # PostgreSQL removes this file when it is promoted.
    while (place.folder / "standby.signal").exists():
        end = await asyncio.to_thread(spool.feed, start)
        if end != shown_end and time.monotonic() >= shown_at:
            shown_end = end
            shown_at = time.monotonic() + 1.0
            status = await asyncio.to_thread(store.status)
            moment = format_time(status.time_us) if status is not None else "an unknown time"
            print(f"log up to {format_lsn(end)}, complete up to {moment}", flush=True)
        await asyncio.sleep(FEED_S)
    print("the standby was promoted")
