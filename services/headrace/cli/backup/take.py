"""`headrace backup now`: takes a backup, and waits until it can be restored."""

from __future__ import annotations

import asyncio
import json
import time

from headrace.backup.backups import Backups
from headrace.backup.base_backup import BackupProgress, take_backup
from headrace.backup.errors import BackupError
from headrace.backup.record import BackupRecord
from headrace.cli.backup.look import shown
from headrace.cli.backup.opened import opened
from headrace.cli.terminal import Console
from headrace.settings import Settings

_TELL_S = 2.0


async def run(
    settings: Settings,
    *,
    incremental: bool,
    spread: bool,
    tags: tuple[str, ...],
    log_timeout_s: float,
    as_json: bool,
) -> None:
    """Take a backup; `incremental` follows the newest one."""
    store = await asyncio.to_thread(opened, settings)
    parent = None
    if incremental:
        records = await asyncio.to_thread(Backups(store).all)
        if not records:
            raise BackupError(
                "there is no backup to follow",
                remedy="Take a full one first: without --incremental.",
            )
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


def _print(made: BackupRecord, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"label": made.label, "bytes": made.bytes, "stored": made.stored_bytes}))
    else:
        print(f"backup {made.label}: {shown(made.bytes)}, stored as {shown(made.stored_bytes)}")
