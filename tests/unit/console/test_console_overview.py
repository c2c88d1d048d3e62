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
