"""The values of a statement's parameters for DuckDB, from PostgreSQL's binary forms. Pure.

A value has the DuckDB type of its PostgreSQL type (`storage_types`); that of a numeric has the
bounds of its digits. A value that DuckDB's type doesn't have is refused.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import duckdb

from headrace.contract import type_oids
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.moments import DAY_US, TIMESTAMP_INFINITY, civil_date, infinity_text
from headrace.sql.storage_types import INTERVAL_OID, TIME_OID, UUID_OID, Meaning, storage
from headrace.sql.value_forms.times import time_text

# 2000-01-01, from which PostgreSQL counts.
_EPOCH_DAYS = 10_957
_EPOCH_US = _EPOCH_DAYS * DAY_US
_PRECISION_MAX = 38
_BASE_DIGITS = 4
_NEGATIVE = 0x4000
_SPECIAL = 0x8000


def parameter_values(
    types: Sequence[int], values: Sequence[bytes | None]
) -> list[duckdb.Value | None]:
    """A value for each parameter, whose types are PostgreSQL's."""
    return [
        None if value is None else _typed(type_oid, value)
        for type_oid, value in zip(types, values, strict=True)
    ]


def _typed(type_oid: int, value: bytes) -> duckdb.Value:
    if type_oid == type_oids.NUMERIC:
        return _numeric(value)
    stored = storage(type_oid, -1)
    found: Any
    if stored.element is None:
        found = _scalar(type_oid, value)
    else:
        found = _elements(type_oids.ELEMENT_OIDS[type_oid], value)
    return duckdb.Value(found, duckdb.sqltype(stored.duckdb))


def _scalar(type_oid: int, value: bytes) -> Any:
    """The value, or a text from which DuckDB reads it."""
    read = _READERS.get(type_oid)
    if read is not None:
        return read(value)
    if storage(type_oid, -1).meaning is Meaning.TEXT and type_oid not in _TEXTS:
        raise NotProvenEqualError(f"a parameter of the type with OID {type_oid}")
    return value.decode()


def _elements(element_oid: int, value: bytes) -> list[Any]:
    dimensions = int.from_bytes(value[:4], "big")
    if not dimensions:
        return []
    size, first = struct.unpack(">ii", value[12:20])
    if dimensions > 1 or first != 1:
        raise NotProvenEqualError("a parameter that is an array of several dimensions or bounds")
    found: list[Any] = []
    at = 20
    for _ in range(size):
        length = int.from_bytes(value[at : at + 4], "big", signed=True)
        at += 4
        if length < 0:
            found.append(None)
            continue
        found.append(_scalar(element_oid, value[at : at + length]))
        at += length
    return found


def _numeric(value: bytes) -> duckdb.Value:
    text = numeric_text(value)
    whole, _, fraction = text.lstrip("-").partition(".")
    precision = max(len(whole.lstrip("0")) + len(fraction), 1)
    if not text.lstrip("-")[0].isdigit() or precision > _PRECISION_MAX:
        raise NotProvenEqualError("a parameter that is a numeric of more than 38 digits, or NaN")
    return duckdb.Value(text, duckdb.sqltype(f"DECIMAL({precision},{len(fraction)})"))


def numeric_text(value: bytes) -> str:
    """PostgreSQL's text of a numeric's binary form."""
    count, weight, sign, scale = struct.unpack(">hhHH", value[:8])
    if sign & _SPECIAL:
        return {0xC000: "NaN", 0xD000: "Infinity"}.get(sign, "-Infinity")
    groups = struct.unpack(f">{count}H", value[8:])
    digits = "".join(f"{group:04}" for group in groups)
    point = (weight + 1) * _BASE_DIGITS
    if point <= 0:
        digits = "0" * (-point) + digits
        point = 0
    digits = digits.ljust(max(point + scale, len(digits)), "0")
    whole = digits[:point].lstrip("0") or "0"
    text = whole
    if scale:
        text += f".{digits[point : point + scale]}"
    if sign == _NEGATIVE:
        return f"-{text}"
    return text


def _signed(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _money(value: bytes) -> str:
    return format(Decimal(_signed(value)).scaleb(-2), "f")


def _date(value: bytes) -> str:
    days = _signed(value)
    if days in {2**31 - 1, -(2**31)}:
        return infinity_text(days)
    return _day(days + _EPOCH_DAYS)


def _day(days: int) -> str:
    """As DuckDB writes it."""
    year, month, day = civil_date(days)
    if year > 0:
        return f"{year:04}-{month:02}-{day:02}"
    return f"{1 - year:04}-{month:02}-{day:02} (BC)"


def _timestamp(value: bytes) -> str:
    moment = _signed(value)
    if moment in {2**63 - 1, -(2**63)}:
        return infinity_text(moment)
    if moment + _EPOCH_US >= TIMESTAMP_INFINITY:
        raise NotProvenEqualError("a parameter that is a timestamp after 294247-01-10")
    days, us = divmod(moment + _EPOCH_US, DAY_US)
    return f"{_day(days)} {time_text(us)}"


def _timestamptz(value: bytes) -> str:
    text = _timestamp(value)
    if text.endswith("infinity"):
        return text
    return f"{text}+00"


def _interval(value: bytes) -> str:
    us, days, months = struct.unpack(">qii", value)
    if {us, days, months} in ({2**63 - 1, 2**31 - 1}, {-(2**63), -(2**31)}):
        raise NotProvenEqualError("a parameter that is an infinite interval")
    return f"{months} months {days} days {us} microseconds"


_TEXTS: Final = frozenset({type_oids.JSON, 705})
_READERS: Final[Mapping[int, Callable[[bytes], Any]]] = MappingProxyType(
    {
        type_oids.BOOL: lambda value: value != b"\0",
        type_oids.INT2: _signed,
        type_oids.INT4: _signed,
        type_oids.INT8: _signed,
        type_oids.OID: lambda value: int.from_bytes(value, "big"),
        # As texts, since DuckDB takes Python's NaN for NULL.
        type_oids.FLOAT4: lambda value: repr(struct.unpack(">f", value)[0]),
        type_oids.FLOAT8: lambda value: repr(struct.unpack(">d", value)[0]),
        type_oids.NUMERIC: numeric_text,
        type_oids.MONEY: _money,
        type_oids.BYTEA: lambda value: value,
        type_oids.DATE: _date,
        type_oids.TIMESTAMP: _timestamp,
        type_oids.TIMESTAMPTZ: _timestamptz,
        type_oids.JSONB: lambda value: value[1:].decode(),
        TIME_OID: lambda value: time_text(_signed(value)),
        INTERVAL_OID: _interval,
        UUID_OID: lambda value: str(uuid.UUID(bytes=value)),
    }
)
