"""A consumer's request for a snapshot: the table, and which columns and rows, as data.

Owns the form of the request's payload. Promises that nothing of a request reaches SQL unquoted, and
that an invalid request raises `RequestError` with what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import SNAPSHOT, split_table_token
from headrace.errors import DecodeError, HeadraceError
from headrace.postgres.quoting import quote_literal, quote_name
from headrace.settings import SnapshotValues

REQUEST_BYTES_MAX = 256 * 1024
_PREFIX = f"{SNAPSHOT}.request."
_OPTIONS = frozenset({"columns", "filter", "values"})
_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
_NULL_TESTS = {"is null": "IS NULL", "is not null": "IS NOT NULL"}

Scalar = str | int | float | bool


class RequestError(HeadraceError):
    """The snapshot request is not valid."""

    remedy = (
        "Send nothing, or a map in MessagePack or JSON of columns (a list of names), filter (a "
        "list of "
        "[column, operator, value]) and values (typed or text)."
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a column; all conditions of a request are combined with AND."""

    column: str
    operator: str
    value: Scalar | tuple[Scalar, ...] | None = None

    def sql(self) -> str:
        """The condition with every name and value quoted; a literal takes the column's type."""
        name = quote_name(self.column)
        if self.operator in _NULL_TESTS:
            return f"{name} {_NULL_TESTS[self.operator]}"
        if isinstance(self.value, tuple):
            return f"{name} IN ({', '.join(_literal(value) for value in self.value)})"
        assert self.value is not None
        return f"{name} {self.operator} {_literal(self.value)}"


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """What to copy. Two equal requests are served by one snapshot."""

    token: str
    schema: str
    table: str
    columns: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] = ()
    values: SnapshotValues | None = None

    @property
    def columns_named(self) -> frozenset[str]:
        """Every column that the request names."""
        return frozenset(self.columns or ()) | {condition.column for condition in self.conditions}


def parse_request(subject: str, payload: bytes) -> SnapshotRequest:
    """The request of one message."""
    token = subject.removeprefix(_PREFIX)
    try:
        schema, table = split_table_token(token)
    except DecodeError as error:
        raise RequestError(
            str(error),
            remedy=(
                "Send the request to snapshot.request.{table}, for a schema other than "
                "public to snapshot.request.{schema}=2F{table}; any byte outside A-Z a-z "
                "0-9 _ - is written =XX."
            ),
        ) from error
    if len(payload) > REQUEST_BYTES_MAX:
        raise RequestError(f"a request of {len(payload)} bytes, more than {REQUEST_BYTES_MAX}")
    options = _options(payload) if payload else {}
    return SnapshotRequest(
        token,
        schema,
        table,
        _columns(options),
        parse_conditions(options.get("filter")),
        _values(options.get("values")),
    )


def _options(payload: bytes) -> dict[str, Any]:
    try:
        # If it were compressed, a few bytes could expand to fill the memory.
        options = decode(payload, REQUEST_BYTES_MAX)
    except DecodeError as error:
        raise RequestError("the payload is neither MessagePack nor JSON") from error
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise RequestError("the payload is not a map of options")
    if unknown := sorted(set(options) - _OPTIONS):
        raise RequestError(f"unknown options: {', '.join(unknown)}")
    return options


def _columns(options: dict[str, Any]) -> tuple[str, ...] | None:
    columns = options.get("columns")
    if columns is None:
        return None
    if (
        not isinstance(columns, list)
        or not columns
        or not all(_is_name(column) for column in columns)
    ):
        raise RequestError("columns is not a list of names")
    if len(set(columns)) != len(columns):
        raise RequestError("columns names one column twice")
    return tuple(columns)


def _values(values: Any) -> SnapshotValues | None:
    if values is None:
        return None
    try:
        return SnapshotValues(values)
    except ValueError as error:
        raise RequestError("values is neither typed nor text") from error


def parse_conditions(conditions: Any) -> tuple[Condition, ...]:
    """The conditions of a request's `filter`, or of a sink's `where`."""
    if conditions is None:
        return ()
    if not isinstance(conditions, list):
        raise RequestError("filter is not a list of [column, operator, value]")
    return tuple(_condition(condition) for condition in conditions)


def _condition(condition: Any) -> Condition:
    match condition:
        case [str(column), str(operator)] if operator.lower() in _NULL_TESTS and _is_name(column):
            return Condition(column, operator.lower())
        case [str(column), str(operator), value] if operator in _COMPARISONS and _is_name(column):
            return Condition(column, operator, _scalar(value))
        # Not an empty list: `IN ()` is a syntax error.
        case [str(column), "in", list(values)] if values and _is_name(column):
            return Condition(column, "in", tuple(_scalar(value) for value in values))
        case _:
            raise RequestError(
                "a condition of filter is not [column, operator, value] with one of = <> < <= > >= "
                "in, nor "
                "[column, 'is null'] or [column, 'is not null']"
            )


def _scalar(value: Any) -> Scalar:
    # PostgreSQL's text can't contain NUL.
    if isinstance(value, str) and "\0" not in value:
        return value
    if isinstance(value, bool | int | float):
        return value
    raise RequestError("a condition's value is not text, a number or a boolean")


def _is_name(column: object) -> bool:
    return isinstance(column, str) and len(column) > 0 and "\0" not in column


def _literal(value: Scalar) -> str:
    if isinstance(value, bool):
        if value:
            return "'t'"
        return "'f'"
    return quote_literal(str(value))
