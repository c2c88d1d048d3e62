"""`headrace backup expire`: removes backups by whole chains, and the log that only they needed."""

from __future__ import annotations

import json

from headrace.backup.expiry import expired, remove
from headrace.backup.store import BackupStore
from headrace.settings import Settings


def expire(
    settings: Settings,
    store: BackupStore,
    keep: int | None,
    keep_s: float | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove what isn't kept, or only show it."""
    gone = expired(
        store,
        keep=keep or settings.backup.keep_backups,
        keep_s=keep_s if keep_s is not None else settings.backup.keep_s,
    )
    if not dry_run:
        remove(store, gone)
    labels = [record.label for record in gone.backups]
    if as_json:
        body = {"backups": labels, "log_objects": len(gone.pieces), "removed": not dry_run}
        print(json.dumps(body | {"unfinished": list(gone.unfinished)}))
        return
    done = "would remove" if dry_run else "removed"
    for label in [*labels, *gone.unfinished]:
        print(f"{done} {label}")
    print(f"{done} {len(labels)} backups, {len(gone.pieces)} objects of the log")
