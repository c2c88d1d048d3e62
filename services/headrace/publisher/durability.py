"""When an acknowledged LSN may be confirmed: immediately, or once JetStream's disk has it. Pure.

An acknowledgement is not an fsync: nats-server syncs its files every `sync_interval`, and a machine
that crashes in between loses acknowledged messages. If LSNs are held back by that interval,
PostgreSQL's slot still has all of their changes (docs/durability.md).
"""

from __future__ import annotations

from collections import deque

# Acknowledgements close to each other are held as one: an interval has this many steps.
_STEPS = 64


class Hold:
    """Holds LSNs back for `hold_s` after their acknowledgement; 0 holds nothing."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        # The end of each step, from which its LSN is held; and the start of the current one.
        self._steps: deque[tuple[float, int]] = deque()
        self._began = 0.0
        self._released = 0

    def confirmable(self, lsn: int, now: float) -> int:
        """Everything before `lsn` is acknowledged; returns the LSN that may be confirmed."""
        if self._hold_s <= 0:
            return lsn
        self._note(lsn, now)
        while self._steps and self._steps[0][0] + self._hold_s <= now:
            self._released = max(self._released, self._steps.popleft()[1])
        # In a new epoch PostgreSQL starts again: never go beyond what has come since.
        return min(lsn, self._released)

    def _note(self, lsn: int, now: float) -> None:
        if self._steps and lsn <= self._steps[-1][1]:
            return
        if lsn <= self._released:
            return
        if self._steps and now - self._began < self._hold_s / _STEPS:
            self._steps[-1] = (now, lsn)
            return
        self._steps.append((now, lsn))
        self._began = now
