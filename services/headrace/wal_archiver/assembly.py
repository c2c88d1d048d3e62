"""The received log as pieces to store: whole segments, and parts of the one that isn't complete.

Promises that pieces are handed out in order and without a hole between them, and that a part that
was stored before a restart is compared with what the server sends now. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace.backup.commits import CommitRecord, CommitScan
from headrace.backup.errors import DivergedError, LogHoleError
from headrace.backup.layout import LogPiece, Segments
from headrace.lsn import format_lsn

# Then one part replaces them: a slow writer's segment would consist of thousands.
PARTS_MAX = 64


@dataclass(frozen=True, slots=True)
class Job:
    """A piece to store, with the commits in it."""

    # The name under which it is stored.
    piece: LogPiece
    content: bytes
    commits: list[CommitRecord]


class LogAssembly:
    """The log of one timeline from the beginning of a segment on."""

    def __init__(
        self, segments: Segments, timeline: int, begin: int, known: bytes, scan: CommitScan
    ) -> None:
        """`known` is what the store has of the segment that begins at `begin`."""
        self._segments = segments
        self._timeline = timeline
        self._begin = begin
        self._known = known
        self._scan = scan
        self._buffer = bytearray()
        # Each byte is read once, though it may be stored twice.
        self._scanned = begin
        self._commits: list[CommitRecord] = []
        self._full: deque[Job] = deque()
        # Handed out so far.
        self._taken = begin + len(known)
        self._parts = 0

    @property
    def received(self) -> int:
        """The end of what was received."""
        return self._begin + len(self._buffer)

    @property
    def waiting_segments(self) -> int:
        """Complete segments that were not handed out yet."""
        return len(self._full)

    @property
    def has_part(self) -> bool:
        """Whether the incomplete segment has log that was not handed out."""
        return self.received > max(self._taken, self._begin)

    def add(self, lsn: int, data: bytes) -> list[CommitRecord]:
        """Take what the server sent; returns the commits in it."""
        # Never stored, so never confirmed: a new connection asks for it again.
        if lsn != self.received:
            raise LogHoleError(
                f"the server sent the log at {format_lsn(lsn)} instead of "
                f"{format_lsn(self.received)}"
            )
        found: list[CommitRecord] = []
        view = memoryview(data)
        while view:
            room = self._segments.size - len(self._buffer)
            self._buffer += view[:room]
            found += self._read(bytes(view[:room]))
            view = view[room:]
            if len(self._buffer) == self._segments.size:
                self._complete()
        return found

    def _read(self, data: bytes) -> list[CommitRecord]:
        found = self._scan.read(self._scanned, data)
        self._scanned += len(data)
        self._commits += found
        # As soon as it is possible, and before anything new is handed out.
        self._compare()
        return found

    def _compare(self) -> None:
        size = len(self._known)
        if not size or len(self._buffer) < size:
            return
        if self._buffer[:size] != self._known:
            raise DivergedError(
                f"the server's log from {format_lsn(self._begin)} on differs from the stored one"
            )
        # From now on parts may be handed out.
        self._known = b""

    def _complete(self) -> None:
        end = self._begin + self._segments.size
        piece = LogPiece(self._timeline, self._begin, end)
        self._full.append(Job(piece, bytes(self._buffer), self._commits))
        self._begin = end
        self._buffer = bytearray()
        self._commits = []
        self._parts = 0

    def take_segment(self) -> Job | None:
        """The next complete segment."""
        if not self._full:
            return None
        job = self._full.popleft()
        self._taken = max(self._taken, job.piece.end)
        return job

    def take_part(self) -> Job | None:
        """The rest of the incomplete segment that was not handed out. Segments come first."""
        start = max(self._taken, self._begin)
        if self._full or self.received <= start or self._known:
            return None
        self._parts += 1
        if self._parts > PARTS_MAX:
            self._parts = 1
            start = self._begin
        content = bytes(self._buffer[start - self._begin :])
        piece = LogPiece(self._timeline, start, self.received, partial=True)
        self._taken = self.received
        return Job(piece, content, [one for one in self._commits if one.lsn >= start])
