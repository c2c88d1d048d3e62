"""Judges a stream whose store was damaged: it is read from its start, and each committed change is
in it, or reported as missing.

A change is reported if a gap event's range contains it, or if the sequence jumps at its position.
The order of the remaining changes, and that each exists once, are judged as without damage.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

from headrace.lsn import parse_lsn
from headrace.testing.oracle import Change
from tests.chaos.checker import Checker
from tests.chaos.source import SOURCE


class Judge(Checker):
    """One reading of the entire stream."""

    def __init__(self, delivery: str, committed: list[Change]) -> None:
        super().__init__(delivery)
        self.gaps: list[tuple[int, int]] = []
        self.jumps = 0
        self.lost = 0
        # Changes that are neither in the stream nor reported.
        self.unexplained: list[Change] = []
        # The number of jumps before each delivered change, and before the last compared one.
        self._jumps_before: defaultdict[str, deque[int]] = defaultdict(deque)
        self._jumps_compared: Counter[str] = Counter()
        self.committed(committed)
        self.counted = Counter((change.table, change.operation) for change in committed)

    async def follow(self, url: str) -> None:
        before = 0
        # A reading ends early where the machine is busy.
        while self._next_seq > before:
            before = self._next_seq
            await super().follow(url)
        self._compare()
        for order, left in self._committed.items():
            self._explain(list(left), jumped=self.jumps > self._jumps_compared[order])

    def _jump(self, seq: int) -> None:  # noqa: ARG002  # a jump is what matters
        self.jumps += 1

    def _gap(self, event: dict[str, Any]) -> None:
        if event["source"] == SOURCE:
            self.gaps.append((parse_lsn(event["after"]), parse_lsn(event["up_to"])))

    def _deliver(self, order: str, change: Change, data: dict[str, Any]) -> None:
        super()._deliver(order, change, data)
        self._jumps_before[order].append(self.jumps)

    def _compare(self) -> None:
        for order, committed in self._committed.items():
            delivered, jumps = self._delivered[order], self._jumps_before[order]
            while delivered and committed:
                have, _ = delivered.popleft()
                jumped = jumps.popleft()
                missing = []
                while committed and committed[0].position < have.position:
                    missing.append(committed.popleft())
                self._explain(missing, jumped=jumped > self._jumps_compared[order])
                self._jumps_compared[order] = jumped
                if not committed or committed.popleft() != have:
                    self.unexplained.append(have)
                self.checked += 1

    def _explain(self, missing: list[Change], *, jumped: bool) -> None:
        self.lost += len(missing)
        if not jumped:
            self.unexplained += [
                change
                for change in missing
                if not any(after <= change.position.lsn < up_to for after, up_to in self.gaps)
            ]
