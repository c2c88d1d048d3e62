"""Telemetry finds the service by the subject of its report, and a NATS user can be limited to sinks."""

from __future__ import annotations

import pytest

from headrace.bus import subjects


@pytest.mark.parametrize("service", ["publisher", "wal-reader", "sink-orders", "sink-a-b-1"])
def test_a_report_names_its_service(service: str) -> None:
    assert subjects.reporting_service(subjects.stats("shop_1", service)) == service


def test_only_sinks_report_on_the_subjects_of_sinks() -> None:
    pattern = subjects.stats("shop", "sink-*").rpartition("*")[0]
    assert subjects.stats("shop", "sink-orders").startswith(pattern)
    assert not subjects.stats("shop", "publisher").startswith(pattern)
