"""When an LSN may be confirmed that JetStream has acknowledged: at once, or when its disk has it
too. Pure.

An acknowledgement is not an fsync: nats-server syncs its files every `sync_interval`, and a machine
that crashes in between loses what it acknowledged. Held back by that interval, PostgreSQL's slot
still has all of it (docs/durability.md).
"""

from __future__ import annotations

from collections import deque

# Acknowledgements that close together are held as one: so many steps an interval has.
_STEPS = 64


class Hold:
    """Holds LSNs back for `hold_s` from when they were acknowledged; 0 holds nothing."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        # When each step ends, which is when its LSN is held from; and when it began.
        self._steps: deque[tuple[float, int]] = deque()
        self._began = 0.0
        self._released = 0

    def confirmable(self, lsn: int, now: float) -> int:
        """Everything before `lsn` is acknowledged; what of that may be confirmed."""
        if self._hold_s <= 0:
            return lsn
        self._note(lsn, now)
        while self._steps and self._steps[0][0] + self._hold_s <= now:
            self._released = max(self._released, self._steps.popleft()[1])
        # In a new epoch PostgreSQL begins again: never beyond what has come by since.
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
