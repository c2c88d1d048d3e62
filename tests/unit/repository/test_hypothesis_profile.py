"""The rules for generated input: a slow or busy machine fails no test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def test_no_generated_test_is_judged_by_the_machines_speed() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
