"""The keys of a `[[sink]]`, each with the function that checks its value."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from headrace.contract.table_patterns import names_table
from headrace.sinks.conditions import RowTest, check_literal, literal_of
from headrace.sinks.formats import Format
from headrace.sinks.targets import imported
from headrace.sinks.templates import template
from headrace.spark.request import parse_conditions

_EVERY = "*.*"
# PostgreSQL cuts off longer names, and the other targets have room for these.
_NAME_BYTES = 63


class BadValueError(ValueError):
    """A key has another kind of value."""


class OnError(StrEnum):
    """The treatment of a record that the target refuses."""

    STOP = "stop"
    PARK = "park"


class Initial(StrEnum):
    """Whether a new sink receives the rows that exist already."""

    NEVER = "never"
    INITIAL = "initial"


class SinkOperation(StrEnum):
    """The events that a sink may ask for; gaps always come."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    SCHEMA = "schema"
    MESSAGE = "message"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValueError("is not a text: write one in quotes")
    if not value:
        raise BadValueError("is empty: write a text, or leave the key out")
    return value


def _address(value: object) -> str:
    text = _text(value)
    if re.match(r"[a-z0-9+-]+://[^/@]*:[^/@]*@", text):
        raise BadValueError(
            "contains a password: put it into an option, or write `env:NAME` for the whole address"
        )
    return text


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise BadValueError('is not a list of texts: write one such as ["id", "name"]')
    return tuple(value)


def _patterns(value: object) -> tuple[str, ...]:
    patterns = _texts(value)
    for pattern in patterns:
        # Raises for a malformed one.
        names_table(pattern, "", "")
    return patterns


def _template(value: object) -> str:
    template(_text(value))
    return str(value)


def _function(value: object) -> str:
    text = _text(value)
    try:
        found = imported(text)
    except ImportError as error:
        raise BadValueError(f"{text} can't be imported: {error}") from error
    if not callable(found):
        raise BadValueError(f"{text} is not a function")
    return text


def _choice(kind: type[StrEnum]) -> Callable[[object], StrEnum]:
    def read(value: object) -> StrEnum:
        try:
            return kind(str(value))
        except ValueError:
            raise BadValueError(f"{value!r} is not one of {', '.join(kind)}") from None

    return read


def _operations(value: object) -> tuple[StrEnum, ...]:
    read = _choice(SinkOperation)
    return tuple(read(one) for one in _texts(value))


def _by_table(
    read: Callable[[object], tuple[Any, ...]],
) -> Callable[[object], dict[str, tuple[Any, ...]]]:
    """A value for all tables, or a table of TOML with a value for each pattern."""

    def read_all(value: object) -> dict[str, tuple[Any, ...]]:
        if not isinstance(value, dict):
            return {_EVERY: read(value)}
        _patterns(list(value))
        return {pattern: read(one) for pattern, one in value.items()}

    return read_all


def _where(value: object) -> tuple[RowTest, ...]:
    conditions = parse_conditions(literal_of(value))
    tests = tuple(RowTest(one.column, one.operator, one.value) for one in conditions)
    for test in tests:
        check_literal(test)
    return tests


def _batch(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise BadValueError("is not a table of events, wait_ms and timeout_s")
    for name, one in value.items():
        if name not in {"events", "wait_ms", "timeout_s"}:
            raise BadValueError(f"has no key {name}; they are events, wait_ms and timeout_s")
        if isinstance(one, bool) or not isinstance(one, int | float) or one < 0:
            raise BadValueError(f"{name} is not a number")
        if one == 0 and name != "wait_ms":
            raise BadValueError(f"{name} is less than 1")
    return value


def _column(value: object) -> str:
    text = _text(value)
    if len(text.encode()) > _NAME_BYTES:
        raise BadValueError(f"is longer than the {_NAME_BYTES} bytes of a column's name")
    return text


def _switch(value: object) -> bool:
    # A variable is a text.
    known = {True: True, False: False, "true": True, "false": False}
    if not isinstance(value, bool | str) or value not in known:
        raise BadValueError("is not true or false")
    return known[value]


def _options(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadValueError("is not a table")
    return value


# By key: the field, and the function that checks its value.
KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "name": ("name", _text),
    "to": ("to", _address),
    "tables": ("tables", _patterns),
    "operations": ("operations", _operations),
    "columns": ("columns", _by_table(_texts)),
    "where": ("where", _by_table(_where)),
    "key": ("key", _texts),
    "destination": ("destination", _template),
    "topic": ("destination", _template),
    "subject": ("destination", _template),
    "index": ("destination", _template),
    "format": ("format", _choice(Format)),
    "snapshot": ("snapshot", _choice(Initial)),
    "batch": ("batch", _batch),
    "on_error": ("on_error", _choice(OnError)),
    "function": ("function", _function),
    "options": ("options", _options),
    "soft_delete": ("soft_delete", _column),
    "history": ("history", _switch),
}
# Those of a sink whose target is a database; the last ones are of no other sink.
TABLE_KEYS = ("soft_delete", "history")
DATABASE_KEYS = (
    *("name", "to", "tables", "columns", "destination", "snapshot", "on_error", "options"),
    *TABLE_KEYS,
)
