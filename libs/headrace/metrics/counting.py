"""How services count metrics, and how Prometheus sees them.

Services count in plain dictionaries (`Stats`): a counter in the hot path is one addition.
`headrace.metrics.catalogue` declares what they may contain. `exposition` renders them for
Prometheus, named `headrace_*` with the labels `service` and `source`. Label values must not grow
without bound: series beyond `SERIES_MAX` are added up in one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace.metrics.catalogue import BRIDGE_FIGURES, FIGURES
from headrace.metrics.figure import Figure

# A number; a text that isn't a metric itself; the series of a metric with labels, keyed by the
# label values joined with blanks; a histogram: the sum, then the count of each bucket, the last of
# which has no upper bound.
Value = int | float | str | dict[str, float] | list[float]
Stats = dict[str, Value]

SERIES_MAX = 500
OTHER = "(other)"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BY_KEY = {figure.key: figure for figure in FIGURES}


class _Suite(Collector):
    def __init__(self, stats_by_service: Mapping[str, Stats], source: str) -> None:
        self._stats_by_service = stats_by_service
        self._source = source

    def collect(self) -> Iterable[Metric]:
        for figure in FIGURES:
            family = _family(figure)
            for service, stats in sorted(self._stats_by_service.items()):
                value = stats.get(figure.key)
                if value is not None:
                    _add(family, figure, [service, self._source], value)
            if family.samples:
                yield family


def _family(figure: Figure) -> Metric:
    make: type[Metric] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }[figure.kind]
    labels = ["service", "source", *figure.labels]
    # All three have `labels`, but not their common base.
    return make(f"headrace_{figure.key}", figure.explain, labels=labels)  # type: ignore[call-arg]


def _add(family: Metric, figure: Figure, own: list[str], value: Value) -> None:
    """The samples of one service; skips values of the wrong type."""
    if isinstance(family, HistogramMetricFamily):
        if isinstance(value, list) and len(value) == len(figure.bounds) + 2:
            bounds = [*(f"{bound:g}" for bound in figure.bounds), "+Inf"]
            family.add_metric(
                own, list(zip(bounds, accumulate(value[1:]), strict=True)), sum_value=value[0]
            )
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        for labels, number in series(figure, value):
            family.add_metric([*own, *labels], number)


def series(figure: Figure, value: Value) -> Iterator[tuple[list[str], float]]:
    """The values of a metric that isn't a histogram, each with its label values."""
    if not figure.labels:
        if isinstance(value, int | float):
            yield [], value
    elif isinstance(value, dict):
        for joined, number in value.items():
            labels = joined.split(" ", len(figure.labels) - 1)
            yield labels + [""] * (len(figure.labels) - len(labels)), number


class _Bridge(Collector):
    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        for figure in BRIDGE_FIGURES:
            make = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            yield make(f"bridge_{figure.key}", figure.explain, value=self._values[figure.key])


def bridge_exposition(values: Mapping[str, float]) -> bytes:
    """The Prometheus text of the bridge's metrics: a value for each of `BRIDGE_FIGURES`."""
    registry = CollectorRegistry()
    registry.register(_Bridge(values))
    return generate_latest(registry)


def exposition(stats_by_service: Mapping[str, Stats], source: str) -> bytes:
    """The Prometheus text of these services' metrics."""
    registry = CollectorRegistry()
    registry.register(_Suite(stats_by_service, source))
    return generate_latest(registry)


def count(stats: Stats, key: str, by: float = 1) -> None:
    """Add to a declared metric."""
    assert key in _BY_KEY, key
    # A figure without labels is a number.
    stats[key] = stats.get(key, 0) + by  # type: ignore[operator]


def count_in(stats: Stats, key: str, labels: str, by: float = 1) -> None:
    """Add to one series of a declared metric; `labels` are its label values joined with blanks."""
    held = stats.setdefault(key, {})
    assert key in _BY_KEY, key
    assert isinstance(held, dict), key
    if labels not in held and len(held) >= SERIES_MAX:
        labels = " ".join([OTHER, *labels.split(" ")[1:]])
    held[labels] = held.get(labels, 0) + by


def observe(stats: Stats, key: str, value: float) -> None:
    """Add a value to a declared histogram."""
    bounds = _BY_KEY[key].bounds
    held = stats.get(key)
    if not isinstance(held, list):
        held = [0.0] * (len(bounds) + 2)
        stats[key] = held
    held[0] += value
    held[1 + bisect_left(bounds, value)] += 1


def one_of(choices: Iterable[str], chosen: str) -> dict[str, float]:
    """A state as the series of a metric: 1 for the current state, 0 for the others."""
    return {choice: float(choice == chosen) for choice in choices}


def quantile(figure: str, held: Value | None, share: float) -> float | None:
    """The value below which about this share of a histogram's observations was; None if it is
    empty.
    """
    if not isinstance(held, list) or not (total := sum(held[1:])):
        return None
    bounds = _BY_KEY[figure].bounds
    seen = 0.0
    floor = 0.0
    for bound, number in zip(bounds, held[1:], strict=False):
        if number and seen + number >= share * total:
            return floor + (bound - floor) * (share * total - seen) / number
        seen = seen + number
        floor = bound
    return floor
