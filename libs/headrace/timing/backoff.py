"""The pause between two attempts: it grows while they fail, and varies so that peers spread out."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from `first_s` up to `most_s`, until an attempt succeeds."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def pause_s(self) -> float:
        """The pause before the next attempt; the one after it is longer."""
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self._most_s)
        return jittered(pause_s)

    def reset(self) -> None:
        """An attempt succeeded: the next failure is followed by the shortest pause."""
        self._next_s = self._first_s


def jittered(seconds: float) -> float:
    """Between half and all of it, so that processes which failed together don't retry together."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not a secret
