"""Constants: PostgreSQL's datums as DuckDB's literals.

A datum comes as the bytes that the server has in memory: little-endian, values of variable length
with their header. Pure.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Final

from headrace.contract import type_oids
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import DIGITS_MAX, Expression, Form, decimal_form, form_of
from headrace.sql.query_tree import QueryTreeError
from headrace.sql.storage_types import (
    BPCHAR_OID,
    INTERVAL_OID,
    NAME_OID,
    TEXT_OID,
    UUID_OID,
    VARCHAR_OID,
    Meaning,
)

UNKNOWN_OID: Final = 705

_HEADER_BYTES = 4
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_DAYS = date(2000, 1, 1).toordinal()
# Days and microseconds around the years 1 to 9999, which Python can write.
_DAYS = range(date.min.toordinal() - _EPOCH_DAYS, date.max.toordinal() - _EPOCH_DAYS)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECONDS = range(
    (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
)
_INFINITE_DAYS = {2**31 - 1: "infinity", -(2**31): "-infinity"}
_INFINITE_MICROSECONDS = {2**63 - 1: "infinity", -(2**63): "-infinity"}


def constant(type_oid: int, modifier: int, datum: bytes | None) -> Expression:
    """A literal; `datum` is None for a null."""
    if datum is None:
        return null(type_oid, modifier)
    if type_oid == type_oids.NUMERIC:
        return _numeric(datum)
    read = _READERS.get(type_oid)
    if read is None:
        raise NotProvenEqualError(f"a constant of type {type_oid}")
    plain, sql = read(datum)
    form = form_of(type_oid, modifier)
    if type_oid == UNKNOWN_OID:
        form = replace(form_of(TEXT_OID), type_oid=UNKNOWN_OID)
    return Expression(sql, form, constant=plain)


def null(type_oid: int, modifier: int = -1) -> Expression:
    """A null of the type."""
    if type_oid == type_oids.NUMERIC:
        form = decimal_form(1, 0)
    elif type_oid == UNKNOWN_OID:
        form = Form(UNKNOWN_OID, "VARCHAR", Meaning.CHARACTERS)
    else:
        form = form_of(type_oid, modifier)
    return Expression(f"CAST(NULL AS {form.duckdb})", form, is_null=True)


def text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Numeric:
    """A numeric constant: its digits without the point, and the digits after it."""

    unscaled: int
    scale: int

    @property
    def whole(self) -> int:
        return max(len(str(abs(self.unscaled))) - self.scale, 1)

    def __str__(self) -> str:
        digits = str(abs(self.unscaled)).rjust(self.scale + 1, "0")
        point = len(digits) - self.scale
        text = f"{digits[:point]}.{digits[point:]}" if self.scale else digits
        return f"-{text}" if self.unscaled < 0 else text


def numeric_expression(number: Numeric) -> Expression:
    """A numeric literal with its display scale; a text if DuckDB has no DECIMAL for it."""
    if number.whole + number.scale > DIGITS_MAX:
        form = form_of(type_oids.NUMERIC)
        return Expression(text_literal(str(number)), form, constant=str(number))
    form = decimal_form(number.whole, number.scale)
    return Expression(f"CAST('{number}' AS {form.duckdb})", form, constant=str(number))


def _numeric(datum: bytes) -> Expression:
    number = read_numeric(_variable(datum))
    if number is None:
        raise NotProvenEqualError("NaN or infinity in numeric")
    return numeric_expression(number)


def read_numeric(data: bytes) -> Numeric | None:
    """A numeric as PostgreSQL stores it, without its length; None if it is not finite."""
    (header,) = struct.unpack_from("<H", data)
    # The layouts are those of PostgreSQL's numeric.c: its short form has sign, display scale and
    # weight in 16 bits, the long one in 32.
    kind = header & 0xC000
    if kind == 0xC000:
        return None
    if kind == 0x8000:
        negative = bool(header & 0x2000)
        scale = (header & 0x1F80) >> 7
        weight = ((header & 0x7F) ^ 0x40) - 0x40
        digits = data[2:]
    else:
        negative = kind == 0x4000
        scale = header & 0x3FFF
        (weight,) = struct.unpack_from("<h", data, 2)
        digits = data[4:]
    groups = [group for (group,) in struct.iter_unpack("<h", digits)]
    number = 0
    for group in groups:
        number = number * 10000 + group
    # The digits end this many decimal places after the point.
    places = 4 * (len(groups) - 1 - weight)
    if places > scale:
        number, rest = divmod(number, 10 ** (places - scale))
        if rest:
            raise QueryTreeError("a numeric has more digits than its display scale")
    else:
        number *= 10 ** (scale - places)
    return Numeric(-number if negative else number, scale)


def _variable(datum: bytes) -> bytes:
    """The content of a datum of variable length that is neither compressed nor out of line."""
    (header,) = struct.unpack_from("<I", datum)
    # The two low bits mark compressed, external and short values; the analyzer's constants are none
    # of these.
    if header & 3 or header >> 2 != len(datum):
        raise QueryTreeError("a datum of variable length has another length than it says")
    return datum[_HEADER_BYTES:]


Read = tuple[str | int | float | bool | None, str]


def _bool(datum: bytes) -> Read:
    truth = datum[0] != 0
    return truth, "true" if truth else "false"


def _integer(code: str, duckdb: str) -> Callable[[bytes], Read]:
    def read(datum: bytes) -> Read:
        (number,) = struct.unpack_from(code, datum)
        return number, f"CAST({number} AS {duckdb})"

    return read


def _float(code: str, duckdb: str) -> Callable[[bytes], Read]:
    def read(datum: bytes) -> Read:
        (number,) = struct.unpack_from(code, datum)
        # A float4 as a float8 has all its digits.
        text = repr(number) if math.isfinite(number) else str(number)
        return number, f"CAST('{text}' AS {duckdb})"

    return read


def _text(datum: bytes) -> Read:
    text = _variable(datum).decode()
    return text, text_literal(text)


def _unknown(datum: bytes) -> Read:
    text = datum.partition(b"\0")[0].decode()
    return text, text_literal(text)


def _bytea(datum: bytes) -> Read:
    # DuckDB wants `\x` before each byte, PostgreSQL only before the first.
    octets = "".join(f"\\x{octet:02X}" for octet in _variable(datum))
    return None, f"'{octets}'::BLOB"


def _date(datum: bytes) -> Read:
    (days,) = struct.unpack_from("<i", datum)
    if days in _INFINITE_DAYS:
        return None, f"CAST('{_INFINITE_DAYS[days]}' AS DATE)"
    if days in _DAYS:
        text = date.fromordinal(_EPOCH_DAYS + days).isoformat()
        return text, f"CAST('{text}' AS DATE)"
    # Python can't write this year, so it is a distance from the day PostgreSQL counts from.
    return None, f"(CAST('2000-01-01' AS DATE) + CAST({days} AS INTEGER))"


def _timestamp(duckdb: str, zone: str) -> Callable[[bytes], Read]:
    def read(datum: bytes) -> Read:
        (count,) = struct.unpack_from("<q", datum)
        if count in _INFINITE_MICROSECONDS:
            return None, f"CAST('{_INFINITE_MICROSECONDS[count]}' AS {duckdb})"
        if count not in _MICROSECONDS:
            raise NotProvenEqualError("a constant timestamp outside the years 1 to 9999")
        moment = (_EPOCH + count * _MICROSECOND).replace(tzinfo=None)
        return None, f"CAST('{moment.isoformat(' ')}{zone}' AS {duckdb})"

    return read


def _interval(datum: bytes) -> Read:
    # The fields stay apart, as in PostgreSQL: a month has no fixed number of days, and a day may
    # have 23 hours.
    microseconds, days, months = struct.unpack_from("<qii", datum)
    parts = [
        f"to_{unit}(CAST({count} AS {duckdb}))"
        for unit, count, duckdb in (
            ("months", months, "INTEGER"),
            ("days", days, "INTEGER"),
            ("microseconds", microseconds, "BIGINT"),
        )
        if count
    ]
    return None, "(" + " + ".join(parts or ["to_days(0)"]) + ")"


def _uuid(datum: bytes) -> Read:
    return None, f"CAST('{uuid.UUID(bytes=datum[:16])}' AS UUID)"


_READERS: Final[Mapping[int, Callable[[bytes], Read]]] = MappingProxyType(
    {
        type_oids.BOOL: _bool,
        type_oids.INT2: _integer("<h", "SMALLINT"),
        type_oids.INT4: _integer("<i", "INTEGER"),
        type_oids.INT8: _integer("<q", "BIGINT"),
        type_oids.OID: _integer("<I", "BIGINT"),
        type_oids.FLOAT4: _float("<f", "FLOAT"),
        type_oids.FLOAT8: _float("<d", "DOUBLE"),
        TEXT_OID: _text,
        VARCHAR_OID: _text,
        BPCHAR_OID: _text,
        NAME_OID: _unknown,
        UNKNOWN_OID: _unknown,
        type_oids.BYTEA: _bytea,
        type_oids.DATE: _date,
        type_oids.TIMESTAMP: _timestamp("TIMESTAMP", ""),
        type_oids.TIMESTAMPTZ: _timestamp("TIMESTAMPTZ", "+00"),
        INTERVAL_OID: _interval,
        UUID_OID: _uuid,
    }
)
