"""The LSN that may be confirmed: the last mark before which every message is stored. Pure."""

from __future__ import annotations

from collections import deque


class Ledger:
    """Marks in order, each with the number of messages published before it."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int, bool]] = deque()
        self.lsn = 0
        self.transactions = 0

    def mark(self, lsn: int, published: int, *, whole: bool) -> None:
        """All changes before `lsn` are among the first `published` messages."""
        # Keepalives between two messages share a mark, or the queue would grow for as long as a
        # message waits for its acknowledgement.
        if self._marks and not whole and not self._marks[-1][2] and self._marks[-1][1] == published:
            self._marks[-1] = (max(lsn, self._marks[-1][0]), published, False)
        else:
            self._marks.append((lsn, published, whole))

    def confirmable(self, acked: int) -> int:
        """The first `acked` messages are stored; returns the LSN that may be confirmed."""
        while self._marks and self._marks[0][1] <= acked:
            lsn, _, whole = self._marks.popleft()
            # PostgreSQL's keepalives may state an earlier LSN than a commit before them.
            self.lsn = max(self.lsn, lsn)
            self.transactions += whole
        return self.lsn

    @property
    def waiting(self) -> bool:
        return bool(self._marks)
