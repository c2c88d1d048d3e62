"""The console's account of a suite's parts follows from what is known of them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.console.overview import consumers
from headrace.console.waterline import LogEnds, waterline


def view(**more: Any) -> dict[str, Any]:
    found = {"stream": "CDC", "name": "app", "pending": 0, "unacknowledged": 0, "lag_s": 0.0}
    found |= {"left_s": None, "left_bytes": None, "left_ratio": 1.0, "lost": 0}
    return found | more


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "running"),
        ({"pending": 900, "lag_s": 5.0}, "running"),
        ({"pending": 1, "lag_s": 3600.0}, "waiting"),
        ({"pending": 1, "lag_s": 3600.0, "lost": 1}, "attention"),
        ({"lost": 1}, "attention"),
    ],
)
def test_only_a_consumer_that_keeps_up_and_lost_nothing_is_running(
    more: dict[str, Any], state: str
) -> None:
    status = {"consumers": [view(**more)], "services": {}}
    (listed,) = consumers(status)
    assert listed["state"] == state
    (point,) = [
        one
        for one in waterline(status, LogEnds(), 0.0, "now")["points"]
        if one["kind"] == "consumer"
    ]
    assert point["state"] == state


def test_a_sink_is_one_reader_and_a_consumer_of_another_program_too() -> None:
    sink = {"state": "ready", "figures": {}}
    names = ("sink-shop-files", "sink-shop-gone", "app")
    status = {
        "source": "shop",
        "consumers": [view(name=name) for name in names],
        "services": {"sink-files": sink},
    }
    points = waterline(status, LogEnds(), 0.0, "now")["points"]
    found = [(one["kind"], one["name"]) for one in points]
    # A sink that doesn't report is still seen by its consumer.
    assert found == [("sink", "files"), ("consumer", "sink-shop-gone"), ("consumer", "app")]


def test_a_reader_that_is_always_as_far_behind_has_a_steady_lag() -> None:
    ends = LogEnds()
    lags = []
    for second in range(1, 20):
        # 1,000 bytes in a second, of which the reader lacks 600.
        ends.add(float(second), 1000 * second)
        lags.append(ends.behind_s(float(second), 1000 * second - 600))
    assert lags[1:] == [0.6] * 18
    assert ends.behind_s(19.0, 19_000) == 0.0
    assert ends.behind_s(21.5, 18_500) == 3.0


def test_samples_that_are_missing_make_nobody_look_far_behind() -> None:
    ends = LogEnds()
    ends.add(0.0, 1000)
    ends.add(600.0, 2000)
    assert ends.behind_s(600.0, 1000) == 1.0
