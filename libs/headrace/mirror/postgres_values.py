"""A column's type in a PostgreSQL mirror, and its values as text for PostgreSQL to parse. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.mirror.value_kinds import (
    ValueKind,
    array_literal,
    as_bytes,
    as_json,
    is_portable,
    kind_of,
)


def type_in(data_type: str) -> str:
    """The column's type in the mirror."""
    if is_portable(data_type):
        return data_type
    return "text"


def _bool(value: Any) -> str:
    if value:
        return "t"
    return "f"


def _bytea(value: Any) -> str:
    return "\\x" + as_bytes(value).hex()


def _any(value: Any) -> str:
    # By far the most values.
    if type(value) is str:
        return value
    if isinstance(value, bool):
        return _bool(value)
    if isinstance(value, dict):
        return as_json(value)
    if isinstance(value, list):
        return array_literal(value, _any)
    if isinstance(value, bytes):
        return _bytea(value)
    return str(value)


_TEXTS: Mapping[ValueKind, Callable[[Any], str]] = {
    ValueKind.BOOL: _bool,
    ValueKind.BYTES: _bytea,
    ValueKind.JSON: as_json,
}


def text_of(data_type: str) -> Callable[[Any], str]:
    """A value that is not NULL, as text that PostgreSQL can parse."""
    if data_type.endswith("[]"):
        element = text_of(data_type.removesuffix("[]"))
        return lambda value: (
            array_literal(value, element) if isinstance(value, list) else str(value)
        )
    return _TEXTS.get(kind_of(data_type), _any)
