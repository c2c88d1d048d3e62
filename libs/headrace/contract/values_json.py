"""A json or jsonb value in an event: native for MessagePack, embedded for JSON.

Promises that no digit is lost: in native form an integer of 64 bits is an int, a number whose nearest double prints as
the same number is a float (1.10, 0.1, 1e22), and any other (1e400, 12345678901234567890123) is a string of its digits.
Duplicate keys: the last one counts in native form; embedded text keeps them all.

A document that the form can't carry is given as its text, in a string, and never stops the stream: one nested deeper
than `NESTING_MAX` (in both encodings: a consumer's parser would refuse the whole message), and in native form one with
a lone surrogate (`"\\ud800"`), which no UTF-8 string can hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal

import orjson

from headrace.contract.scalars import text
from headrace.errors import DecodeError

NESTING_MAX = 500
"""Half of what MessagePack's and JSON's readers in Python take, since the event around it nests too."""

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1
_INT_DIGITS_MAX = 20

# Digits and the point become 0, both exponent letters e: then two searches tell whether a number could be inexact.
_NUMBER_SHAPE = bytes.maketrans(b"123456789.E", b"0000000000e")
_LONG_NUMBER = b"0" * 17
_EXPONENT = b"0e"

# One that stands where a value may: a name is never a number.
_DIGITS = re.compile(rb"(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?![0-9.eE+-]|\s*:)")

_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def native_json(value: bytes) -> object:
    """What MessagePack packs for PostgreSQL's text of a json or jsonb."""
    if _too_deep(value):
        return text(value)
    shape = value.translate(_NUMBER_SHAPE)
    exact = value if _LONG_NUMBER not in shape and _EXPONENT not in shape else _with_digits(value, shape)
    if exact is not None:
        try:
            return orjson.loads(exact)
        except orjson.JSONDecodeError:
            pass  # a lone surrogate, or not JSON at all: told apart below
    return _exact_json(text(value))


def _with_digits(value: bytes, shape: bytes) -> bytes | None:
    """The same document with its inexact numbers as strings of their digits; None where that takes a closer look.

    In a third of the time of `_exact_json`, which is the oracle of its test. What looks like a number is looked for,
    and not each token: without escapes, the quotes before it tell whether it is in a string.
    """
    if b"\\" in value:
        return None
    parts: list[bytes] = []
    done, at, long, exponent = 0, 0, -2, -2
    while True:
        # Each is looked for again only when it was passed: many of one kind don't make the other's search long.
        long = shape.find(_LONG_NUMBER, at) if -1 != long < at else long
        exponent = shape.find(_EXPONENT, at) if -1 != exponent < at else exponent
        if long < 0 and exponent < 0:
            return b"".join((*parts, value[done:]))
        found = max(long, exponent) if min(long, exponent) < 0 else min(long, exponent)
        if value.count(b'"', at, found) % 2:
            at = value.find(b'"', found) + 1
            if not at:
                return None
            continue
        number = _DIGITS.match(value, found)
        if number is None or found == exponent:
            return None
        start = found - (value[found - 1 : found] == b"-")
        parts += [value[done:start], _as_json(value[start : number.end()].decode())]
        done = at = number.end()


def _as_json(digits: str) -> bytes:
    number = _exact_number(digits) if "." in digits else _exact_int(digits)
    return b'"%b"' % number.encode() if isinstance(number, str) else repr(number).encode()


def native_documents(values: Sequence[bytes]) -> list[object] | None:
    """`native_json` of each at a third of the cost; None where one of them needs a closer look."""
    whole = b"[%b]" % b",".join(values)
    shape = whole.translate(_NUMBER_SHAPE)
    if _LONG_NUMBER in shape or _EXPONENT in shape:
        return None
    # What nests too deeply has a bracket on both sides for each level.
    if any(len(value) > 2 * NESTING_MAX and _too_deep(value) for value in values):
        return None
    try:
        documents: list[object] = orjson.loads(whole)
    except orjson.JSONDecodeError:
        return None
    return documents if len(documents) == len(values) else None


def embedded_json(value: bytes) -> object:
    """What orjson writes for it: the text as it is, or a string where it is nested too deeply."""
    checked = text(value)
    return checked if _too_deep(value) else orjson.Fragment(value)


def _exact_json(source: str) -> object:
    try:
        document: object = json.loads(
            source, parse_int=_exact_int, parse_float=_exact_number, parse_constant=_no_constant
        )
    except ValueError:
        raise DecodeError(f"a json value of {len(source)} characters is not JSON") from None
    except RecursionError:  # called from too deep a stack for even NESTING_MAX
        return source
    return source if _SURROGATE.search(source) and not _is_utf8(document) else document


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _is_utf8(document: object) -> bool:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _exact_int(digits: str) -> int | float | str:
    if len(digits) <= _INT_DIGITS_MAX and _INT64_MIN <= (number := int(digits)) <= _UINT64_MAX:
        return number
    return _exact_number(digits)


def _exact_number(digits: str) -> float | str:
    """The double, where its shortest decimal form is the same number; else the digits."""
    number = float(digits)
    if number == 0:
        mantissa = digits.lower().partition("e")[0]
        return number if not mantissa.strip("-0.") else digits
    if number in (float("inf"), float("-inf")) or Decimal(repr(number)) != Decimal(digits):
        return digits
    return number


def _too_deep(value: bytes) -> bool:
    if value.count(b"[") + value.count(b"{") <= NESTING_MAX:
        return False
    depth = 0
    for token in _BRACKETS.finditer(value):
        mark = token[0]
        depth += mark in (b"[", b"{")
        depth -= mark in (b"]", b"}")
        if depth > NESTING_MAX:
            return True
    return False
