"""PostgreSQL's text of a value, and the value that a mirror must have for it.

Written from docs/mirror.md and docs/contract.md, only for the verifier: shares no conversion with
the services, whose mistakes it exists to find. A form maps both sides of a comparison to one value;
equal values have equal forms.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.verify.types import SqlType

Form = Callable[[Any], Any]

_INTEGERS = frozenset({"smallint", "integer", "bigint", "oid"})
_FLOATS = frozenset({"real", "double precision"})
_DOCUMENTS = frozenset({"json", "jsonb"})
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)(\+00)?")
_TIME_WITH_ZONE = re.compile(r"(.*[+-]\d\d)((?::\d\d)*)")
# Python's parser and `_written` are recursive. A deeper document is compared as text.
_NESTING_MAX = 300
# 1e100000 would otherwise be written with all its zeros.
_SHOWN_DIGITS_MAX = 2000
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|\s+', re.DOTALL)
_BOUNDS = re.compile(r"(?:\[-?\d+:-?\d+\])+=")


def same(value: Any) -> Any:
    return value


def in_postgres(source: SqlType, mirror: str, *, lists: bool) -> Form | None:
    """For the texts of both PostgreSQLs; None where equal values have equal texts."""
    if source.name == "json" or (source.name == "jsonb" and mirror != "jsonb"):
        # `json` keeps its writer's blanks and order of names, which a mirror need not keep
        # (docs/adr/0024).
        return meaning
    if source.name == mirror:
        return None
    # A type of the source's own: stored as text, in the contract's form.
    if source.element is not None:
        if lists:
            return _array(source, in_contract)
        return None
    return in_contract(source)


def in_contract(source: SqlType) -> Form | None:
    """For a value that a mirror keeps as text; also right where it is in the contract's form
    already.
    """
    name = source.name
    if name in _DOCUMENTS:
        return meaning
    if name in _FLOATS:
        return _float
    if name.startswith("timestamp"):
        return _timestamp
    return {"time with time zone": _time_with_zone, "money": _money}.get(name)


def in_sqlite(source: SqlType, *, lists: bool) -> tuple[Form, Form]:
    """For the source's text, and for what SQLite has."""
    name = source.name
    if source.element is not None:
        form = _array(source, _element) if lists else same
        return form, form
    if name in _DOCUMENTS:
        return meaning, meaning
    if name in _INTEGERS:
        return int, same
    if name in _FLOATS:
        return _float, _stored_float
    readers: dict[str, Form] = {"boolean": _boolean, "bytea": _bytes}
    return readers.get(name) or in_contract(source) or same, same


def _boolean(text: str) -> Any:
    return {"t": 1, "f": 0}[text]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _float(text: Any) -> Any:
    number = float(text)
    # NaN equals nothing, and SQLite keeps its name; neither target has to keep the sign of a zero.
    if math.isnan(number):
        return "NaN"
    return number + 0.0


def _stored_float(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    return value


def _timestamp(text: str) -> str:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        # Infinity, BC and years of five digits are PostgreSQL's own text.
        return text
    return f"{match[1]}T{match[2]}{'Z' if match[3] else ''}"


def _time_with_zone(text: str) -> str:
    match = _TIME_WITH_ZONE.fullmatch(text)
    if match is None:
        return text
    return f"{match[1]}{match[2] or ':00'}"


def _money(text: str) -> str:
    return text.replace("$", "").replace(",", "")


class _Number(str):
    """A number's digits, which are not a string."""

    __slots__ = ()


def meaning(value: Any) -> Any:
    """A document by its meaning: without blanks, with sorted names, each number with all its
    digits.
    """
    if not isinstance(value, str):
        return value
    depth = 0
    deepest = 0
    for token in _TOKENS.finditer(value):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        deepest = max(deepest, depth)
    if deepest > _NESTING_MAX:
        return _BLANKS.sub(lambda match: match[1] or "", value)
    try:
        # Digits as text: two different numbers may round to the same double.
        document = json.loads(
            value, parse_int=_Number, parse_float=_Number, parse_constant=_refused
        )
    except ValueError:
        # An error would end the verification of the whole table. This text equals only the same
        # text.
        return f"not json: {value}"
    return _written(document)


def _refused(name: str) -> Any:
    raise ValueError(name)


def _written(document: Any) -> str:
    if isinstance(document, _Number):
        return _digits(document)
    if isinstance(document, dict):
        return (
            "{"
            + ",".join(
                f"{json.dumps(name)}:{_written(document[name])}" for name in sorted(document)
            )
            + "}"
        )
    if isinstance(document, list):
        return "[" + ",".join(map(_written, document)) + "]"
    return json.dumps(document)


def _digits(text: str) -> str:
    """As jsonb writes them: 1e2 is 100, 1.50 keeps its zero, and 0 has no sign."""
    number = Decimal(text)
    if not number:
        number = abs(number)
    if abs(number.adjusted()) > _SHOWN_DIGITS_MAX:
        return str(number)
    return format(number, "f")


def _boolean_element(value: Any) -> Any:
    if isinstance(value, str):
        return {"t": True, "f": False}.get(value, value)
    return value


def _element(source: SqlType) -> Form | None:
    """An element that SQLite has as JSON, in a list, or the source as text."""
    if source.name == "boolean":
        return _boolean_element
    if source.name in _INTEGERS:
        return int
    return in_contract(source)


def _array(source: SqlType, of: Callable[[SqlType], Form | None]) -> Form:
    """Nested lists, from PostgreSQL's literal or from JSON; bounds are left out."""
    element = source.element
    assert element is not None
    form = of(element) or same
    delimiter = element.delimiter

    def listed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        literal = _BOUNDS.sub("", value, count=1)
        if literal.startswith("{"):
            items = parsed(literal, delimiter)
        else:
            items = json.loads(value)
        return _mapped(items, form)

    return listed


def _mapped(items: Any, form: Form) -> Any:
    if isinstance(items, list):
        return tuple(_mapped(item, form) for item in items)
    if isinstance(items, dict | list):
        items = json.dumps(items)
    if items is None:
        return None
    return form(items)


def parsed(literal: str, delimiter: str) -> list[Any]:
    """PostgreSQL's array literal as lists of texts."""
    stack: list[list[Any]] = [[]]
    mark = re.escape(delimiter)
    tokens = re.compile(
        rf'"((?:[^"\\]|\\.)*)"|([{{}}{mark}])|((?:[^"{{}}{mark}\\]|\\.)+)', re.DOTALL
    )
    for match in tokens.finditer(literal):
        if match[2] == "{":
            stack.append([])
        elif match[2] == "}":
            done = stack.pop()
            stack[-1].append(done)
        elif match[3] is not None:
            stack[-1].append(None if match[3].upper() == "NULL" else _unescaped(match[3]))
        elif match[1] is not None:
            stack[-1].append(_unescaped(match[1]))
    (found,) = stack[0]
    return list(found)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
