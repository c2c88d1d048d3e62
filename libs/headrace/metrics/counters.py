"""The metrics that a service counts. A count in the hot path is one addition.

`headrace.metrics.catalogue` declares what may be counted. Label values must not grow without bound:
series beyond `SERIES_MAX` are added up in one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from headrace.metrics.catalogue import FIGURES

# A number; the series of a metric with labels, keyed by the label values joined with blanks; a
# histogram: the sum, then the count of each bucket, the last of which has no upper bound.
Value = float | dict[str, float] | list[float]
# The metrics of a service at one moment, as it reports them.
Stats = dict[str, Value]

SERIES_MAX = 500
OTHER = "(other)"
_BY_KEY = {figure.key: figure for figure in FIGURES}


class Counters:
    """The metrics of one service, each under its key in the catalogue."""

    __slots__ = ("_histograms", "_numbers", "_series")

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        self._series: dict[str, dict[str, float]] = {}
        self._histograms: dict[str, list[float]] = {}

    def count(self, key: str, by: float = 1) -> None:
        """Add to a number."""
        assert key in _BY_KEY, key
        self._numbers[key] = self._numbers.get(key, 0) + by

    def count_in(self, key: str, labels: str, by: float = 1) -> None:
        """Add to one series; `labels` are its label values joined with blanks."""
        assert key in _BY_KEY, key
        held = self._series.setdefault(key, {})
        # Each series costs memory here and in Prometheus, and a label may be a table's name.
        if labels not in held and len(held) >= SERIES_MAX:
            labels = " ".join([OTHER, *labels.split(" ")[1:]])
        held[labels] = held.get(labels, 0) + by

    def observe(self, key: str, value: float) -> None:
        """Add a value to a histogram."""
        bounds = _BY_KEY[key].bounds
        held = self._histograms.get(key)
        if held is None:
            held = [0.0] * (len(bounds) + 2)
            self._histograms[key] = held
        held[0] += value
        # A value equal to a bound belongs to its bucket, as Prometheus's `le` requires.
        held[1 + bisect_left(bounds, value)] += 1

    def set(self, key: str, value: float) -> None:
        """Replace a number."""
        assert key in _BY_KEY, key
        self._numbers[key] = value

    def set_series(self, key: str, series: Mapping[str, float]) -> None:
        """Replace all series of a metric."""
        assert key in _BY_KEY, key
        self._series[key] = dict(series)

    def unset(self, key: str) -> None:
        """Report a number no longer: it is unknown."""
        self._numbers.pop(key, None)

    def number(self, key: str) -> float:
        """A number; 0 before it was counted."""
        assert key in _BY_KEY, key
        return self._numbers.get(key, 0)

    def values(self) -> Stats:
        """All metrics as they are now."""
        return {**self._numbers, **self._series, **self._histograms}


def one_of(choices: Iterable[str], chosen: str) -> dict[str, float]:
    """A state as the series of a metric: 1 for the current state, 0 for the others."""
    return {choice: float(choice == chosen) for choice in choices}


def quantile(figure: str, held: Value | None, share: float) -> float | None:
    """The value below which about this share of a histogram's observations was; None if it is
    empty, or has the buckets of another version.
    """
    bounds = _BY_KEY[figure].bounds
    if not isinstance(held, list) or len(held) != len(bounds) + 2:
        return None
    if not (total := sum(held[1:])):
        return None
    seen = 0.0
    floor = 0.0
    for bound, number in zip(bounds, held[1:-1], strict=True):
        if number and seen + number >= share * total:
            return floor + (bound - floor) * (share * total - seen) / number
        seen = seen + number
        floor = bound
    # Of values above the last bound only that bound is known.
    return floor
