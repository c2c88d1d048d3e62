"""Measures how long traced frames were on the bus: from sending until a confirmer has consumed
them.
"""

from __future__ import annotations

import time

from headrace.bus.frame import frame_name
from headrace.process.tracing import Span, Traces

# More are never in flight; only a lost confirmer leaves them behind.
FRAMES_MAX = 10_000


class Transfers:
    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        # By epoch and number: when it was sent, and its size.
        self._sent: dict[tuple[int, int], tuple[float, int]] = {}

    def sent(self, epoch: int, seq: int, size: int) -> None:
        if seq and self._traces.follow(seq):
            if len(self._sent) >= FRAMES_MAX:
                self._sent.clear()
            self._sent[epoch, seq] = (time.time(), size)

    def consumed(self, epoch: int, up_to: int, by: str) -> None:
        """A confirmer has consumed everything up to this frame of the epoch."""
        if not self._sent:
            return
        # Frames of an earlier epoch will never be consumed.
        for key in [key for key in self._sent if key[0] < epoch or key[1] <= up_to]:
            began_s, size = self._sent.pop(key)
            if key[0] == epoch:
                told: dict[str, int | float | str] = {"bytes": size, "confirmer": by}
                self._traces.add(Span("transfer", frame_name(*key), began_s, time.time(), told))
