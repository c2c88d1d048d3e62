"""Converts one PostgreSQL value's text to its form in the contract.

Owns the conversions that don't depend on the catalog. Each takes the bytes of a value that is not
NULL, printed under `SESSION_SETTINGS`, and raises only `DecodeError` for bytes it can't read. Never
rounds, never guesses another session's formats.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace.errors import DecodeError

# Without them a value's text would depend on the role, the database and the server's configuration.
SESSION_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DateStyle": "ISO",
        "TimeZone": "UTC",
        "IntervalStyle": "iso_8601",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        "lc_monetary": "C",
    }
)
"""Settings of every connection that reads values: replication, COPY and queries."""

NAME_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"search_path": "pg_catalog", "quote_all_identifiers": "off"}
)
"""Additional settings of the replication connection and COPY, so that names (regclass and similar
types) have one text with any settings of the role and the database. Elsewhere the role's own
search_path finds its types and operators."""

_REMEDY = (
    "Check that the role or the database doesn't override the session settings that Headrace sets"
)

# With lc_monetary C, PostgreSQL prints a dollar sign, commas and two decimals.
_MONEY = re.compile(rb"-?\$[0-9,]+\.[0-9]{2}")
# PostgreSQL omits the minutes and seconds of an offset if they are zero.
_TIMETZ = re.compile(r"(\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d)((?::\d\d){0,2})")


def text(value: bytes) -> str:
    """PostgreSQL's own text, which is the form of every type without another rule."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DecodeError(
            f"a value of {len(value)} bytes is not UTF-8",
            remedy="Set the connection's client_encoding to UTF8",
        ) from None


def boolean(value: bytes) -> bool:
    if value == b"t":
        return True
    if value == b"f":
        return False
    raise _unexpected("bool", value)


def integer(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise _unexpected("integer", value) from None  # whose message shows the value


def integer_text(value: bytes) -> str:
    """An int8 for readers whose numbers are doubles."""
    return str(integer(value))


def number(value: bytes) -> float:
    """A float; for a float4, the double that prints the same digits."""
    try:
        return float(value)
    except ValueError:
        raise _unexpected("float", value) from None  # whose message shows the value


def number_or_name(value: bytes) -> float | str:
    """A float, if JSON has a form for it; else `NaN`, `Infinity` or `-Infinity`."""
    result = number(value)
    if math.isfinite(result):
        return result
    return text(value)


def money(value: bytes) -> str:
    """`-$1,234.50` as `-1234.50`."""
    if not _MONEY.fullmatch(value):
        raise _unexpected("money", value)
    return value.translate(None, b"$,").decode()


def binary(value: bytes) -> bytes:
    # Without `\x` it would be bytea_output escape, in which the same bytes mean something else.
    if value[:2] != b"\\x":
        raise _unexpected("bytea", value)
    try:
        return binascii.unhexlify(value[2:])
    except binascii.Error:
        raise _unexpected("bytea", value) from None  # whose message shows the value


def binary_base64(value: bytes) -> str:
    return binascii.b2a_base64(binary(value), newline=False).decode()


def timestamp(value: bytes) -> str:
    """`2025-12-12T12:00:34.338547`, with the digits that PostgreSQL printed."""
    result = text(value)
    if _in_four_digit_years(result):
        return f"{result[:10]}T{result[11:]}"
    return result


def timestamp_utc(value: bytes) -> str:
    """`2025-12-12T12:00:34.338547Z`."""
    result = text(value)
    if result[10:11] == " " and result.endswith("+00"):
        return f"{result[:10]}T{result[11:-3]}Z"
    # An offset other than UTC's means that the session setting is not in force.
    if _in_four_digit_years(result):
        raise _unexpected("timestamptz", value)
    return result


def _in_four_digit_years(result: str) -> bool:
    """False for infinity, BC and years beyond 9999, which keep PostgreSQL's text."""
    return result[10:11] == " " and not result.endswith(" BC")


def time_with_zone(value: bytes) -> str:
    """`12:00:34.5+02:00`: ISO 8601's extended form requires the minutes that PostgreSQL omits."""
    match = _TIMETZ.fullmatch(text(value))
    if match is None:
        raise _unexpected("timetz", value)
    return f"{match[1]}{match[2] or ':00'}"


def _unexpected(type_name: str, value: bytes) -> DecodeError:
    """The value itself is not in the message: errors are logged, and rows never are."""
    return DecodeError(
        f"a value of {len(value)} bytes is not a {type_name} as PostgreSQL prints it",
        remedy=_REMEDY,
    )
