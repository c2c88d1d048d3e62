"""DuckDB's errors as PostgreSQL's SQLSTATEs. Pure.

Errors that a statement makes on purpose have their SQLSTATE in the text. Overflow of integers,
and conversions that PostgreSQL refuses too, have PostgreSQL's. Everything else means that the
translated statement left what is proven: the statement is not supported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import duckdb

OVERFLOWS: Final = (duckdb.OutOfRangeException, duckdb.ConversionException)
"""DuckDB's errors of numbers that don't fit into their type."""
# Only at its beginning: DuckDB's own errors quote the statement, and so all errors that it could
# make, and they quote values, which are anything.
_OURS: Final = re.compile(
    r"Invalid Input Error: (?:Python exception occurred while executing the UDF: ValueError: )?"
    r"HR([0-9A-Z]{5}): (.*)"
)
_TYPES: Final = {"INT16": "smallint", "INT32": "integer", "INT64": "bigint"}
_INTEGER_OVERFLOW: Final = re.compile(r"Overflow in \w+ of (INT16|INT32|INT64) ")
_OUT_OF_RANGE: Final = re.compile(
    r"Type \w+ with value \S+ can't be cast because the value is out of range "
    r"for the destination type (INT16|INT32|INT64)"
)
_OTHER_OVERFLOW: Final = re.compile(
    r"Overflow in negation of numeric value|Overflow on abs|Overflow in division of -?\d+ / -1"
)
_MANY_ROWS: Final = "More than one row returned by a subquery used as an expression"


@dataclass(frozen=True, slots=True)
class ClientError:
    """What the client gets."""

    sqlstate: str
    message: str


def postgres_error(text: str) -> ClientError:
    """PostgreSQL's error for the text of one of DuckDB."""
    first = text.partition("\n")[0]
    if ours := _OURS.match(text):
        return ClientError(ours[1], ours[2].strip())
    if overflow := _INTEGER_OVERFLOW.search(first) or _OUT_OF_RANGE.search(first):
        return ClientError("22003", f"{_TYPES[overflow[1]]} out of range")
    if _OTHER_OVERFLOW.search(first):
        return ClientError("22003", "integer out of range")
    if _MANY_ROWS in first:
        return ClientError(
            "21000", "more than one row returned by a subquery used as an expression"
        )
    return ClientError("0A000", f"the statement is not supported over the lake: {first}")
