"""The session's time zone: the offsets of moments, for whole columns. Pure, but for the zone files.

A moment beyond the years of Python's calendar has the offset of the same moment in another cycle of
400 years, in which the calendar repeats; one before the year 1 has the first offset of its zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from headrace.sql.errors import NotProvenEqualError
from headrace.sql.moments import DAY_US
from headrace.sql.value_forms.arrow import Numbers

_UTC_NAMES = frozenset({"UTC", "ETC/UTC", "GMT", "ETC/GMT", "UCT", "ETC/UCT", "ZULU", "ETC/ZULU"})
# As PostgreSQL shows SET TIME ZONE 2: the number after > counts westwards.
_FIXED = re.compile(r"<[^<>]+>([+-]?)([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2}))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_S = 146_097 * 86_400
# The years 2 and 9990, so that no offset leads out of the calendar.
_FIRST_S = -62_104_060_800
_LAST_S = 253_086_336_000
# More than all days of the years 1 to 9999, in 32 MB; days that are further apart are sorted.
_DAYS_TABLE_MAX = 4_000_000
# A zone remembers about as many days as a century has, in about 10 MB.
REMEMBERED_DAYS_MAX = 40_000


class Zone:
    """A time zone by PostgreSQL's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fixed: int | None = _fixed(name)
        self._info: ZoneInfo | None = None
        if self._fixed is None:
            self._info = _zone_info(name)
        self._by_day: dict[int, tuple[int, int]] = {}

    @property
    def is_utc(self) -> bool:
        """Whether it is UTC at every moment."""
        return self._fixed == 0

    def offsets(self, moments: Numbers) -> Numbers:
        """Seconds east of UTC at moments in microseconds since 1970."""
        if self._fixed is not None:
            return np.full(len(moments), self._fixed, np.int64)
        if not len(moments):
            return np.zeros(0, np.int64)
        days = moments // DAY_US
        found, places = _distinct(days)
        bounds = np.array([self._of_day(day) for day in found.tolist()], np.int64)
        offsets: Numbers = bounds[:, 0][places]
        changing = np.flatnonzero(bounds[:, 0][places] != bounds[:, 1][places])
        if len(changing):
            seconds, at = np.unique(moments[changing] // 1_000_000, return_inverse=True)
            exact = np.array([self._at(second) for second in seconds.tolist()], np.int64)
            offsets[changing] = exact[at]
        return offsets

    def _of_day(self, day: int) -> tuple[int, int]:
        """The offsets at the first and the last second of a day of UTC."""
        known = self._by_day.get(day)
        if known is None:
            known = (self._at(day * 86_400), self._at(day * 86_400 + 86_399))
            # Which of them later statements need is unknown, so that all go.
            if len(self._by_day) >= REMEMBERED_DAYS_MAX:
                self._by_day.clear()
            self._by_day[day] = known
        return known

    def _at(self, second: int) -> int:
        if second > _LAST_S:
            second = _LAST_S - _CYCLE_S + (second - _LAST_S) % _CYCLE_S
        moment = _EPOCH + timedelta(seconds=max(second, _FIRST_S))
        offset = moment.astimezone(self._info).utcoffset()
        assert offset is not None, "a zone has an offset at every moment"
        return int(offset.total_seconds())


# Each zone remembers days that it has met, also for later statements.
@lru_cache(maxsize=64)
def zone(name: str) -> Zone:
    """The zone with a name."""
    return Zone(name)


def _distinct(days: Numbers) -> tuple[Numbers, Numbers]:
    """The days that occur, and the place of each among them."""
    first = int(days.min())
    span = int(days.max()) - first + 1
    if span > _DAYS_TABLE_MAX:
        found, places = np.unique(days, return_inverse=True)
        return found, places
    occurs = np.zeros(span, np.bool_)
    occurs[days - first] = True
    found = np.flatnonzero(occurs)
    table = np.zeros(span, np.int64)
    table[found] = np.arange(len(found))
    return found + first, table[days - first]


def _fixed(name: str) -> int | None:
    if name.upper() in _UTC_NAMES:
        return 0
    found = _FIXED.fullmatch(name)
    if found is None:
        return None
    sign, hours, minutes, seconds = found.groups()
    offset = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return offset if sign == "-" else -offset


def _zone_info(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # A ValueError is a name with a path out of the folder of zones.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise NotProvenEqualError(f"the time zone {name}", "Use a name such as UTC.") from None
