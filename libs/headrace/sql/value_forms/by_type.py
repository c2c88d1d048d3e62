"""The form of each type: PostgreSQL's text in a session, and its binary form.

A type that is not named here stands as PostgreSQL's text in the copy, which is its text form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.contract import type_oids
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.moments import DATE_INFINITY, DAY_US, TIMESTAMP_INFINITY
from headrace.sql.storage_types import (
    BPCHAR_OID,
    INTERVAL_OID,
    NAME_OID,
    TEXT_OID,
    TIME_OID,
    UUID_OID,
    VARCHAR_OID,
)
from headrace.sql.value_forms import numbers, others, times
from headrace.sql.value_forms.arrays import array_binary, array_texts
from headrace.sql.value_forms.arrow import (
    Array,
    Form,
    as_binary,
    big_endian,
    each,
    integers,
    joined,
    pc,
    with_nulls_of,
)
from headrace.sql.value_forms.zones import zone

# The session's settings on which a form depends.
Session = Mapping[str, str]

_UNKNOWN_OID = 705
_JSONPATH_OID = 4072
_TSTZRANGE_OID = 3910
_TSTZMULTIRANGE_OID = 4534
# Their texts depend on search_path, and their numbers are the source's.
_NAMES_OF_OBJECTS = frozenset({24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191})
# 2000-01-01, from which PostgreSQL counts.
_EPOCH_DAYS = 10_957
_EPOCH_US = _EPOCH_DAYS * DAY_US


def text_form(type_oid: int, session: Session) -> Form:
    """The text of a type's values."""
    _check(type_oid)
    element_oid = type_oids.ELEMENT_OIDS.get(type_oid)
    if element_oid is not None:
        # A box has commas in its text; it is the only built-in type with its own delimiter.
        delimiter = ";" if element_oid == type_oids.BOX else ","
        return partial(array_texts, text_form(element_oid, session), delimiter)
    found = _TEXTS.get(type_oid)
    return _unchanged if found is None else found(session)


def binary_form(type_oid: int) -> Form:
    """The bytes of a type's values."""
    _check(type_oid)
    element_oid = type_oids.ELEMENT_OIDS.get(type_oid)
    if element_oid is not None:
        return partial(array_binary, binary_form(element_oid), element_oid)
    found = _BINARIES.get(type_oid)
    return each(others.by_text(type_oid)) if found is None else found


def _check(type_oid: int) -> None:
    if type_oid in _NAMES_OF_OBJECTS:
        raise NotProvenEqualError(f"a value of the type with OID {type_oid}")


def _always(form: Form) -> Callable[[Session], Form]:
    return lambda _: form


def _unchanged(column: Array) -> Array:
    return column


def _boolean_texts(column: Array) -> Array:
    return pc.if_else(column, "t", "f")


def _boolean_binary(column: Array) -> Array:
    return pc.if_else(column, pa.scalar(b"\1", pa.binary()), pa.scalar(b"\0", pa.binary()))


def _float(form: Form) -> Callable[[Session], Form]:
    def of(session: Session) -> Form:
        # Below 1, PostgreSQL rounds to fewer digits, and doesn't write the shortest ones.
        if int(session["extra_float_digits"]) < 1:
            setting = session["extra_float_digits"]
            raise NotProvenEqualError(f"extra_float_digits {setting}", "Use 1.")
        return form

    return of


def _bytea(session: Session) -> Form:
    if session["bytea_output"] != "hex":
        raise NotProvenEqualError(f"bytea_output {session['bytea_output']}", "Use hex.")
    return others.bytea_texts


def _dated(form: Form) -> Callable[[Session], Form]:
    def of(session: Session) -> Form:
        _check_style(session)
        return form

    return of


def _check_style(session: Session) -> None:
    if not session["DateStyle"].upper().startswith("ISO"):
        raise NotProvenEqualError(f"DateStyle {session['DateStyle']}", "Use ISO.")


def _timestamptz(session: Session) -> Form:
    _check_style(session)
    return partial(times.timestamptz_texts, zone=zone(session["TimeZone"]))


def _zoned_text(session: Session) -> Form:
    """A text in which moments are in UTC."""
    _check_style(session)
    if not zone(session["TimeZone"]).is_utc:
        raise NotProvenEqualError("a range of timestamps with a zone", "SET TimeZone = 'UTC'.")
    return _unchanged


def _interval(session: Session) -> Form:
    return partial(times.interval_texts, style=session["IntervalStyle"])


_TEXTS: Final[Mapping[int, Callable[[Session], Form]]] = MappingProxyType(
    {
        type_oids.BOOL: _always(_boolean_texts),
        type_oids.INT2: _always(numbers.integer_texts),
        type_oids.INT4: _always(numbers.integer_texts),
        type_oids.INT8: _always(numbers.integer_texts),
        type_oids.OID: _always(numbers.integer_texts),
        type_oids.FLOAT4: _float(numbers.float4_texts),
        type_oids.FLOAT8: _float(numbers.float8_texts),
        type_oids.NUMERIC: _always(numbers.numeric_texts),
        type_oids.MONEY: _always(numbers.money_texts),
        type_oids.BYTEA: _bytea,
        type_oids.DATE: _dated(times.date_texts),
        type_oids.TIMESTAMP: _dated(times.timestamp_texts),
        type_oids.TIMESTAMPTZ: _timestamptz,
        type_oids.TIMETZ: _always(times.timetz_texts),
        TIME_OID: _always(times.time_texts),
        INTERVAL_OID: _interval,
        _TSTZRANGE_OID: _zoned_text,
        _TSTZMULTIRANGE_OID: _zoned_text,
    }
)


def _date_binary(column: Array) -> Array:
    days = integers(column)
    shown = np.where(np.abs(days) < DATE_INFINITY, days - _EPOCH_DAYS, days)
    # DuckDB's two infinities are symmetric; PostgreSQL's lower one is the least 32-bit number.
    shown[days <= -DATE_INFINITY] = -(2**31)
    return with_nulls_of(big_endian(shown, ">i4"), column)


def _timestamp_binary(column: Array) -> Array:
    moments = integers(column)
    endless = np.abs(moments) >= TIMESTAMP_INFINITY
    # Zeros in place of infinities, from which the subtraction would overflow.
    shown = np.where(endless, 0, moments) - _EPOCH_US
    shown[endless] = np.where(moments[endless] > 0, 2**63 - 1, -(2**63))
    return with_nulls_of(big_endian(shown, ">i8"), column)


def _interval_binary(column: Array) -> Array:
    months, days, us = times.interval_fields(column)
    parts = [big_endian(us, ">i8"), big_endian(days, ">i4"), big_endian(months, ">i4")]
    return with_nulls_of(joined(parts), column)


_BINARIES: Final[Mapping[int, Form]] = MappingProxyType(
    {
        TEXT_OID: as_binary,
        VARCHAR_OID: as_binary,
        BPCHAR_OID: as_binary,
        NAME_OID: as_binary,
        _UNKNOWN_OID: as_binary,
        type_oids.JSON: as_binary,
        type_oids.BYTEA: as_binary,
        type_oids.JSONB: others.versioned_binary,
        _JSONPATH_OID: others.versioned_binary,
        type_oids.BOOL: _boolean_binary,
        type_oids.INT2: partial(numbers.integer_binary, kind=">i2"),
        type_oids.INT4: partial(numbers.integer_binary, kind=">i4"),
        type_oids.INT8: partial(numbers.integer_binary, kind=">i8"),
        type_oids.OID: partial(numbers.integer_binary, kind=">u4"),
        type_oids.FLOAT4: partial(numbers.float_binary, kind=">f4"),
        type_oids.FLOAT8: partial(numbers.float_binary, kind=">f8"),
        type_oids.NUMERIC: numbers.numeric_binary,
        type_oids.MONEY: numbers.money_binary,
        type_oids.DATE: _date_binary,
        type_oids.TIMESTAMP: _timestamp_binary,
        type_oids.TIMESTAMPTZ: _timestamp_binary,
        TIME_OID: partial(numbers.integer_binary, kind=">i8"),
        INTERVAL_OID: _interval_binary,
        UUID_OID: others.uuid_binary,
    }
)
