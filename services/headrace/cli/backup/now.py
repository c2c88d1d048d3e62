"""`headrace backup now`: takes a backup, and waits until it can be restored."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headrace.backup.backups import Backups, label_time
from headrace.backup.base_backup import BackupProgress, take_backup
from headrace.backup.errors import BackupError
from headrace.backup.record import BackupRecord
from headrace.cli.backup.listing import shown
from headrace.cli.backup.selection import opened
from headrace.cli.terminal import Console
from headrace.postgres.physical import PhysicalConnection
from headrace.settings import Settings

_TELL_S = 2.0


@dataclass(frozen=True, slots=True)
class BackupSchedule:
    """When a command that runs often takes a backup, and of which kind."""

    # The age at which the newest backup is no longer enough; None: always.
    due_s: float | None = None
    # The age at which the newest full backup is no longer followed; None: it isn't.
    full_every_s: float | None = None

    def due(self, records: Sequence[BackupRecord], now: datetime) -> bool:
        """Whether a backup is due."""
        if self.due_s is None or not records:
            return True
        return now - label_time(records[-1].label) >= timedelta(seconds=self.due_s)

    def follows(self, records: Sequence[BackupRecord], now: datetime) -> bool:
        """Whether it may follow the newest one."""
        full = [record.label for record in records if record.parent is None]
        if self.full_every_s is None or not full:
            return False
        return now - label_time(full[-1]) < timedelta(seconds=self.full_every_s)


async def run(
    settings: Settings,
    *,
    schedule: BackupSchedule,
    incremental: bool,
    spread: bool,
    tags: tuple[str, ...],
    log_timeout_s: float,
    as_json: bool,
) -> None:
    """Take a backup; `incremental` follows the newest one."""
    store = await asyncio.to_thread(opened, settings)
    records = await asyncio.to_thread(Backups(store).all)
    if incremental and not records:
        raise BackupError(
            "there is no backup to follow",
            remedy="Take a full one first: without --incremental.",
        )
    if not schedule.due(records, datetime.now(UTC)):
        print(f"backup {records[-1].label} is recent enough")
        return
    # The server decides each time: without summaries the backup is a full one, and no error.
    if schedule.follows(records, datetime.now(UTC)):
        incremental = await _summarizes(settings)
    parent = None
    if incremental:
        parent = records[-1]
    console = Console(stderr=True)
    told_at = time.monotonic()

    def tell(progress: BackupProgress) -> None:
        nonlocal told_at
        if progress.waits_for:
            console.print(f"waiting for {progress.waits_for}")
        elif time.monotonic() - told_at > _TELL_S:
            told_at = time.monotonic()
            console.print(f"{shown(progress.bytes)} read, {shown(progress.stored_bytes)} stored")

    made = await take_backup(
        settings,
        store,
        fast=not spread,
        parent=parent,
        tags=tags,
        log_timeout_s=log_timeout_s,
        tell=tell,
    )
    _print(made, as_json=as_json)


async def _summarizes(settings: Settings) -> bool:
    """Whether the server can take an incremental backup."""
    connection = await PhysicalConnection.open(settings.postgres, "headrace backup")
    try:
        # Servers before version 17 have no such setting.
        (value,) = await connection.facts("SELECT current_setting('summarize_wal', true)")
    finally:
        connection.close()
    return value == "on"


def _print(made: BackupRecord, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"label": made.label, "bytes": made.bytes, "stored": made.stored_bytes}))
    else:
        print(f"backup {made.label}: {shown(made.bytes)}, stored as {shown(made.stored_bytes)}")
