"""Durations and times that users type."""

from __future__ import annotations

import pytest

from headrace.cli.archive.read import duration_s
from headrace.cli.audit.read import moment
from headrace.errors import SettingError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0", 0), ("30m", 1800), ("12h", 43_200), ("1.5d", 129_600)]
)
def test_a_duration_is_in_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["-1d", "-0", "nan", "infd", "1e3", "", "d", "3x", "9" * 20])
def test_what_is_no_age_is_refused_and_collects_nothing(text: str) -> None:
    """A negative age would be that of every file."""
    with pytest.raises(SettingError, match="not a valid duration"):
        duration_s(text)


@pytest.mark.parametrize("text", ["yesterday", "-2h", "99999999d", "9" * 30 + "d"])
def test_a_time_that_no_calendar_has_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="is not a time"):
        moment(text)
