"""A standby that sees only the backup store: created from it, and fed by it.

Promises that a promoted standby can't write to the store that it came from, and that a folder with
content is refused.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import replace
from pathlib import Path

from headrace.backup import standbys
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
NOTE_S = 5.0


class _Notes:
    """Tells the store how far a standby's log is, for `headrace backup status`."""

    def __init__(self, store: BackupStore, name: str) -> None:
        self._store = store
        self._name = name
        self._noted_at = -NOTE_S
        self._refused = False

    async def keep(self, end: int) -> None:
        """Note it now and then; a store that this machine may only read is enough to feed it."""
        if self._refused or time.monotonic() - self._noted_at < NOTE_S:
            return
        self._noted_at = time.monotonic()
        status = await asyncio.to_thread(self._store.status)
        complete_us = None
        if status is not None:
            complete_us = status.time_us
        try:
            await asyncio.to_thread(standbys.note, self._store, self._name, end, complete_us)
        except BackupError as error:
            self._refused = True
            print(f"its lag is not shown in `headrace backup status`: {error}", flush=True)


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
    print(f"promote it with:  headrace standby promote {folder}")


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
    name = f"{socket.gethostname()}-{place.folder.name}"
    notes = _Notes(store, name)
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
        await notes.keep(end)
        await asyncio.sleep(FEED_S)
    print("the standby was promoted")
