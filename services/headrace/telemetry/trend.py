"""How fast a value has changed over the last minutes, and when it reaches an end at that pace.
Pure.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 300.0
# Two a second for the whole window.
SAMPLES_MAX = 600
# Over a shorter time, one burst would look like a pace.
SPAN_S_MIN = 5.0


class Trend:
    """Samples of one value; the oldest are dropped when they are too old or too many."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    def add(self, now: float, value: float) -> None:
        self._samples.append((now, value))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()

    def forget(self) -> None:
        """Forget earlier samples: another server, or another slot."""
        self._samples.clear()

    @property
    def per_second(self) -> float:
        """The change per second, up or down; 0 with too few samples."""
        if not self._samples:
            return 0.0
        (began, first) = self._samples[0]
        (ended, last) = self._samples[-1]
        if ended - began >= SPAN_S_MIN:
            return (last - first) / (ended - began)
        return 0.0


def seconds_left(amount: float, per_second: float) -> float | None:
    """When an amount is used up at this pace; None: never."""
    if per_second > 0:
        return max(0.0, amount) / per_second
    return None
