"""`headrace restore --drill`: proves that the backups work, by a restore that is thrown away.

It records digests of all tables at an LSN of now, restores to the LSN of one of those recorded
since the newest backup, at random, and compares. Promises that a drill which didn't prove it is
recorded as failed and exits with a code other than 0, and that nothing of the restored cluster
stays.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from headrace.backup import digests, drills
from headrace.backup.digests import RecordedDigests
from headrace.backup.drills import DrillOutcome
from headrace.backup.errors import BackupError, LogHoleError, NoSuchMomentError, RestoreError
from headrace.backup.plan import Planner, RestorePlan, RestoreTarget, TargetKind
from headrace.backup.programs import run as run_program
from headrace.backup.recovery import RestoredServer
from headrace.backup.restore import RestorePlace, owner, place_of
from headrace.backup.segments import reach
from headrace.backup.store import BackupStore
from headrace.backup.temporary import TemporaryFolder
from headrace.cli.restore import cluster
from headrace.cli.terminal import Console
from headrace.embedded.account import unprivileged_account
from headrace.lsn import format_lsn
from headrace.settings import Settings

# As `headrace backup verify` has.
DIFFERS_EXIT = 3
# wal-archiver has stored the log of a moment ago, or it is not running.
_LOG_TIMEOUT_S = 300.0
_LOG_POLL_S = 0.2
_CHECKSUMS_TIMEOUT_S = 24 * 3600.0
_SHOWN_MAX = 10


@dataclass(slots=True)
class _Drill:
    """One drill as far as it is; the outcome is made of it."""

    began: float
    backup: str = ""
    moment: str = ""
    tables: int = 0
    seconds: float = 0.0

    def outcome(self, reason: str) -> DrillOutcome:
        return DrillOutcome(
            not reason, reason, self.backup, self.moment, self.tables, round(self.seconds, 3)
        )


def run(settings: Settings, store: BackupStore, work: Path | None) -> int:
    """Hold a drill; returns the exit code."""
    console = Console(stderr=True, soft_wrap=True)
    drill = _Drill(time.monotonic())
    try:
        found = _differences(settings, store, work, drill, console)
    except Exception as error:
        # An unexpected error as well: only a drill that has ended well proves anything.
        drills.note(store, drill.outcome(str(error) or type(error).__name__))
        raise
    for line in found[:_SHOWN_MAX]:
        print(line)
    drills.note(store, drill.outcome("; ".join(found[:_SHOWN_MAX])))
    verdict = "failed" if found else "passed"
    print(
        f"drill {verdict}: {drill.tables} tables compared at {drill.moment}, from backup "
        f"{drill.backup}, restored in {drill.seconds:.1f} s"
    )
    return DIFFERS_EXIT if found else 0


def _differences(
    settings: Settings, store: BackupStore, work: Path | None, drill: _Drill, console: Console
) -> list[str]:
    made = asyncio.run(digests.source_digests(settings.postgres))
    if not made.tables:
        raise BackupError(
            f"the database {made.database} has no table to compare",
            remedy="Name a database with tables in PG_DB.",
        )
    # Before the restore: later drills can choose this moment, too.
    digests.record(store, made)
    planner = _with_log(store, made)
    newest = planner.newest_backup()
    chosen = _random(store, planner, newest.end_lsn)
    target = RestoreTarget(TargetKind.LSN, chosen.lsn)
    plan = planner.plan(target)
    drill.backup = plan.backup.label
    drill.moment = f"LSN {format_lsn(chosen.lsn)}, {chosen.time}"
    cluster.say(console, plan)
    drill.began = time.monotonic()
    with _temporary(work) as place:
        with cluster.recovered(settings, store, plan, place, console) as server:
            drill.seconds = time.monotonic() - drill.began
            console.print(f"comparing {len(chosen.tables)} tables")
            restored = asyncio.run(_restored_digests(server, chosen.database))
        drill.tables = len(chosen.tables)
        return _compared(chosen.tables, restored) + _checksums(settings, plan, place)


def _with_log(store: BackupStore, made: RecordedDigests) -> Planner:
    """The store, as soon as it has the log of the digests."""
    deadline = time.monotonic() + _LOG_TIMEOUT_S
    while True:
        planner = Planner(store)
        start = planner.newest_backup().start_lsn
        stored = reach(planner.pieces, planner.way(planner.timeline), start)
        if stored >= made.lsn:
            return planner
        if time.monotonic() > deadline:
            raise LogHoleError(
                f"the log is stored only up to {format_lsn(stored)}, not up to "
                f"{format_lsn(made.lsn)}",
                remedy="Start wal-archiver, and see why it is not ready.",
            )
        time.sleep(_LOG_POLL_S)


def _random(store: BackupStore, planner: Planner, begin: int) -> RecordedDigests:
    """A recorded moment after the newest backup: with the same restore, another one each night."""
    ends = {one.timeline: one.end for one in planner.way(planner.timeline)}
    found = [
        one
        for one in digests.recorded(store)
        # A moment on a timeline that was left behind can't be reached by this way.
        if one.lsn >= begin and one.lsn <= ends.get(one.timeline, 0)
    ]
    if not found:
        raise NoSuchMomentError("no recorded moment is later than the newest backup")
    return secrets.choice(found)


@contextmanager
def _temporary(work: Path | None) -> Iterator[RestorePlace]:
    folder = TemporaryFolder(work)
    try:
        # PostgreSQL's account has to enter it.
        folder.path.chmod(0o711)
        yield place_of(folder.path / "cluster", owner(folder.path, unprivileged_account()))
    finally:
        folder.remove()


async def _restored_digests(server: RestoredServer, database: str) -> dict[str, str]:
    given = server.environment(database)
    session = await asyncpg.connect(
        host=given["PGHOST"], port=int(given["PGPORT"]), user=given["PGUSER"], database=database
    )
    try:
        # One snapshot for all tables, as at the source.
        async with session.transaction(isolation="repeatable_read", readonly=True):
            return await digests.digests_in(session)
    except asyncpg.PostgresError as error:
        raise RestoreError(
            f"the restored cluster can't be read: {error}",
            remedy="Check the store with `headrace backup verify`, and take a new backup.",
        ) from error
    finally:
        await session.close()


def _compared(source: Mapping[str, str], restored: Mapping[str, str]) -> list[str]:
    """The differences; tables that changed during the source's digests are only in the copy."""
    found = []
    for name, digest in source.items():
        other = restored.get(name)
        if other is None:
            found.append(f"{name} is missing in the restored cluster")
        elif other != digest:
            # A digest begins with the number of rows, which people understand better than a hash.
            rows, other_rows = digest.split()[0], other.split()[0]
            found.append(
                f"{name} differs: {rows} rows in the source, {other_rows} in the restored cluster"
            )
    return found


def _checksums(settings: Settings, plan: RestorePlan, place: RestorePlace) -> list[str]:
    """The pages of all databases whose checksums are wrong, if the cluster has checksums."""
    control = place.folder / "global" / "pg_control"
    programs = cluster.programs_of(settings, plan, place)
    if not control.exists() or not (programs / "pg_checksums").is_file():
        return []
    log = place.work / "checksums.log"
    try:
        run_program(
            [programs / "pg_checksums", "--check", "-D", place.folder],
            log,
            place.account,
            timeout_s=_CHECKSUMS_TIMEOUT_S,
        )
    except BackupError as error:
        # A cluster that has none: its digests are the proof.
        if "not enabled" in log.read_text(errors="replace"):
            return []
        return [str(error.args[0])]
    return []
