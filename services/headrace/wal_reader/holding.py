"""Detects that a required archive keeps the slot from advancing, possibly forever. Pure.

A confirmer that fails starts again, and with it the epoch, in which nothing is confirmed yet. So
this looks at the slot's own LSN: how long it has not moved while that confirmer was behind, and how
often the confirmer started again.
"""

from __future__ import annotations

from headrace.bus.receiver import START_UNKNOWN

# At one LSN; the first may be a lost race.
RESTARTS_MAX = 3
# This many checks in a row without a confirmer that is behind, or with only the publisher: at the
# start of an epoch, both happen for a moment.
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
        """A confirmer starts again."""
        # It follows again after a failure, whose reason stays.
        if reason == START_UNKNOWN:
            return
        if name in self._required and name != self._publisher:
            self._name = name
            self._reason = reason
            self._restarts = self._restarts + 1
            self._calm = 0

    def look(self, now: float, lsn: int, holder: str | None, *, settled: bool) -> str | None:
        """The confirmer that has held the slot at this LSN for too long, with its reason if known;
        else None.

        `holder` is the only one behind the others; `settled`: all have confirmed everything.
        """
        if holder == self._publisher or (holder is None and settled):
            self._calm = self._calm + 1
        else:
            self._calm = 0
        if lsn > self._lsn or self._calm >= CALM_LOOKS:
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
