"""A session's time zone remembers a bounded number of days."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from headrace.sql.moments import DAY_US
from headrace.sql.value_forms import zones

NAME = "Europe/Berlin"
REMEMBERED_DAYS = 1_000
BATCHES = 8
# About what 3,000 days need.
MEMORY_MAX = 600 << 10


def test_a_zone_that_meets_ever_more_days_has_right_offsets_and_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zones, "REMEMBERED_DAYS_MAX", REMEMBERED_DAYS)
    zone = zones.Zone(NAME)
    tracemalloc.start()
    try:
        for batch in range(BATCHES):
            days = np.arange(batch * REMEMBERED_DAYS, (batch + 1) * REMEMBERED_DAYS)
            offsets = zone.offsets(days * DAY_US)
            for place in (0, REMEMBERED_DAYS // 2, REMEMBERED_DAYS - 1):
                moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=int(days[place]))
                wanted = moment.astimezone(ZoneInfo(NAME)).utcoffset()
                assert timedelta(seconds=int(offsets[place])) == wanted
        del days, offsets
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MEMORY_MAX
