"""Plans a restore: which backup, how much of the log, how much room. Reads, never writes.

Promises to refuse a moment that the store can't bring back exactly, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from headrace.backup.backups import Backups
from headrace.backup.commits import CommitScan
from headrace.backup.errors import LogHoleError, NoSuchMomentError, ObjectMissingError
from headrace.backup.layout import LogPiece
from headrace.backup.log_reading import steady_pieces
from headrace.backup.record import BackupRecord, chain
from headrace.backup.segments import needed, reach
from headrace.backup.store import BackupStore
from headrace.backup.timelines import TimelineStretch, parents, way
from headrace.lsn import format_lsn

_T = TypeVar("_T")
# Each further look needs another merge since the one before.
_LOOKS_MAX = 20


class TargetKind(StrEnum):
    """How a moment is named."""

    LATEST = "latest"
    TIME = "time"
    LSN = "lsn"
    XID = "xid"


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """A moment. `value` is a time in microseconds, an LSN or a transaction."""

    kind: TargetKind
    value: int = 0
    # Whether the transaction with this number belongs to the moment.
    inclusive: bool = True

    def __str__(self) -> str:
        match self.kind:
            case TargetKind.TIME:
                return format_time(self.value)
            case TargetKind.LSN:
                return f"LSN {format_lsn(self.value)}"
            case TargetKind.XID:
                return f"{'after' if self.inclusive else 'before'} transaction {self.value}"
        return "the end of the log"

    def settings(self) -> dict[str, str]:
        """PostgreSQL's settings for this target."""
        match self.kind:
            case TargetKind.TIME:
                # Everything that was committed by then.
                found = {"recovery_target_time": format_time(self.value)}
            case TargetKind.LSN:
                # Every record that begins before the LSN.
                found = {
                    "recovery_target_lsn": format_lsn(self.value),
                    "recovery_target_inclusive": "off",
                }
            case TargetKind.XID:
                found = {
                    "recovery_target_xid": str(self.value),
                    "recovery_target_inclusive": "on" if self.inclusive else "off",
                }
            case _:
                return {}
        # `pause` would keep the locks of transactions that were running.
        return {**found, "recovery_target_action": "promote"}


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore that is possible."""

    # The moment itself.
    target: RestoreTarget
    # The full backup first; others follow it.
    backups: Sequence[BackupRecord]
    # The timeline that the recovery follows.
    timeline: int
    # Each segment as one whole piece or as its parts.
    segments: Sequence[Sequence[LogPiece]]
    # All of the store, by timeline.
    histories: dict[int, bytes]
    # Everything before this LSN is in these segments.
    log_end: int

    @property
    def backup(self) -> BackupRecord:
        """The backup that the restore begins with."""
        return self.backups[-1]

    @property
    def log_bytes(self) -> int:
        """The log to read."""
        return sum(piece.end - piece.start for pieces in self.segments for piece in pieces)

    @property
    def room_bytes(self) -> int:
        """The space that the restore takes at first."""
        files = sum(record.bytes for record in self.backups)
        if len(self.backups) > 1:
            # pg_combinebackup writes a whole cluster next to the backups of the chain.
            files += max(record.bytes for record in self.backups)
        return files + self.log_bytes


def format_time(time_us: int) -> str:
    """A time as PostgreSQL reads it, with all of its digits."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(sep=" ", timespec="microseconds")


class Planner:
    """The store as it is now."""

    def __init__(self, store: BackupStore) -> None:
        self._store = store
        # An object of the log never changes, so its facts are read once.
        self._facts: dict[LogPiece, dict[str, Any]] = {}
        self.pieces: list[LogPiece] = []
        self.histories: dict[int, bytes] = {}
        self.records: list[BackupRecord] = []
        self._look()

    def _look(self) -> None:
        self.pieces = steady_pieces(self._store)
        self.histories = self._store.histories()
        self.records = Backups(self._store).all()

    def facts(self, piece: LogPiece) -> dict[str, Any]:
        """The facts about the commits in a part of the log."""
        if piece not in self._facts:
            self._facts[piece] = self._store.facts(piece)
        return self._facts[piece]

    def steadily(self, work: Callable[[], _T]) -> _T:
        """Do it again over a new listing if wal-archiver has merged parts meanwhile.

        A part that is lost isn't in the new listing either: then its log has a hole.
        """
        for _ in range(_LOOKS_MAX):
            try:
                return work()
            except ObjectMissingError:
                self._look()
        return work()

    @property
    def timeline(self) -> int:
        """The newest timeline."""
        return max([1, *self.histories, *(piece.timeline for piece in self.pieces)])

    def newest_backup(self) -> BackupRecord:
        """The newest backup; raises if there is none."""
        if not self.records:
            raise NoSuchMomentError(
                "the store has no backup", remedy="Take one with `headrace backup now`."
            )
        return self.records[-1]

    def way(self, timeline: int) -> list[TimelineStretch]:
        """The stretches of the log that lead to a timeline."""
        return way(timeline, parents(self.histories.get(timeline, b"")))

    def plan(self, target: RestoreTarget, timeline: int | None = None) -> RestorePlan:
        """How to reach a moment; raises if that can't be exact."""
        return self.steadily(lambda: self._plan(target, timeline))

    def _plan(self, target: RestoreTarget, timeline: int | None) -> RestorePlan:
        chosen = timeline if timeline is not None else self.timeline
        stretches = self.way(chosen)
        # Known for every target except a time.
        lsn = self._lsn(target, stretches)
        # The newest one before the moment, for the least log to replay.
        record = self._backup(target, lsn, stretches)
        end = reach(self.pieces, stretches, record.start_lsn)
        # Its files were copied while they changed: without this log they are inconsistent.
        if end < record.end_lsn:
            raise LogHoleError(
                f"the log of backup {record.label} ends at {format_lsn(end)}, before it is "
                f"consistent at {format_lsn(record.end_lsn)}"
            )
        # Last, because how far the log reaches depends on the backup.
        self._check_reach(target, lsn, end, record)
        by_label = {one.label: one for one in self.records}
        return RestorePlan(
            target,
            chain(record, by_label),
            chosen,
            needed(self.pieces, stretches, self._store.segments, record.start_lsn, end),
            self.histories,
            end,
        )

    def _lsn(self, target: RestoreTarget, stretches: Sequence[TimelineStretch]) -> int | None:
        """The LSN by which the target's backup must have ended, if it is known."""
        if target.kind is TargetKind.LSN:
            return target.value
        if target.kind is TargetKind.XID:
            return self.commit_lsn(target.value, stretches)
        return None

    def commit_lsn(self, xid: int, stretches: Sequence[TimelineStretch]) -> int:
        """The LSN of a transaction's commit record, or of the segment that contains it."""
        on_way = {stretch.timeline: stretch for stretch in stretches}
        identity = self._store.identity
        possible = None
        # From the end, because recent transactions are looked for most. Numbers wrap around: the
        # last one of a number counts.
        for piece in sorted(self.pieces, reverse=True):
            stretch = on_way.get(piece.timeline)
            # That part of a timeline was left behind by a promotion.
            if stretch is None or piece.start >= stretch.end:
                continue
            # Without facts no transaction fits: 1 to 0 is empty.
            low, high = self.facts(piece).get("xids", (1, 0))
            if low <= xid <= high:
                scan = CommitScan(identity.segment_size, identity.server_version)
                for commit in scan.read(piece.start, self._store.read_piece(piece)):
                    if commit.xid == xid and commit.lsn < stretch.end:
                        return commit.lsn
                possible = possible or piece.start
        if possible is not None:
            # Its record may begin in one piece and end in the next.
            return possible
        raise NoSuchMomentError(f"no transaction {xid} has committed in the stored log")

    def _backup(
        self, target: RestoreTarget, lsn: int | None, stretches: Sequence[TimelineStretch]
    ) -> BackupRecord:
        on_way = {stretch.timeline: stretch for stretch in stretches}
        found = None
        for record in self.records:
            stretch = on_way.get(record.timeline)
            # It ended after the promotion, on the timeline that was left behind.
            if stretch is None or record.end_lsn > stretch.end:
                continue
            # The backup has to be consistent before the moment: recovery can't go back.
            late_time = target.kind is TargetKind.TIME and record.end_us > target.value
            late_lsn = lsn is not None and record.end_lsn > lsn
            if not late_time and not late_lsn:
                found = record
        if found is None:
            raise NoSuchMomentError(f"no backup is older than {target}")
        return found

    def _check_reach(
        self, target: RestoreTarget, lsn: int | None, end: int, record: BackupRecord
    ) -> None:
        status = self._store.status()
        if target.kind is TargetKind.TIME:
            stored_us = 0
            # A status beyond the contiguous log says nothing about it.
            if status is not None and status.lsn <= end:
                stored_us = status.time_us
            # A quiet time has no commit to prove it, and a restored store may have no status:
            # either one is enough.
            if target.value > stored_us and not self._commit_after(target.value, record, end):
                known = format_time(stored_us) if stored_us else "an unknown time"
                raise NoSuchMomentError(f"the log is stored up to {known}, not up to {target}")
        elif lsn is not None and lsn > end:
            raise NoSuchMomentError(
                f"the log is stored without a hole up to {format_lsn(end)}, not up to {target}"
            )

    def _commit_after(self, time_us: int, record: BackupRecord, end: int) -> bool:
        """Whether a later commit is stored: then so is everything before it."""
        for piece in sorted(self.pieces, reverse=True):
            # Pieces beyond a hole prove nothing about what is before it.
            if record.start_lsn < piece.end <= end:
                last_us = self.facts(piece).get("last_us", 0)
                if last_us:
                    return bool(last_us > time_us)
        return False
