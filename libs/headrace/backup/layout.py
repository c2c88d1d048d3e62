"""The names of a store's objects, and of PostgreSQL's log segments. Pure.

    backup.json                                    whose store this is; created once
    wal/{segment}.zst                              a whole segment
    wal/{segment}.{start}-{end}.zst                a part of a segment that was not complete
    wal/{timeline}.history                         where a timeline left its parent
    backups/{label}/{archive}.{number}.zst         a part of a backup's tar stream
    backups/{label}/backup.json                    written last: only now the backup counts
    names/{lsn}.zst                                names of relations, for finding dropped ones
    digests/{timeline}{lsn}.zst                    digests of all tables, which drills compare
    drills/{time}-{passed|failed}-{random}.zst     the outcome of a drill
    standbys/{name}.json                           how far a standby's log is
    status.json                                    how far the log is stored, at which time

A name that doesn't match exactly is nobody's: a file that a killed writer left can't be taken for
a part of the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Names in the root of the store.
IDENTITY = "backup.json"
STATUS = "status.json"
RECORD = "backup.json"
# Its folders.
WAL = "wal"
BACKUPS = "backups"
NAMES = "names"
DIGESTS = "digests"
DRILLS = "drills"
STANDBYS = "standbys"
_SEGMENT = re.compile(
    r"([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})(?:\.([0-9a-f]{8})-([0-9a-f]{8}))?\.zst"
)
_HISTORY = re.compile(r"([0-9A-F]{8})\.history")


@dataclass(frozen=True, slots=True, order=True)
class LogPiece:
    """A stored part of the log: a whole segment, or a range of one."""

    # Its name contains all of these.
    timeline: int
    start: int
    end: int
    # A range of an unfinished segment, which may lie within another one.
    partial: bool = False

    def contains(self, part: LogPiece) -> bool:
        """Whether this piece contains a part of a segment, other than itself."""
        return (
            part.partial
            and part != self
            and part.timeline == self.timeline
            and self.start <= part.start
            and part.end <= self.end
        )


@dataclass(frozen=True, slots=True)
class Segments:
    """Names of segments, for clusters with segments of this size."""

    size: int

    def begin(self, lsn: int) -> int:
        """The beginning of the segment that contains the LSN."""
        return lsn - lsn % self.size

    def name(self, timeline: int, lsn: int) -> str:
        """PostgreSQL's name of the segment that contains the LSN."""
        number = lsn // self.size
        # PostgreSQL counts segments within each 4 GiB of the log.
        per_file = 0x100000000 // self.size
        return f"{timeline:08X}{number // per_file:08X}{number % per_file:08X}"

    def object_name(self, piece: LogPiece) -> str:
        """The name of an object in the folder of the log."""
        name = self.name(piece.timeline, piece.start)
        if not piece.partial:
            return f"{name}.zst"
        base = self.begin(piece.start)
        return f"{name}.{piece.start - base:08x}-{piece.end - base:08x}.zst"

    def piece(self, name: str) -> LogPiece | None:
        """The piece of the log with this name; None if it isn't one."""
        found = _SEGMENT.fullmatch(name)
        if found is None:
            return None
        timeline, high, low = (int(found[group], 16) for group in (1, 2, 3))
        per_file = 0x100000000 // self.size
        start = (high * per_file + low) * self.size
        # No segment has such a number: the file is of a cluster with other segments.
        if low >= per_file:
            return None
        if found[4] is None:
            return LogPiece(timeline, start, start + self.size)
        first, last = int(found[4], 16), int(found[5], 16)
        if not first < last <= self.size:
            return None
        return LogPiece(timeline, start + first, start + last, partial=True)


def history_name(timeline: int) -> str:
    """PostgreSQL's name of a timeline's history file."""
    return f"{timeline:08X}.history"


def history_timeline(name: str) -> int | None:
    """The timeline of a history file; None if it isn't one."""
    found = _HISTORY.fullmatch(name)
    if found is None:
        return None
    return int(found[1], 16)
