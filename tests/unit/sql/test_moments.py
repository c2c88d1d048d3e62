"""Dates and timestamps of any year as numbers."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sql import moments


@given(st.dates())
def test_days_are_those_of_the_calendar(day: date) -> None:
    assert moments.days(day.isoformat()) == (day - date(1970, 1, 1)).days


@given(st.datetimes())
def test_microseconds_are_those_of_the_clock(moment: datetime) -> None:
    expected = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001
    assert moments.microseconds(moment.isoformat(sep=" ")) == expected
    assert moments.microseconds(moment.isoformat() + "Z") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("infinity", 2**31 - 1),
        ("-infinity", -(2**31 - 1)),
        # to_char(date, 'J') of PostgreSQL, less 2440588.
        ("0001-12-31 BC", 1721425 - 2440588),
        ("0044-03-15 BC", 1705428 - 2440588),
        ("4714-11-24 BC", -2440588),
        ("5874897-12-31", 2147483493 - 2440588),
        ("no date", None),
    ],
)
def test_dates_of_any_year_have_days(text: str, expected: int | None) -> None:
    assert moments.days(text) == expected


def test_a_timestamp_that_duckdb_lacks_is_none() -> None:
    assert moments.microseconds("294247-01-10 04:00:54.775806") == 2**63 - 2
    assert moments.microseconds("294247-01-10 04:00:54.775807") is None
    assert moments.microseconds("294276-12-31 23:59:59.999999+00") is None
