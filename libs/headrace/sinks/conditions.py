"""Evaluates a `where` on decoded rows: the conditions of a snapshot request, as one closure.

Promises the result of PostgreSQL's comparison, so that a snapshot and the stream select the same
rows. Where that can't be promised (an order of texts depends on the collation), the condition is
refused when the configuration is read. Pure.
"""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from headrace.errors import HeadraceError

Compare = Callable[[Any, Any], bool]
# Whether a row fulfills the conditions; None if a column is absent from it.
Where = Callable[[Mapping[str, Any]], bool | None]

_COMPARE: dict[str, Compare] = {
    "=": operators.eq,
    "<>": operators.ne,
    "!=": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}
_EQUALITY = frozenset({"=", "<>", "!=", "in"})
_NUMBERS = ("smallint", "integer", "bigint", "oid", "numeric", "real", "double precision")
_MOMENTS = ("date", "timestamp")
_TEXTS = ("text", "character varying", "uuid", "name")


class ConditionError(HeadraceError):
    """A condition can't be evaluated as PostgreSQL would."""

    remedy = (
        "Compare numbers with a number, times with an unquoted TOML date or time, booleans with a "
        "boolean; texts only with = <> in."
    )


class Moment(str):
    """A TOML date or time as text: a literal of SQL, and comparable with a column's text."""

    __slots__ = ()


class RowTest(NamedTuple):
    """One condition."""

    column: str
    operator: str
    value: Any = None


def compiled(tests: Sequence[RowTest]) -> Where:
    """All conditions together; no conditions are always fulfilled."""
    checks = [(test.column, _check(test)) for test in tests]

    def where(row: Mapping[str, Any]) -> bool | None:
        unknown = False
        for column, check in checks:
            if column not in row:
                # Not None yet: another condition may fail, which decides without the absent column.
                unknown = True
            elif not check(row[column]):
                return False
        return None if unknown else True

    return where


def check_literal(test: RowTest) -> None:
    """Raise if the comparison depends on the column's collation, or means nothing."""
    values = test.value if isinstance(test.value, tuple) else (test.value,)
    if test.operator in _EQUALITY or test.operator.startswith("is "):
        return
    for value in values:
        if isinstance(value, bool) or (isinstance(value, str) and not isinstance(value, Moment)):
            raise ConditionError(
                f"{test.column} {test.operator} {value!r}: the order of texts depends on the "
                "database's collation"
            )


def check_type(test: RowTest, data_type: str) -> None:
    """Raise if the literal does not fit the column's type."""
    if test.operator.startswith("is "):
        return
    values = test.value if isinstance(test.value, tuple) else (test.value,)
    for value in values:
        if not data_type.startswith(_types_of(value)):
            raise ConditionError(
                f"{test.column} is {data_type}, and can't be compared with {value!r}"
            )
        # Here and not at the first row: PostgreSQL would take the session's time zone.
        if isinstance(value, Moment):
            zoned = datetime.fromisoformat(str(value)).tzinfo is not None
            if zoned != ("with time zone" in data_type):
                has = "an" if zoned else "no"
                raise ConditionError(
                    f"{test.column} is {data_type}, and {value} has {has} offset, such as Z"
                )


def _types_of(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int | float):
        return _NUMBERS
    if isinstance(value, Moment):
        return _MOMENTS
    return _TEXTS


def _check(test: RowTest) -> Callable[[Any], bool]:
    if test.operator == "is null":
        return lambda value: value is None
    if test.operator == "is not null":
        return lambda value: value is not None
    if isinstance(test.value, tuple):
        equals = [_check(RowTest(test.column, "=", value)) for value in test.value]
        return lambda value: any(equal(value) for equal in equals)
    compare = _COMPARE[test.operator]
    read = _reader(test)

    def check(value: Any) -> bool:
        # A comparison with NULL is not fulfilled.
        return value is not None and compare(*read(value))

    return check


def _reader(test: RowTest) -> Callable[[Any], tuple[Any, Any]]:
    """A function that returns a column's value and the literal in a form that compares."""
    value = test.value
    if isinstance(value, bool):
        return lambda found: (_of_type(test, found, bool), value)
    if isinstance(value, int | float):
        return _number_reader(test, value)
    if isinstance(value, Moment):
        literal = _moment(test, str(value))
        return lambda found: (_moment(test, found), literal)
    return lambda found: (_of_type(test, found, str), str(value))


def _of_type(test: RowTest, found: object, kind: type) -> object:
    if not isinstance(found, kind):
        raise _mismatch(test)
    return found


def _mismatch(test: RowTest) -> ConditionError:
    # Without the row's value, which must not be in a log.
    return ConditionError(f"{test.column} can't be compared with {test.value!r}")


def _number_reader(test: RowTest, literal: float) -> Callable[[Any], tuple[Any, Any]]:
    as_double = _ordered(literal)
    # A numeric's digits are exact, and SQL reads the literal's digits as exactly.
    as_digits = _ordered(Decimal(repr(literal)))

    def read(found: Any) -> tuple[Any, Any]:
        if isinstance(found, float):
            return _ordered(found), as_double
        if isinstance(found, int) and not isinstance(found, bool):
            return _ordered(found), as_digits
        if not isinstance(found, str):
            raise _mismatch(test)
        try:
            return _ordered(Decimal(found)), as_digits
        except InvalidOperation:
            raise _mismatch(test) from None

    return read


def _ordered(value: float | Decimal) -> tuple[bool, float | Decimal]:
    """A number in PostgreSQL's order: NaN equals itself and is greater than any other."""
    if math.isnan(value):
        return True, 0
    return False, value


# Before and after every moment that has a date.
# No literal of TOML lies beyond the years 1 to 9999, so these never meet each other.
_EARLIEST = (-1, "")
_LATEST = (1, "")


def _moment(test: RowTest, found: object) -> tuple[int, Any]:
    if not isinstance(found, str):
        raise _mismatch(test)
    if found == "infinity":
        return _LATEST
    if found == "-infinity" or found.endswith("BC"):
        return _EARLIEST
    try:
        moment = datetime.fromisoformat(found)
        literal = datetime.fromisoformat(str(test.value))
    except ValueError:
        if found.partition("-")[0].isdigit() and len(found.partition("-")[0]) > 4:
            return _LATEST
        raise _mismatch(test) from None
    if (moment.tzinfo is None) != (literal.tzinfo is None):
        raise _mismatch(test)
    return (0, moment)


def literal_of(value: object) -> object:
    """A TOML value as the literal of a condition."""
    if isinstance(value, list):
        return [literal_of(one) for one in value]
    if isinstance(value, datetime | date):
        return Moment(value.isoformat())
    return value
