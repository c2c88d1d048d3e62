"""Which backups go, and the log that only they needed. Removes whole chains.

Promises that no backup that stays needs an object that goes, and that the log from the oldest
backup that stays is complete. Backups with a tag stay until it is removed with the backup.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headrace.backup import digests, drills, layout
from headrace.backup.backups import Backups
from headrace.backup.layout import LogPiece
from headrace.backup.plan import Planner
from headrace.backup.record import BackupRecord
from headrace.backup.store import BackupStore
from headrace.process.failpoint import failpoint

# An unfinished backup may still be running for so long.
UNFINISHED_S = 48 * 3600.0


@dataclass(frozen=True, slots=True)
class Expired:
    """What may go."""

    # Whole chains.
    backups: Sequence[BackupRecord]
    # Log before the beginning of every backup that stays.
    pieces: Sequence[LogPiece]
    # Labels of backups that were interrupted long ago.
    unfinished: Sequence[str]
    # Names of digests that no drill can use any more, and of old outcomes of drills.
    digests: Sequence[str] = ()
    drills: Sequence[str] = ()


def expired(
    store: BackupStore, *, keep: int, keep_s: float | None, now_us: int | None = None
) -> Expired:
    """Everything that `keep` backups and the moments of the last `keep_s` seconds don't need."""
    planner = Planner(store)
    unfinished = sorted(Backups(store).unfinished())
    interrupted = _interrupted(unfinished)
    running = [label for label in unfinished if label not in interrupted]
    used = _parents_of(running, planner.records)
    gone = _backups(planner.records, used, keep, keep_s, now_us or time.time_ns() // 1000)
    labels = {record.label for record in gone}
    kept = [record for record in planner.records if record.label not in labels]
    pieces: list[LogPiece] = []
    old_digests: list[str] = []
    if kept:
        # Timelines before the oldest backup's are parents that no way needs before its beginning.
        first = min(kept, key=lambda record: (record.timeline, record.start_lsn))
        begin = store.segments.begin(min(record.start_lsn for record in kept))
        pieces = [
            piece
            for piece in planner.pieces
            if piece.end <= begin and piece.timeline <= first.timeline
        ]
        old_digests = digests.unusable(store, min(record.end_lsn for record in kept))
    outcomes = [one.name for one in drills.listed(store.names(layout.DRILLS))]
    return Expired(gone, pieces, interrupted, old_digests, outcomes[: -drills.KEPT_MAX])


def _parents_of(running: Sequence[str], records: Sequence[BackupRecord]) -> set[str]:
    """The backups that a running one may follow: it follows the newest of its beginning."""
    # The start of an incremental backup reads its parent's manifest, and its end lists it.
    found = set()
    for label in running:
        earlier = [record.label for record in records if record.label < label]
        found.add(max(earlier, default=""))
    return found


def _backups(
    records: Sequence[BackupRecord],
    used: set[str],
    keep: int,
    keep_s: float | None,
    now_us: int,
) -> list[BackupRecord]:
    """Whole chains, the oldest first, as far as enough remains."""
    chains: dict[str, list[BackupRecord]] = {}
    root_of: dict[str, str] = {}
    for record in records:
        root = record.label
        if record.parent is not None:
            # Records are in order of time, so the chain of the parent is known.
            root = root_of.get(record.parent, record.parent)
        root_of[record.label] = root
        chains.setdefault(root, []).append(record)
    gone: list[BackupRecord] = []
    # Those with a tag, or with a backup in progress, stay in addition.
    untagged = [
        own
        for own in chains.values()
        if not any(record.tags or record.label in used for record in own)
    ]
    left = sum(len(own) for own in untagged)
    for own in sorted(untagged, key=lambda chain: chain[0].end_us):
        # A chain that can't go completely stays completely.
        if left - len(own) < keep:
            break
        following = [record for record in records if record not in own and record not in gone]
        if keep_s is not None and not _old_enough(following, now_us - keep_s * 1e6):
            break
        gone += own
        left -= len(own)
    return gone


def _old_enough(following: Sequence[BackupRecord], moment_us: float) -> bool:
    """Whether a backup that stays is old enough to reach the oldest moment that is wanted."""
    return any(record.end_us <= moment_us for record in following)


def _interrupted(unfinished: Sequence[str]) -> list[str]:
    before = datetime.now(UTC) - timedelta(seconds=UNFINISHED_S)
    # A label begins with the time of its backup.
    return [label for label in unfinished if label < f"{before:%Y%m%dT%H%M%SZ}"]


def remove(store: BackupStore, gone: Expired) -> None:
    """Remove backups first: the log must never be missing from one that is listed."""
    backups = Backups(store)
    # Those that follow another one go before it.
    for record in reversed(gone.backups):
        backups.remove(record.label)
        failpoint("backup.expired")
    for label in gone.unfinished:
        backups.remove(label)
    for name in gone.digests:
        store.delete(layout.DIGESTS, name)
    for name in gone.drills:
        store.delete(layout.DRILLS, name)
    # The oldest first: what remains after an interruption is without a hole.
    for piece in sorted(gone.pieces, key=lambda one: (one.timeline, one.start)):
        store.delete(layout.WAL, store.segments.object_name(piece))
