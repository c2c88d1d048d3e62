"""When the next cut is due."""

from __future__ import annotations

# While the lake is behind, cuts take a fifth of its time; there is one at least this often.
BACKLOG_CUTS = 4
BACKLOG_S_MAX = 30.0


class CutTimes:
    """The times of cuts and of what they have yet to contain, by a monotonic clock."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._cut_at = 0.0
        # The duration of the last cut.
        self._cut_s = 0.0
        self._advanced_at = 0.0
        # When the first file was applied that no cut contains yet.
        self._applied_at: float | None = None

    def applied(self, now: float) -> None:
        """A file was applied."""
        if self._applied_at is None:
            self._applied_at = now

    def cut(self, started: float, now: float) -> float:
        """A cut has been committed; returns its duration."""
        self._cut_at = now
        self._cut_s = now - started
        self._applied_at = None
        return self._cut_s

    def advanced(self, now: float) -> None:
        """The last cut got a later LSN. The next change doesn't wait for that."""
        self._advanced_at = now
        self._applied_at = None

    def due(self, now: float, *, changed: bool, behind: bool) -> bool:
        """Whether a cut is due, if tables have changed, or another LSN for the last one; `behind`
        if the archive may have more files.
        """
        if behind:
            # A cut of the first part of a burst would make the rest wait for the interval.
            since = now - (self._applied_at or now)
            # A backlog is applied faster by fewer and larger cuts.
            longer = min(BACKLOG_CUTS * self._cut_s, BACKLOG_S_MAX)
            return since >= max(self._interval_s, longer)
        last = self._cut_at if changed else max(self._cut_at, self._advanced_at)
        return now - last >= self._interval_s
