"""`headrace standby promote`: makes a running standby a primary, with another backup store."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.backup.errors import BackupError
from headrace.backup.programs import binaries, run
from headrace.backup.restore import owner, place_of
from headrace.backup.store import BackupStore
from headrace.embedded.account import unprivileged_account
from headrace.settings import Settings

_TIMEOUT_S = 3600
_HISTORY = re.compile(r"([0-9A-F]{8})\.history")


def promote(settings: Settings, store: BackupStore, folder: Path) -> None:
    """Promote the server of this folder, and say where its own backups go."""
    version = folder / "PG_VERSION"
    if not version.exists() or not (folder / "standby.signal").exists():
        raise BackupError(
            f"{folder} is not the folder of a standby",
            remedy="Name the data directory of one; a promoted one is no longer a standby.",
        )
    account = owner(folder, unprivileged_account())
    place = place_of(folder, account)
    programs = binaries(settings.backup.binaries, int(version.read_text().split()[0]), account)
    place.work.mkdir(parents=True, exist_ok=True, mode=0o700)
    # It waits until the server takes writes.
    run(
        [
            programs / "pg_ctl",
            "promote",
            f"--pgdata={place.folder}",
            "--wait",
            f"--timeout={_TIMEOUT_S}",
        ],
        place.work / "promote.log",
        account,
        timeout_s=_TIMEOUT_S + 60.0,
    )
    timeline = _timeline(folder)
    print(f"promoted {folder}: it is a primary on timeline {timeline}")
    print("its backups need another store, and the former one stays as it is:")
    print(f"  export HEADRACE_BACKUP_URL={store.url}-{timeline}")
    print("  headrace backup init")


def _timeline(folder: Path) -> int:
    """The newest timeline, which starts with the promotion."""
    found = (_HISTORY.fullmatch(path.name) for path in (folder / "pg_wal").iterdir())
    return max((int(match[1], 16) for match in found if match), default=1)
