"""Whether a confirmer other than the publisher keeps the slot from going on: a required archive
may, for ever. Pure.

A confirmer that fails begins again, and with it the epoch, in which nothing is confirmed yet. So
what counts is the slot's own LSN: for how long it has not moved while that confirmer was behind,
and how often the confirmer began again.
"""

from __future__ import annotations

# At one LSN; the first may be a race that was lost.
RESTARTS_MAX = 3
# So many looks in a row without anybody behind: at the begin of an epoch nobody is, for a moment.
CALM_LOOKS = 3


class Holding:
    def __init__(self, publisher: str, required: frozenset[str], patience_s: float) -> None:
        self._publisher = publisher
        self._required = required
        self._patience_s = patience_s
        self._lsn = 0
        self._name: str | None = None
        self._since = 0.0
        self._restarts = 0
        self._reason = ""
        self._calm = 0

    def restarted(self, name: str, reason: str) -> None:
        """A confirmer begins again."""
        if name in self._required and name != self._publisher:
            self._name = name
            self._reason = reason
            self._restarts = self._restarts + 1
            self._calm = 0

    def look(self, now: float, lsn: int, holder: str | None, *, settled: bool) -> str | None:
        """Who holds the slot at this LSN for too long, and why as far as it said so; None for
        nobody.

        `holder` alone is behind the others; `settled`: everybody has confirmed what there is.
        """
        if holder is None and settled:
            self._calm = self._calm + 1
        else:
            self._calm = 0
        if lsn > self._lsn or holder == self._publisher or self._calm >= CALM_LOOKS:
            self._lsn = max(lsn, self._lsn)
            self._since = now
            self._name = None
            self._restarts = 0
            self._reason = ""
        if holder not in {None, self._publisher}:
            self._name = holder
        late = now - self._since > self._patience_s
        if self._name is None or not (late or self._restarts >= RESTARTS_MAX):
            return None
        if self._reason:
            return f"{self._name} ({self._reason})"
        return self._name
