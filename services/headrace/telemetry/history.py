"""The last quarter of an hour of a suite's key metrics: the initial data of the status page's
charts.

Holds a bounded number of samples; a value that is unknown at some moment is None in it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from headrace.metrics.counters import Value, quantile
from headrace.metrics.figure import PUBLISHER
from headrace.telemetry.suite import SuiteStatus

INTERVAL_S = 2.0
# A quarter of an hour.
SAMPLES_MAX = 450
# Quantiles cover frames acknowledged within this many samples.
RECENT = 10


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    events: int
    lag_bytes: int | None
    retained_bytes: int | None
    ack_p50_s: float | None
    ack_p99_s: float | None


class History:
    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._buckets: deque[list[float]] = deque(maxlen=RECENT)

    def take(self, suite: SuiteStatus, now: float) -> None:
        """Keep how the suite is now."""
        totals = suite.totals(now)
        publisher = suite.member(PUBLISHER, now)
        lags = None
        if publisher:
            lags = publisher.stats.get("ack_lag_seconds")
        recent = self._recent(lags)
        lag_bytes = None
        retained_bytes = None
        if suite.watch.reachable and suite.watch.slot:
            lag_bytes = suite.watch.slot.lag_bytes
            retained_bytes = suite.watch.slot.retained_bytes
        self._samples.append(
            Sample(
                # The wall clock: the page asks for samples after a time that it received here.
                round(time.time(), 1),
                totals.cdc_events,
                lag_bytes,
                retained_bytes,
                quantile("ack_lag_seconds", recent, 0.5),
                quantile("ack_lag_seconds", recent, 0.99),
            )
        )

    def _recent(self, held: Value | None) -> list[float] | None:
        """The recent part of the histogram; all of it if its process restarted."""
        if not isinstance(held, list):
            return None
        # A histogram's first number is the sum of its values; the others are counts.
        before = self._buckets[0] if self._buckets else [0.0] * len(held)
        self._buckets.append(list(held))
        # A restarted publisher counts from zero, and another version may have other buckets: a
        # difference across the restart means nothing.
        if len(held) != len(before) or sum(held[1:]) < sum(before[1:]):
            self._buckets.clear()
            return list(held)
        return [now - then for now, then in zip(held, before, strict=True)]

    @property
    def latest(self) -> Sample | None:
        if self._samples:
            return self._samples[-1]
        return None

    def columns(self, after: float) -> dict[str, list[Any]]:
        """Samples after that time, metric by metric, oldest first."""
        samples = [sample for sample in self._samples if sample.at > after]
        return {name: [getattr(sample, name) for sample in samples] for name in Sample.__slots__}
