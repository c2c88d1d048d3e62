"""The doubt that a failure leaves behind, from one run of the publisher to the next. Pure."""

from __future__ import annotations

from collections.abc import Callable


class Doubt:
    """After a failure, the publisher has recovered once everything that it had read is stored:
    until then it is unknown whether the cause is gone.
    """

    def __init__(self, healed: Callable[[], None]) -> None:
        self._healed = healed
        # How far the log was read, by this run or by one before it.
        self.read_lsn = 0
        self._doubtful_lsn = 0
        # Whether this run stored anything.
        self.progressed = False

    def begin(self) -> None:
        """A new run begins, after the one before it ended."""
        self._doubtful_lsn = self.read_lsn
        self.progressed = False

    def read(self, lsn: int) -> None:
        self.read_lsn = max(self.read_lsn, lsn)

    def stored(self, lsn: int) -> None:
        """Everything before `lsn` is stored."""
        if lsn >= self._doubtful_lsn:
            self._healed()
