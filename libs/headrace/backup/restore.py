"""A planned restore: files from the backup, the log next to them, the server's settings.

Promises that the folder is new or empty before and that a failed restore leaves a folder which no
server takes for a healthy cluster: its log is missing. Starts nothing: `recovery.py` does.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from headrace.backup import layout
from headrace.backup.backups import Backups
from headrace.backup.errors import RestoreError
from headrace.backup.layout import LogPiece
from headrace.backup.log_reading import segment
from headrace.backup.plan import RestorePlan
from headrace.backup.programs import run
from headrace.backup.restored import RESTORED_FROM
from headrace.backup.store import BackupStore
from headrace.backup.unpack import check_tablespaces, require_empty, unpack
from headrace.embedded.account import Account

_FETCHES = 4
# In the files of a cluster that was restored before, by this program or by hand.
_RECOVERY_SETTING = re.compile(r"\s*(recovery_target\w*|restore_command)\b", re.IGNORECASE)
_COMBINE_TIMEOUT_S = 24 * 3600.0
# Settings of the source that its copy must not keep: it would archive, follow or wait as that one.
_OVERRIDDEN = {
    "archive_mode": "off",
    "primary_conninfo": "",
    "primary_slot_name": "",
    "synchronous_standby_names": "",
    "recovery_end_command": "",
    "archive_cleanup_command": "",
}


@dataclass(frozen=True, slots=True)
class RestorePlace:
    """Where a restore writes."""

    # The data directory of the restored cluster.
    folder: Path
    # The log, the recovery's log file, lock and socket, next to the cluster's files.
    work: Path
    # The owner of the files, who runs PostgreSQL; None for the caller.
    account: Account | None
    # New folders by old location.
    tablespaces: Mapping[str, Path] = field(default_factory=dict)

    @property
    def spool(self) -> Path:
        """The log as PostgreSQL's restore_command finds it."""
        return self.work / "log"


def place_of(
    folder: Path, account: Account | None, tablespaces: Mapping[str, Path] | None = None
) -> RestorePlace:
    """The places of a restore into a folder."""
    whole = folder.absolute()
    work = whole.with_name(f"{whole.name}.restore")
    return RestorePlace(whole, work, account, tablespaces or {})


def restore(
    store: BackupStore,
    plan: RestorePlan,
    place: RestorePlace,
    programs: Path | None,
    tell: Callable[[str, int], None] = lambda _what, _bytes: None,
) -> None:
    """Write everything that PostgreSQL needs to reach the plan's moment."""
    # Before anything is fetched: the files of another cluster must not be mixed with these.
    require_empty(place.folder)
    # The remains of a failed restore: its log may be of another moment.
    require_empty(place.work)
    check_tablespaces(plan.backup, place.tablespaces)
    place.work.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.work.chmod(0o700)
    place.spool.mkdir(mode=0o700)
    with ThreadPoolExecutor(_FETCHES + 1) as pool:
        # While the files are unpacked: both wait for the store most of the time.
        log = [pool.submit(_fetch, store, pieces, place, tell) for pieces in plan.segments]
        try:
            _files(store, plan, place, programs, tell)
            for fetched in log:
                fetched.result()
        except BaseException:
            # Otherwise the error would wait until the whole log is fetched.
            pool.shutdown(cancel_futures=True)
            raise
    # All of them: the restored cluster takes a number that none of them has.
    for timeline, content in plan.histories.items():
        (place.spool / layout.history_name(timeline)).write_bytes(content)
    _configure(store, plan, place)
    if place.account is not None:
        for path in (place.folder, place.work, *place.tablespaces.values()):
            place.account.own(path)


def _fetch(
    store: BackupStore,
    pieces: Sequence[LogPiece],
    place: RestorePlace,
    tell: Callable[[str, int], None],
) -> None:
    """One segment of the log; what isn't stored of the last one is zeros, where recovery ends."""
    segments = store.segments
    # The last segment may be stored in parts, which begin within it.
    begin = segments.begin(pieces[0].start)
    content = segment(store, pieces)
    name = segments.name(pieces[0].timeline, begin)
    (place.spool / name).write_bytes(content)
    tell("log", len(content))


def _files(
    store: BackupStore,
    plan: RestorePlan,
    place: RestorePlace,
    programs: Path | None,
    tell: Callable[[str, int], None],
) -> None:
    backups = Backups(store)

    def unpacked(size: int) -> None:
        tell("files", size)

    if len(plan.backups) == 1:
        unpack(backups, plan.backup, place.folder, place.tablespaces, unpacked)
        return
    if place.tablespaces:
        raise RestoreError(
            "an incremental backup with tablespaces can't be restored",
            remedy="Restore to a moment before it, from a full backup.",
        )
    if programs is None:
        raise RestoreError(
            "an incremental backup needs pg_combinebackup",
            remedy="Name PostgreSQL's bin folder in HEADRACE_BACKUP_BINARIES.",
        )
    folders = []
    for record in plan.backups:
        folder = place.work / record.label
        unpack(backups, record, folder, {}, unpacked)
        # pg_combinebackup compares the files with it.
        (folder / "backup_manifest").write_bytes(backups.manifest(record))
        folders.append(folder)
    place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if place.account is not None:
        for path in (place.folder, place.work):
            place.account.own(path)
    run(
        [programs / "pg_combinebackup", *folders, "-o", place.folder, "--no-sync"],
        place.work / "combine.log",
        place.account,
        timeout_s=_COMBINE_TIMEOUT_S,
    )
    for folder in folders:
        shutil.rmtree(folder)


def restore_command(spool: Path) -> str:
    """PostgreSQL's command for a segment of the log; it runs as the server's user."""
    return f"cp {shlex.quote(str(spool)).replace('%', '%%')}/%f %p"


def recovery_settings(place: RestorePlace, plan: RestorePlan) -> dict[str, str]:
    """The settings of a recovery to the end of the log."""
    return {
        "restore_command": restore_command(place.spool),
        "recovery_target_timeline": str(plan.timeline),
    }


def _configure(store: BackupStore, plan: RestorePlan, place: RestorePlace) -> None:
    given = {
        **_OVERRIDDEN,
        **recovery_settings(place, plan),
        **plan.target.settings(),
        RESTORED_FROM: store.identity.store,
    }
    forget_recovery(place.folder)
    append_settings(place.folder, given)
    # The source may have been a standby: it would wait for a primary forever.
    (place.folder / "standby.signal").unlink(missing_ok=True)
    # Without it, PostgreSQL would replay only what pg_wal contains, and open for writes.
    (place.folder / "recovery.signal").touch(mode=0o600)


def forget_recovery(folder: Path) -> None:
    """Remove a recovery's settings. Next to a target, PostgreSQL counts an empty one as another
    and refuses to start.
    """
    for name in ("postgresql.auto.conf", "postgresql.conf"):
        path = folder / name
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if not _RECOVERY_SETTING.match(line)]
            if kept != lines:
                path.write_text("".join(kept))


def append_settings(folder: Path, settings: Mapping[str, str]) -> None:
    """Add settings that override those of the source."""
    path = folder / "postgresql.auto.conf"
    # Appended, because PostgreSQL takes the last of several values.
    text = path.read_text() if path.exists() else ""
    lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
    if text and not text.endswith("\n"):
        text += "\n"
    path.write_text(text + "".join(lines))
    path.chmod(0o600)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def owner(folder: Path, unprivileged: Account | None) -> Account | None:
    """The owner of the restored files. As root this is the folder's owner, if it exists and isn't
    root's, or else an account without rights.
    """
    if unprivileged is None:
        return None
    if folder.exists():
        status = folder.stat()
        if status.st_uid != 0:
            return Account(status.st_uid, status.st_gid)
    return unprivileged
