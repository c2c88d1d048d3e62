"""`headrace restore --to`: a whole cluster in a new folder, at a moment."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.backup.errors import RestoreError
from headrace.backup.plan import Planner, RestorePlan, RestoreTarget
from headrace.backup.programs import binaries
from headrace.backup.recovery import RestoredServer, recover
from headrace.backup.restore import RestorePlace, owner, place_of, restore
from headrace.backup.store import BackupStore
from headrace.cli.backup.listing import shown
from headrace.cli.terminal import Console
from headrace.embedded.account import unprivileged_account
from headrace.lsn import format_lsn
from headrace.settings import Settings

_TELL_S = 2.0
# The speeds of a restore on a small machine, for the estimate before it begins.
_FILES_BYTES_S = 150 << 20
_LOG_BYTES_S = 60 << 20


def run(
    settings: Settings,
    store: BackupStore,
    target: RestoreTarget,
    folder: Path,
    *,
    timeline: int | None,
    tablespaces: Mapping[str, Path],
    plan_only: bool,
) -> None:
    """Restore into the folder, and let the server reach the moment."""
    console = Console(stderr=True, soft_wrap=True)
    # Before any file is written: a moment that can't be reached is refused here.
    plan = Planner(store).plan(target, timeline)
    say(console, plan)
    if plan_only:
        return
    place = place_of(folder, owner(folder, unprivileged_account()), tablespaces)
    with recovered(settings, store, plan, place, console):
        pass
    # The log in it is replayed. After a failure it stays, with the server's log.
    shutil.rmtree(place.work)
    program = programs_of(settings, plan, place)
    print(f"restored to {target} in {folder}")
    print(f"start it with: {program / 'pg_ctl'} -D {folder} start")
    print("before its wal-archiver starts, give it another HEADRACE_BACKUP_URL")


def programs_of(settings: Settings, plan: RestorePlan, place: RestorePlace) -> Path:
    """PostgreSQL's programs for a restore."""
    return binaries(settings.backup.binaries, plan.backup.server_version, place.account)


def say(console: Console, plan: RestorePlan) -> None:
    """What the restore will do."""
    chain = " + ".join(record.label for record in plan.backups)
    files = sum(record.bytes for record in plan.backups)
    seconds = files / _FILES_BYTES_S + plan.log_bytes / _LOG_BYTES_S + 2
    console.print(f"moment  {plan.target}, timeline {plan.timeline}")
    console.print(f"backup  {chain}, {shown(files)}")
    console.print(f"log     {shown(plan.log_bytes)}, up to {format_lsn(plan.log_end)}")
    console.print(f"room    {shown(plan.room_bytes)}")
    console.print(f"time    about {seconds:.0f} s")


@contextlib.contextmanager
def recovered(
    settings: Settings, store: BackupStore, plan: RestorePlan, place: RestorePlace, console: Console
) -> Iterator[RestoredServer]:
    """A server that has reached the plan's moment, until the block ends."""
    _check_room(plan, place)
    programs = programs_of(settings, plan, place)
    teller = _Teller(console, plan)
    restore(store, plan, place, programs, teller.tell)
    server = RestoredServer(place, programs, store.identity.superuser)
    console.print("PostgreSQL replays the log")
    try:
        recover(server, plan, place, teller.tell_replay)
        yield server
    finally:
        # In any case: a server left behind would hold the folder and its port.
        server.stop_blocking()
        server.discard()


def require_reachable(place: RestorePlace) -> Path:
    """The folder in which the restored one will be; raises if PostgreSQL's account can't enter."""
    parent = next(path for path in place.folder.parents if path.exists())
    closed = [
        path
        for path in (parent, *parent.parents)
        if place.account is not None and not place.account.may(path, 1)
    ]
    if closed:
        raise RestoreError(
            f"PostgreSQL can't run as root, and its account can't enter {closed[0]}",
            remedy="Name a folder whose parents every user can enter, or run as an ordinary user.",
        )
    return parent


def _check_room(plan: RestorePlan, place: RestorePlace) -> None:
    parent = require_reachable(place)
    free = shutil.disk_usage(parent).free
    if free < plan.room_bytes:
        raise RestoreError(
            f"{parent} has {shown(free)} free, and the restore needs {shown(plan.room_bytes)}",
            remedy="Free space, or name a folder on another disk.",
        )


class _Teller:
    def __init__(self, console: Console, plan: RestorePlan) -> None:
        self._console = console
        self._whole = plan.room_bytes
        self._done = 0
        self._plan = plan
        self._began = time.monotonic()
        self._told_at = self._began
        self._replay_began = self._began

    def tell(self, _what: str, size: int) -> None:
        self._done += size
        now = time.monotonic()
        if now - self._told_at > _TELL_S:
            self._told_at = now
            # The room is an estimate, and more log may have been stored since.
            whole = max(self._whole, self._done)
            # Of files and log together: their speeds differ.
            left = (now - self._began) * (whole / max(1, self._done) - 1)
            text = f"{shown(self._done)} of about {shown(whole)}, about {left:.0f} s left"
            self._console.print(text)

    def tell_replay(self, lsn: int) -> None:
        """How far PostgreSQL is, which started after the last file."""
        if self._replay_began == self._began:
            self._replay_began = time.monotonic()
            return
        begin = self._plan.backup.start_lsn
        share = (lsn - begin) / max(1, self._plan.log_end - begin)
        if 0 < share < 1:
            left = (time.monotonic() - self._replay_began) * (1 / share - 1)
            self._console.print(f"replayed up to {format_lsn(lsn)}, about {left:.0f} s left")
