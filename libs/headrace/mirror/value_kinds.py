"""The kind of values in a column of a PostgreSQL type, as far as other databases care. Pure."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from typing import Any

from headrace.contract.exact import ExactText

# Digits only: the rest of a type goes into SQL unchanged.
_BASE = re.compile(r"\([0-9, -]*\)")
_INTEGERS = frozenset({"smallint", "integer", "bigint", "oid"})
_FLOATS = frozenset({"real", "double precision"})
# Types that every PostgreSQL has under the same name, with input functions that read the contract's
# text.
_PORTABLE = (
    _INTEGERS
    | _FLOATS
    | {
        "boolean",
        "bytea",
        "json",
        "jsonb",
        "numeric",
        "money",
        "text",
        "character varying",
        "character",
        "name",
    }
    | {
        '"char"',
        "uuid",
        "bit",
        "bit varying",
        "date",
        "interval",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "pg_lsn",
    }
    | {
        "timestamp without time zone",
        "timestamp with time zone",
        "time without time zone",
        "time with time zone",
    }
    | {"int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"}
    | {
        "int4multirange",
        "int8multirange",
        "nummultirange",
        "tsmultirange",
        "tstzmultirange",
        "datemultirange",
    }
    | {"tsvector", "tsquery", "point", "line", "lseg", "box", "path", "polygon", "circle"}
)


# Python writes 1e-7, which PostgreSQL writes out; strings are skipped.
_POWERS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9.]+e[+-][0-9]+')

# Characters for which an array literal quotes an element.
_QUOTED = re.compile(r'[{}",\\ \t\n\v\f\r]')
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class ValueKind(StrEnum):
    """The kind of a value, in any database."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"
    BYTES = "bytes"
    JSON = "json"
    TEXT = "text"
    # A type of the source's own: a domain's value has its base type's form, any other is text.
    UNKNOWN = "unknown"


def kind_of(data_type: str) -> ValueKind:
    base = base_of(data_type)
    if base in _INTEGERS:
        return ValueKind.INTEGER
    if base in _FLOATS:
        return ValueKind.FLOAT
    if base in {"json", "jsonb"}:
        return ValueKind.JSON
    if base == "boolean":
        return ValueKind.BOOL
    if base == "bytea":
        return ValueKind.BYTES
    if base.removesuffix("[]") in _PORTABLE:
        return ValueKind.TEXT
    return ValueKind.UNKNOWN


def base_of(data_type: str) -> str:
    """The type without its modifier: `numeric(10,2)` becomes numeric, `timestamp(3) with time zone`
    loses the 3.
    """
    return _BASE.sub("", data_type)


def is_portable(data_type: str) -> bool:
    """Whether another PostgreSQL has this type too."""
    return base_of(data_type).removesuffix("[]") in _PORTABLE


def as_bytes(value: Any) -> bytes:
    """bytea: bin in MessagePack, base64 in JSON."""
    if isinstance(value, bytes):
        return value
    return base64.b64decode(value)


def as_json(value: Any) -> str:
    """A document as PostgreSQL's jsonb prints it, from an event's value that is not NULL (or has
    its exact text).
    """
    if isinstance(value, ExactText):
        return str(value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if "e-" in text or "e+" in text:
        text = _POWERS.sub(_without_power, text)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which json (not jsonb) may contain, can only be written as its
        # escape.
        return json.dumps(value, allow_nan=False)
    return text


def _without_power(match: re.Match[str]) -> str:
    if match[0].startswith('"'):
        return match[0]
    return format(Decimal(match[0]), "f")


def array_literal(value: list[Any], element: Callable[[Any], str]) -> str:
    """PostgreSQL's literal of an array that came as lists; `element` converts one value to text."""
    return "{" + ",".join(_literal(item, element) for item in value) + "}"


def _literal(item: Any, element: Callable[[Any], str]) -> str:
    if item is None:
        return "NULL"
    # A document that is a list comes with the array's exact text, so this is a dimension.
    if isinstance(item, list):
        return array_literal(item, element)
    text = element(item)
    if text and text.upper() != "NULL" and not _QUOTED.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_list(value: list[Any]) -> str:
    """An array that came as lists, in the contract's JSON form."""
    return as_json([_plain(item) for item in value])


def _plain(item: Any) -> Any:
    if isinstance(item, list):
        return [_plain(inner) for inner in item]
    if isinstance(item, bytes):
        return base64.b64encode(item).decode()
    if isinstance(item, float) and not math.isfinite(item):
        return _NAMES[str(item)]
    return item
