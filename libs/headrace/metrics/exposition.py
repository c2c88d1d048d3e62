"""Metrics in Prometheus's form: named `headrace_*`, with the labels `service` and `source`."""

from __future__ import annotations

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
from headrace.metrics.counters import Stats, Value
from headrace.metrics.figure import Figure

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
            # Without samples only the metric's description would be shown.
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
        # During an upgrade a service of another version may report other buckets.
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
            # The last label takes the rest: its value may contain blanks.
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
    # The library's default registry would add metrics about this Python process.
    registry = CollectorRegistry()
    registry.register(_Bridge(values))
    return generate_latest(registry)


def exposition(stats_by_service: Mapping[str, Stats], source: str) -> bytes:
    """The Prometheus text of these services' metrics."""
    registry = CollectorRegistry()
    registry.register(_Suite(stats_by_service, source))
    return generate_latest(registry)
