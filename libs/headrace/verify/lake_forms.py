"""PostgreSQL's text of a value, the value that the lake must have for it, and the value of a key in
the archive, each in one comparable form.

Written from docs/contract.md and the lake's page, only for the verifier: shares no conversion with
the lake-writer. The form is the contract's text, or a Python value that has one text only.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    TimestampType,
    TimestamptzType,
)

from headrace.verify.forms import Form, in_contract, meaning, parsed, same
from headrace.verify.types import SqlType

_LITERAL = ("[", "{{")


class PrintedText(str):
    """PostgreSQL's text of a value that its column in the lake can't hold."""

    __slots__ = ()


def in_lake(source: SqlType, stored: IcebergType) -> tuple[Form, Form]:
    """For the source's text, and for what the lake's column has."""
    there = _from_source(source, stored)
    here = _from_lake(source, stored)
    return there, lambda value: there(value) if isinstance(value, PrintedText) else here(value)


def in_archive_key(source: SqlType, stored: IcebergType) -> Form:
    """For a value of a key in the archive's JSON."""
    if isinstance(stored, BooleanType):
        return same
    if isinstance(stored, BinaryType):
        return base64.b64decode
    from_source = _from_source(source, stored)
    return lambda value: from_source(_printed(value))


def _printed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _from_source(source: SqlType, stored: IcebergType) -> Form:
    if isinstance(stored, ListType):
        return _literal(source, stored)
    match stored:
        case IntegerType() | LongType():
            return int
        case BooleanType():
            return lambda text: {"t": True, "f": False}[text]
        case FloatType():
            return lambda text: _number(np.float32(text))
        case DoubleType():
            return lambda text: _number(float(text))
        case BinaryType():
            return _bytes
        case DecimalType() | DateType() | TimestampType() | TimestamptzType():
            return in_contract(source) or same
    return _string(source)


def _from_lake(source: SqlType, stored: IcebergType) -> Form:
    if isinstance(stored, ListType):
        element = _from_lake(_element(source), stored.element_type)
        return lambda values: tuple(None if each is None else element(each) for each in values)
    match stored:
        case IntegerType() | LongType() | BooleanType() | BinaryType():
            return same
        case FloatType() | DoubleType():
            return _number
        case DecimalType():
            return _decimal
        case DateType():
            return date.isoformat
        case TimestampType():
            return _moment
        case TimestamptzType():
            return lambda value: f"{_moment(value.replace(tzinfo=None))}Z"
    return _string(source)


def _element(source: SqlType) -> SqlType:
    assert source.element is not None, "the lake has a list only for an array"
    return source.element


def _literal(source: SqlType, stored: ListType) -> Form:
    """One dimension, whose bounds start at 1, is a list; any other value is its text."""
    element = _element(source)
    form = _from_source(element, stored.element_type)

    def listed(text: str) -> Any:
        if text.startswith(_LITERAL):
            return text
        values = parsed(text, element.delimiter)
        return tuple(None if each is None else form(each) for each in values)

    return listed


def _string(source: SqlType) -> Form:
    """For a type that the lake has as text; a domain's is in the form of its base type."""
    name = source.name
    if name == "boolean":
        return lambda text: {"t": "true", "f": "false"}.get(text, text)
    if name == "bytea":
        return _domain_bytes
    if name in ("json", "jsonb") and source.domain:
        return _domain_document
    return in_contract(source) or same


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _domain_bytes(text: str) -> Any:
    """From PostgreSQL's text, or base64."""
    if text.startswith("\\x"):
        return _bytes(text)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return text


def _domain_document(text: str) -> str:
    """A string's content, with or without its quotes; the meaning of any other document."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    return document if isinstance(document, str) else str(meaning(text))


def _number(value: Any) -> Any:
    # NaN equals nothing.
    number = float(value)
    return "NaN" if number != number else number  # noqa: PLR0124  # this is the test


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _moment(value: datetime) -> str:
    text = value.isoformat("T")
    return text.rstrip("0") if value.microsecond else text
