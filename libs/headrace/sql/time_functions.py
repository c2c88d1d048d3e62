"""Functions and operators on dates, timestamps and intervals. Pure.

DuckDB's calendar reaches further than PostgreSQL's on both sides, so results are checked for
PostgreSQL's bounds. Parts of infinite moments are errors here where PostgreSQL gives infinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from headrace.contract import type_oids
from headrace.sql.calls import (
    Call,
    Functions,
    Handler,
    error_sql,
    guarded,
    refuse_texts,
    template,
)
from headrace.sql.constants import Numeric
from headrace.sql.forms import Expression, Form, decimal_form, form_of, value
from headrace.sql.patterns import formatted_moment, within_four_digits

_DATE_RANGE = error_sql("22008", "date out of range")
_TIMESTAMP_RANGE = error_sql("22008", "timestamp out of range")
_INFINITE_DATES = error_sql("22008", "cannot subtract infinite dates")
_INFINITE_PART = error_sql("0A000", "a part of an infinite date is not supported over the lake")
# The bounds that PostgreSQL documents: Julian day 0 for dates and timestamps, and the last date.
_FIRST_DAY = "CAST('4714-11-24 (BC)' AS DATE)"
_LAST_DAY = "CAST('5874897-12-31' AS DATE)"
_FIRST_MOMENT = "CAST('4714-11-24 (BC) 00:00:00' AS TIMESTAMP)"

# Fields of date_trunc. Decades and longer differ before Christ.
_UNITS: Final = {
    "microsecond": "microsecond", "microseconds": "microsecond",
    "millisecond": "millisecond", "milliseconds": "millisecond",
    "second": "second", "seconds": "second", "minute": "minute", "minutes": "minute",
    "hour": "hour", "hours": "hour", "day": "day", "days": "day", "week": "week",
    "weeks": "week", "month": "month", "months": "month", "quarter": "quarter",
    "year": "year", "years": "year",
}  # fmt: skip
# There is no year 0: 1 BC is -1.
_YEAR = "(CASE WHEN {function} > 0 THEN {function} ELSE {function} - 1 END)"
_PARTS: Final = {
    "month": "month({0})", "months": "month({0})",
    "day": "day({0})", "days": "day({0})",
    "dow": "dayofweek({0})", "isodow": "isodow({0})", "doy": "dayofyear({0})",
    "week": "week({0})", "weeks": "week({0})", "quarter": "quarter({0})",
}  # fmt: skip
_CLOCK_PARTS: Final = {
    "hour": "hour({0})", "hours": "hour({0})",
    "minute": "minute({0})", "minutes": "minute({0})",
}  # fmt: skip
# Parts with digits after the point, in units of the last one.
_EXACT_PARTS: Final = {
    "second": ("microsecond({0})", 6), "seconds": ("microsecond({0})", 6),
    "milliseconds": ("microsecond({0})", 3), "millisecond": ("microsecond({0})", 3),
    "microseconds": ("microsecond({0})", 0), "microsecond": ("microsecond({0})", 0),
}  # fmt: skip
_YEARS: Final = {"year": "year({0})", "years": "year({0})", "isoyear": "isoyear({0})"}


def _date(sql: str) -> str:
    """A date within PostgreSQL's bounds."""
    outside = f"isfinite({sql}) AND ({sql} < {_FIRST_DAY} OR {sql} > {_LAST_DAY})"
    return guarded(outside, _DATE_RANGE, sql)


def _moment(sql: str) -> str:
    """A timestamp within PostgreSQL's bounds; DuckDB's upper bound is lower."""
    return guarded(f"isfinite({sql}) AND {sql} < {_FIRST_MOMENT}", _TIMESTAMP_RANGE, sql)


def _moved_date(operator: str) -> Handler:
    def handle(call: Call) -> Expression:
        first, second = call.args
        if second.form.type_oid == type_oids.DATE:
            first, second = second, first
        return value(_date(f"({first.sql} {operator} {second.sql})"), call.result_oid)

    return handle


def _days_between(call: Call) -> Expression:
    left, right = call.sql(0), call.sql(1)
    # With NULL on one side, PostgreSQL answers NULL also when the other one is infinite.
    known = f"{left} IS NOT NULL AND {right} IS NOT NULL"
    infinite = f"NOT (isfinite({left}) AND isfinite({right})) AND {known}"
    days = f"CAST({left} - {right} AS INTEGER)"
    return value(guarded(infinite, _INFINITE_DATES, days), call.result_oid)


def _moved(operator: str, *, reverse: bool = False) -> Handler:
    """A date or timestamp plus or minus an interval."""

    def handle(call: Call) -> Expression:
        moment, interval = reversed(call.args) if reverse else call.args
        # A date and an interval give a timestamp in PostgreSQL, even without a time of day.
        sql = f"(CAST({moment.sql} AS TIMESTAMP) {operator} {interval.sql})"
        return value(_moment(sql), call.result_oid)

    return handle


def _truncated(call: Call) -> Expression:
    unit = _UNITS.get(call.text_constant(0).lower())
    if unit is None:
        raise call.refuse(f"The field {call.text_constant(0)}.")
    moment = f"CAST({call.sql(1)} AS TIMESTAMP)"
    sql = f"CAST(date_trunc('{unit}', {moment}) AS TIMESTAMP)"
    return value(_moment(sql), call.result_oid)


def _zoned_truncation(call: Call) -> Expression:
    """In UTC, a timestamp with time zone is a timestamp."""
    call.require_utc()
    unit = _UNITS.get(call.text_constant(0).lower())
    if unit is None:
        raise call.refuse(f"The field {call.text_constant(0)}.")
    moment = _moment(f"date_trunc('{unit}', {_local(call.sql(1))})")
    return value(_zoned(moment), call.result_oid)


def _local(sql: str) -> str:
    """A timestamptz as the timestamp in UTC."""
    return f"({sql} AT TIME ZONE 'UTC')"


def _zoned(sql: str) -> str:
    # The operator works in both directions: of a timestamp it makes a timestamptz.
    return f"({sql} AT TIME ZONE 'UTC')"


def _extracted(call: Call) -> Expression:
    """extract(): numeric, with as many digits after the point as the field has."""
    field = call.text_constant(0).lower()
    return _part(call, field, call.sql(1), call.args[1].form)


def _zoned_extraction(call: Call) -> Expression:
    field = call.text_constant(0).lower()
    # The seconds since 1970 are the same in every time zone.
    if field != "epoch":
        call.require_utc()
    form = form_of(type_oids.TIMESTAMP)
    return _part(call, field, _local(call.sql(1)), form)


def _part(call: Call, field: str, sql: str, form: Form) -> Expression:
    has_clock = form.type_oid == type_oids.TIMESTAMP
    if field in _YEARS:
        year = _YEAR.format(function=_YEARS[field].format(sql))
        return _whole(guarded(f"NOT isfinite({sql})", _INFINITE_PART, year))
    if field in _PARTS:
        return _whole(_PARTS[field].format(sql))
    if field in _CLOCK_PARTS and has_clock:
        return _whole(_CLOCK_PARTS[field].format(sql))
    if field in _EXACT_PARTS and has_clock:
        function, scale = _EXACT_PARTS[field]
        # DuckDB's function counts the microseconds of a minute, so at most 59,999,999.
        return _scaled(function.format(sql), 8 - scale, scale)
    if field == "epoch":
        return _epoch(sql, has_clock=has_clock)
    raise call.refuse(f"The field {field}.")


def _epoch(sql: str, *, has_clock: bool) -> Expression:
    micros = guarded(f"NOT isfinite({sql})", _INFINITE_PART, f"epoch_us({sql})")
    if has_clock:
        # Together 19 digits, which hold every 64-bit number of microseconds.
        return _scaled(micros, 13, 6)
    return _whole(f"({micros} // 1000000)")


def _whole(sql: str) -> Expression:
    form = decimal_form(18, 0)
    return Expression(f"CAST({sql} AS {form.duckdb})", form)


def _scaled(sql: str, whole: int, scale: int) -> Expression:
    """A number of units of the last digit."""
    form = decimal_form(whole, scale)
    unit = f"CAST('{Numeric(1, scale)}' AS DECIMAL({scale + 1},{scale}))"
    return Expression(f"CAST(CAST({sql} AS DECIMAL(19,0)) * {unit} AS {form.duckdb})", form)


def _as_float(handler: Handler) -> Handler:
    """date_part(): the float8 that is nearest to extract()."""

    def handle(call: Call) -> Expression:
        exact = handler(call)
        # By its text, for the reason that `numeric_functions._to_float` gives.
        return value(f"CAST(CAST({exact.sql} AS VARCHAR) AS DOUBLE)", call.result_oid)

    return handle


def _formatted(call: Call) -> Expression:
    """to_char() with templates that are numbers of fixed width, for years of four digits."""
    moment = call.sql(0)
    if call.args[0].form.type_oid == type_oids.TIMESTAMPTZ:
        call.require_utc()
        moment = _local(moment)
    text = formatted_moment(call.text_constant(1), moment)
    if text is None:
        raise call.refuse("Its template.")
    outside = f"isfinite({moment}) AND NOT {within_four_digits(moment)}"
    year = error_sql("0A000", "to_char of a year before 1 or after 9999")
    # NULL for an infinite moment, as in PostgreSQL.
    cases = f"WHEN {outside} THEN {year} WHEN isfinite({moment}) THEN {text}"
    return value(f"(CASE {cases} END)", call.result_oid)


def _between_moments(call: Call) -> Expression:
    """Days and the rest of a day, with the same sign."""
    left, right = call.sql(0), call.sql(1)
    micros = f"(epoch_us({left}) - epoch_us({right}))"
    # PostgreSQL never makes months of a difference, however many days it has.
    days = f"to_days(CAST({micros} // 86400000000 AS INTEGER))"
    sql = f"({days} + to_microseconds({micros} % 86400000000))"
    infinite = f"NOT isfinite({left}) OR NOT isfinite({right})"
    return value(guarded(infinite, _INFINITE_PART, sql), call.result_oid)


def _interval_epoch(call: Call) -> Expression:
    """A year has 365.25 days, and a month 30."""
    if call.text_constant(0).lower() != "epoch":
        raise call.refuse(f"The field {call.text_constant(0)}.")
    return _scaled(_span(call.sql(1), year_seconds=31_557_600), 13, 6)


def _span(interval: str, year_seconds: int) -> str:
    """Microseconds of an interval whose months have 30 days."""
    # In 128 bits: the longest interval has 178 million years, too many microseconds for 64.
    days = (
        f"({year_seconds} * CAST(datepart('year', {interval}) AS HUGEINT) + 2592000 * "
        f"datepart('month', {interval}) + 86400 * datepart('day', {interval}))"
    )
    clock = (
        f"(3600000000 * CAST(datepart('hour', {interval}) AS HUGEINT) + 60000000 * "
        f"datepart('minute', {interval}) + datepart('microsecond', {interval}))"
    )
    return f"({days} * 1000000 + {clock})"


def _interval_comparison(operator: str) -> Handler:
    """As interval_cmp_value: a year has 12 months of 30 days."""

    def handle(call: Call) -> Expression:
        left, right = (_span(arg.sql, year_seconds=31_104_000) for arg in call.args)
        return value(f"({left} {operator} {right})", call.result_oid)

    return handle


def _zoned_comparison(operator: str) -> Handler:
    """A date or timestamp and a timestamptz: all in UTC."""

    def handle(call: Call) -> Expression:
        call.require_utc()
        left, right = map(_as_timestamp, call.args)
        return value(f"({left} {operator} {right})", call.result_oid)

    return handle


def _as_timestamp(moment: Expression) -> str:
    if moment.form.type_oid == type_oids.TIMESTAMPTZ:
        return _local(moment.sql)
    return f"CAST({moment.sql} AS TIMESTAMP)"


def _zoned_move(operator: str, *, reverse: bool = False) -> Handler:
    def handle(call: Call) -> Expression:
        call.require_utc()
        moment, interval = reversed(call.args) if reverse else call.args
        moved = _moment(f"({_local(moment.sql)} {operator} {interval.sql})")
        return value(_zoned(moved), call.result_oid)

    return handle


def _comparisons() -> Iterator[tuple[str, Handler]]:
    operators = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    for name, operator in operators.items():
        yield f"interval_{name}(interval,interval)", _interval_comparison(operator)
        for kind in ("date", "timestamp"):
            handler = _zoned_comparison(operator)
            yield f"{kind}_{name}_timestamptz({kind},timestamptz)", handler
            yield f"timestamptz_{name}_{kind}(timestamptz,{kind})", handler


def _interval_sum(operator: str) -> Handler:
    return template(f"{{0}} {operator} {{1}}")


def _to_date(call: Call) -> Expression:
    return value(f"CAST({call.sql(0)} AS DATE)", call.result_oid)


def _to_timestamp(call: Call) -> Expression:
    refuse_texts(call)
    return value(f"CAST({call.sql(0)} AS TIMESTAMP)", call.result_oid)


def _from_zoned(duckdb: str) -> Handler:
    def handle(call: Call) -> Expression:
        call.require_utc()
        return value(f"CAST({_local(call.sql(0))} AS {duckdb})", call.result_oid)

    return handle


def _to_zoned(call: Call) -> Expression:
    call.require_utc()
    return value(_zoned(f"CAST({call.sql(0)} AS TIMESTAMP)"), call.result_oid)


def _named() -> Iterator[tuple[str, Handler]]:
    for name in ("date", "timestamp"):
        yield f"extract(text,{name})", _extracted
        yield f"date_part(text,{name})", _as_float(_extracted)
        yield f"{name}_pl_interval({name},interval)", _moved("+")
        yield f"{name}_mi_interval({name},interval)", _moved("-")
        yield f"interval_pl_{name}(interval,{name})", _moved("+", reverse=True)


TIME_FUNCTIONS: Final[Functions] = MappingProxyType(
    {
        **dict(_named()),
        **dict(_comparisons()),
        "timestamptz_pl_interval(timestamptz,interval)": _zoned_move("+"),
        "timestamptz_mi_interval(timestamptz,interval)": _zoned_move("-"),
        "interval_pl_timestamptz(interval,timestamptz)": _zoned_move("+", reverse=True),
        "timestamp_mi(timestamp,timestamp)": _between_moments,
        "timestamptz_mi(timestamptz,timestamptz)": _between_moments,
        "extract(text,interval)": _interval_epoch,
        "date_part(text,interval)": _as_float(_interval_epoch),
        "to_char(timestamp,text)": _formatted,
        "to_char(timestamptz,text)": _formatted,
        "extract(text,timestamptz)": _zoned_extraction,
        "date_part(text,timestamptz)": _as_float(_zoned_extraction),
        "date_trunc(text,timestamp)": _truncated,
        "date_trunc(text,timestamptz)": _zoned_truncation,
        "date_pli(date,int4)": _moved_date("+"),
        "integer_pl_date(int4,date)": _moved_date("+"),
        "date_mii(date,int4)": _moved_date("-"),
        "date_mi(date,date)": _days_between,
        "interval_pl(interval,interval)": _interval_sum("+"),
        "interval_mi(interval,interval)": _interval_sum("-"),
        "date(timestamp)": _to_date,
        "timestamp(date)": _to_timestamp,
        "date(timestamptz)": _from_zoned("DATE"),
        "timestamp(timestamptz)": _from_zoned("TIMESTAMP"),
        "timestamptz(date)": _to_zoned,
        "timestamptz(timestamp)": _to_zoned,
    }
)
