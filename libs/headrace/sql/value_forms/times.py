"""Texts of dates, times, timestamps and intervals as PostgreSQL prints them with DateStyle ISO."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.sql.errors import NotProvenEqualError
from headrace.sql.moments import (
    DATE_INFINITY,
    DAY_US,
    TIMESTAMP_INFINITY,
    civil_date,
    civil_days,
    infinity_text,
)
from headrace.sql.value_forms.arrow import (
    Array,
    Numbers,
    integers,
    pc,
    replaced,
    valid,
    with_nulls_of,
)
from headrace.sql.value_forms.zones import Zone

# The years that Arrow prints with four digits and without an era, as PostgreSQL does.
_DAYS = (civil_days(1, 1, 1), civil_days(9999, 12, 31))
_MOMENTS = (_DAYS[0] * DAY_US, (_DAYS[1] + 1) * DAY_US - 1)


def date_texts(column: Array) -> Array:
    """Dates, with infinity and years before Christ."""
    days = integers(column)
    odd = np.flatnonzero((days < _DAYS[0]) | (days > _DAYS[1]))
    if len(odd):
        days = np.where((days < _DAYS[0]) | (days > _DAYS[1]), 0, days)
    texts = pa.array(days.astype(np.int32)).cast(pa.date32()).cast(pa.string())
    others = [date_text(int(number)) for number in integers(column)[odd]]
    return with_nulls_of(replaced(texts, odd.tolist(), others), column)


def date_text(days: int) -> str:
    """A date of any year."""
    if abs(days) >= DATE_INFINITY:
        return infinity_text(days)
    return _day_text(days, "")


def _day_text(days: int, time: str) -> str:
    """A day of any year with a time, before the era."""
    year, month, day = civil_date(days)
    rest = f"-{month:02}-{day:02}{time}"
    if year <= 0:
        return f"{1 - year:04}{rest} BC"
    return f"{year:04}{rest}"


def timestamp_texts(column: Array) -> Array:
    """Timestamps without a zone."""
    moments = integers(column)
    finite = np.abs(moments) < TIMESTAMP_INFINITY
    return with_nulls_of(_local_texts(moments, moments, finite, None), column)


def timestamptz_texts(column: Array, zone: Zone) -> Array:
    """Timestamps in a zone, each with its offset."""
    moments = integers(column)
    finite = np.abs(moments) < TIMESTAMP_INFINITY
    shown = moments if finite.all() else np.where(finite, moments, 0)
    offsets = zone.offsets(shown)
    # Near the end of the range, the local time may be beyond 64 bits: those are no usual years.
    local = shown + np.where(np.abs(shown) < TIMESTAMP_INFINITY - DAY_US, offsets * 1_000_000, 0)
    return with_nulls_of(_local_texts(moments, local, finite, offsets), column)


def _local_texts(
    moments: Numbers, local: Numbers, finite: Numbers, offsets: Numbers | None
) -> Array:
    usual = finite & (local >= _MOMENTS[0]) & (local <= _MOMENTS[1])
    shown = local if usual.all() else np.where(usual, local, 0)
    texts = _without_zeros(shown)
    if offsets is not None:
        texts = _with_offsets(texts, offsets)
    odd = np.flatnonzero(~usual)
    east = np.zeros(len(moments), np.int64) if offsets is None else offsets
    others = [_odd_timestamp(int(moments[row]), int(east[row]), offsets is not None) for row in odd]
    return replaced(texts, odd.tolist(), others)


def _without_zeros(moments: Numbers) -> Array:
    """Texts without the zeros at the end of a fraction."""
    if not (moments % 1_000_000).any():
        return pa.array(moments // 1_000_000).cast(pa.timestamp("s")).cast(pa.string())
    texts = pa.array(moments).cast(pa.timestamp("us")).cast(pa.string())
    # Each has six digits of a fraction, so that the zeros before the point stay.
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")


def _with_offsets(texts: Array, offsets: Numbers) -> Array:
    found, inverse = np.unique(offsets, return_inverse=True)
    places: Any = inverse
    shown = [offset_text(int(offset)) for offset in found]
    if len(shown) == 1:
        return pc.binary_join_element_wise(texts, pa.scalar(shown[0]), "")
    ends = pa.array(shown, pa.string()).take(pa.array(places))
    return pc.binary_join_element_wise(texts, ends, "")


def offset_text(seconds: int) -> str:
    """An offset, without minutes and seconds that are zero."""
    minutes, second = divmod(abs(seconds), 60)
    hour, minute = divmod(minutes, 60)
    text = f"+{hour:02}"
    if seconds < 0:
        text = f"-{hour:02}"
    if minute or second:
        text += f":{minute:02}"
    if second:
        text += f":{second:02}"
    return text


def _odd_timestamp(moment: int, east: int, with_zone: bool) -> str:
    """A timestamp of an unusual year, or infinity."""
    if abs(moment) >= TIMESTAMP_INFINITY:
        return infinity_text(moment)
    days, us = divmod(moment + east * 1_000_000, DAY_US)
    time = f" {time_text(us)}"
    if with_zone:
        time += offset_text(east)
    return _day_text(days, time)


def time_text(us: int) -> str:
    """A time of day."""
    seconds, part = divmod(us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02}:{minute:02}:{second:02}"
    if not part:
        return text
    return f"{text}.{part:06}".rstrip("0")


def time_texts(column: Array) -> Array:
    """Times of day; 24:00:00 is one."""
    us = integers(column)
    # PostgreSQL's day has a last moment, 24:00:00, that Arrow's clock lacks.
    late = np.flatnonzero(us >= DAY_US)
    shown = np.where(us >= DAY_US, 0, us)
    texts = pc.utf8_slice_codeunits(_without_zeros(shown), len("1970-01-01 "))
    return with_nulls_of(replaced(texts, late.tolist(), ["24:00:00"] * len(late)), column)


def timetz_texts(column: Array) -> Array:
    """From the contract's form, which always has minutes of the offset."""
    return pc.replace_substring_regex(column, r"^(.*[+-][0-9]{2}):00$", r"\1")


def interval_fields(column: Array) -> tuple[Numbers, Numbers, Numbers]:
    """Months, days and microseconds."""
    if not pa.types.is_struct(column.type):
        # Arrow's own interval counts nanoseconds in 64 bits, which end after 292 years.
        raise NotProvenEqualError("an interval that Arrow may have cut off")
    months, days, us = (integers(part) for part in column.flatten())
    return months, days, us


def interval_texts(column: Array, style: str) -> Array:
    """Intervals in a style of `IntervalStyle`."""
    text = _STYLES.get(style)
    if text is None:
        raise NotProvenEqualError(f"IntervalStyle {style}", "Use postgres or iso_8601.")
    months, days, us = interval_fields(column)
    lives = valid(column)
    texts = [
        text(*fields) if live else None
        for live, *fields in zip(
            lives.tolist(), months.tolist(), days.tolist(), us.tolist(), strict=True
        )
    ]
    return pa.array(texts, pa.string())


def _postgres_interval(months: int, days: int, us: int) -> str:
    year, month = _divided(months, 12)
    text = ""
    # A positive field after a negative one has its sign.
    negative = False
    for number, unit in ((year, "year"), (month, "mon"), (days, "day")):
        if number:
            text += f" {_signs(number, negative)}{abs(number)} {unit}"
            if number != 1:
                text += "s"
            negative = number < 0
    if us or not text:
        text += f" {_signs(us, negative)}{_long_time(abs(us))}"
    return text[1:]


def _signs(number: int, negative: bool) -> str:
    """The sign of a field after another one, which may be negative."""
    if number < 0:
        return "-"
    return "+" * negative


def _long_time(us: int) -> str:
    """Hours without a limit."""
    # An interval's hours are not carried into days, so there may be more than 23.
    hours, left = divmod(us, 3_600_000_000)
    return f"{hours:02}{time_text(left)[2:]}"


def _iso_interval(months: int, days: int, us: int) -> str:
    year, month = _divided(months, 12)
    hour, left = _divided(us, 3_600_000_000)
    minute, left = _divided(left, 60_000_000)
    date = "".join(
        f"{number}{unit}" for number, unit in ((year, "Y"), (month, "M"), (days, "D")) if number
    )
    time = "".join(f"{number}{unit}" for number, unit in ((hour, "H"), (minute, "M")) if number)
    if left:
        # Seconds and their fraction share one sign, which would be lost below a second.
        second, part = divmod(abs(left), 1_000_000)
        seconds = f"{second}.{part:06}".rstrip("0").rstrip(".")
        time += f"{_signs(left, False)}{seconds}S"
    if not date and not time:
        return "PT0S"
    if time:
        return f"P{date}T{time}"
    return f"P{date}"


def _divided(number: int, by: int) -> tuple[int, int]:
    """Quotient and remainder as in C, where both have the number's sign."""
    quotient, rest = divmod(abs(number), by)
    if number < 0:
        return -quotient, -rest
    return quotient, rest


_STYLES: Any = {"postgres": _postgres_interval, "iso_8601": _iso_interval}
