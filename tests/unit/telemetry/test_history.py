"""The status page's history of a publisher that restarts, perhaps as another version."""

from __future__ import annotations

from headrace.bus.participation import Report
from headrace.metrics.counters import Counters
from headrace.metrics.figure import PUBLISHER
from headrace.telemetry.history import History
from headrace.telemetry.suite import SuiteStatus

LAGS = "ack_lag_seconds"


def lags(number: int, lag_s: float) -> list[float]:
    """The histogram of a publisher that has seen a lag some times."""
    counters = Counters()
    for _ in range(number):
        counters.observe(LAGS, lag_s)
    found = counters.values()[LAGS]
    assert isinstance(found, list)
    return found


def taken(history: History, held: list[float], now: float) -> float | None:
    """The median lag of a sample, of which this is the publisher's last report."""
    suite = SuiteStatus(started_at=0.0, stats_interval_s=1.0)
    suite.hear(PUBLISHER, Report({LAGS: held}, {}, "a"), now)
    history.take(suite, now)
    assert history.latest is not None
    return history.latest.ack_p50_s


def test_a_publisher_with_other_buckets_has_no_quantiles_and_its_successor_has_its_own() -> None:
    history = History()
    before = taken(history, lags(10, 0.001), 2)
    assert before is not None
    for number in (1, 2):
        # A bucket more, and a larger sum: no restart shows by its counts.
        assert taken(history, [*lags(100, 0.001), 7.0], 2 + 2 * number) is None
    after = taken(history, lags(1000, 0.5), 8)
    assert after is not None
    assert 0.1 < after < 2.5
    assert before < 0.1


def test_a_restarted_publishers_lags_are_its_own() -> None:
    history = History()
    assert (taken(history, lags(10, 0.5), 2) or 0) > 0.1
    assert (taken(history, lags(5, 0.001), 4) or 1) < 0.1
