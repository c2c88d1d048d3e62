"""Prepares a DuckDB connection so that translated statements give PostgreSQL's answers.

Settings, and the functions that DuckDB lacks. Everything else is in the translated SQL itself: it
names directions, null orders and types explicitly, and depends on no other setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType
from duckdb.sqltypes import INTEGER, VARCHAR

from headrace.lake.typed_values import Array
from headrace.sql.numeric_arithmetic import deviation, quotient
from headrace.sql.numeric_functions import COMPUTED_SCALE, COMPUTED_WHOLE

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # `timestamp with time zone` in text and in fields; statements that depend on the session's
        # zone are translated only if this is UTC too.
        "TimeZone": "UTC",
        # A scalar subquery with two rows is an error.
        "scalar_subquery_error_on_multiple_rows": "true",
        # 1e400 is an error, and 1/0.0 is; the translated SQL checks it.
        "ieee_floating_point_ops": "true",
        # Rows come in no order without ORDER BY, as in PostgreSQL.
        "preserve_insertion_order": "false",
    }
)


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Set the settings and create the functions, before the configuration is locked. Every cursor
    of the database sees the functions.
    """
    for name, setting in SETTINGS.items():
        connection.execute(f"SET GLOBAL {name} = '{setting}'")
    for name, function, arguments, result in _FUNCTIONS:
        connection.create_function(
            name,
            _by_rows(function, pa.string() if result == VARCHAR else pa.int32()),
            list(arguments),
            result,
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )


def _by_rows(function: Callable[..., Any], result: pa.DataType) -> Callable[..., Array]:
    """A function of Arrow columns; a null argument gives null."""

    # DuckDB asks for the number of parameters.
    @wraps(function)
    def of_columns(*columns: Array) -> Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([None if None in row else function(*row) for row in rows], result)

    return of_columns


def _quotient(dividend: str, divisor: str, dividend_scale: int, divisor_scale: int) -> str:
    try:
        return quotient(dividend, divisor, dividend_scale, divisor_scale)
    except ZeroDivisionError:
        raise ValueError("HR22012: division by zero") from None


def _scale(text: str) -> int:
    return len(text.partition(".")[2])


def _checked(text: str) -> str:
    """The text, if the DECIMAL of computed numbers has all its digits."""
    whole, _, places = text.partition(".")
    if len(whole.lstrip("-")) > COMPUTED_WHOLE or len(places) > COMPUTED_SCALE:
        raise ValueError("HR0A000: a quotient with more digits than the copy computes with")
    return text


_Function: TypeAlias = tuple[str, Callable[..., Any], Sequence[Any], Any]
_FUNCTIONS: Final[Sequence[_Function]] = (
    ("headrace_quotient", _quotient, (VARCHAR, VARCHAR, INTEGER, INTEGER), VARCHAR),
    ("headrace_deviation", deviation, (VARCHAR, VARCHAR, VARCHAR, INTEGER, VARCHAR), VARCHAR),
    ("headrace_scale", _scale, (VARCHAR,), INTEGER),
    ("headrace_checked", _checked, (VARCHAR,), VARCHAR),
)
