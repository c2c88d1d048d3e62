"""Days and microseconds since 1970 of PostgreSQL's texts of dates and timestamps. Pure.

Any year counts, in the proleptic Gregorian calendar; the year before 1 is 1 BC, as in PostgreSQL.
"""

from __future__ import annotations

import re
from typing import Final

DATE_INFINITY: Final = 2**31 - 1
TIMESTAMP_INFINITY: Final = 2**63 - 1
"""DuckDB's `infinity`; `-infinity` is the negative number."""

DAY_US: Final = 86_400_000_000
_DATE = r"(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<part>[0-9]{1,6}))?"
_ERA = r"(?P<era> BC)?"
_DATE_TEXT = re.compile(f"{_DATE}{_ERA}")
_TIMESTAMP_TEXT = re.compile(rf"{_DATE}[ T]{_TIME}(?:\+00|Z)?{_ERA}")
_EPOCH_DAYS = 719_468


def infinity_text(number: int) -> str:
    """PostgreSQL's text of an infinite moment, and DuckDB's."""
    if number > 0:
        return "infinity"
    return "-infinity"


def days(text: str) -> int | None:
    """The date that a text is, as DuckDB and Arrow count; None if it is no date."""
    if text.endswith("infinity"):
        return _signed(text, DATE_INFINITY)
    found = _DATE_TEXT.fullmatch(text)
    if found is None:
        return None
    return _days(found)


def microseconds(text: str) -> int | None:
    """The timestamp that a text is, in UTC; None if it is none, or one that DuckDB doesn't have."""
    if text.endswith("infinity"):
        return _signed(text, TIMESTAMP_INFINITY)
    found = _TIMESTAMP_TEXT.fullmatch(text)
    if found is None:
        return None
    seconds = int(found["hour"]) * 3600 + int(found["minute"]) * 60 + int(found["second"])
    part = int((found["part"] or "").ljust(6, "0"))
    moment = _days(found) * DAY_US + seconds * 1_000_000 + part
    if abs(moment) >= TIMESTAMP_INFINITY:
        return None
    return moment


def _signed(text: str, number: int) -> int:
    if text.startswith("-"):
        return -number
    return number


def _days(found: re.Match[str]) -> int:
    year = int(found["year"])
    if found["era"]:
        year = 1 - year
    return civil_days(year, int(found["month"]), int(found["day"]))


def civil_days(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date; the year 0 is 1 BC."""
    # Years begin with March, so that the day that only some have is their last one.
    year -= month <= 2
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - _EPOCH_DAYS


def civil_date(days: int) -> tuple[int, int, int]:
    """Year, month and day; the year 0 is 1 BC."""
    era, day_of_era = divmod(days + _EPOCH_DAYS, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = (shifted + 2) % 12 + 1
    return year_of_era + era * 400 + (month <= 2), month, day
