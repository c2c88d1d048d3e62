"""A json or jsonb value in an event: native in MessagePack, embedded in JSON.

In native form an integer of 64 bits is an int, a number whose nearest double prints as the same
number is a float (1.10, 0.1, 1e22), and any other (1e400, 12345678901234567890123) is a string of
its digits. Of duplicate keys the last one counts in native form; embedded text keeps them all.

A document that the form can't express becomes its text, in a string, and never stops the stream:
one nested deeper than `NESTING_MAX` (in both encodings: a consumer's parser would refuse the whole
message), and in native form one with a lone surrogate (`"\ud800"`), which no UTF-8 string can
contain.

Nothing is lost if the native form, written as JSON with the shortest digits of each double, is the
same document to PostgreSQL. Otherwise the value is `Inexact`: `null` (SQL's NULL looks the same),
`1.50`, anything that became a string, and in `json`, which preserves its text, a duplicate key or a
number with an exponent. Spaces have no meaning.

The fast path reads the document and writes it again: if the text is the same except for spaces,
nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal

import orjson

from headrace.contract.exact import Inexact
from headrace.contract.scalars import text
from headrace.errors import DecodeError

NESTING_MAX = 500
"""Half the limit of Python's MessagePack and JSON parsers, since the event nests too."""

_INT64_MIN = -(2**63)
_UINT64_MAX = 2**64 - 1
# 2**64 has 20 digits. `int` refuses texts of more than 4,300 digits with a ValueError, which would
# look like malformed JSON.
_INT_DIGITS_MAX = 20

# Whole strings are matched too, so that brackets inside them don't count.
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
# PostgreSQL's text is valid UTF-8, so only an escape can denote half of a pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACES = b" \t\n\r"


def native_json(value: bytes) -> object:
    """MessagePack's value for PostgreSQL's text of a json or jsonb."""
    if _too_deep(value):
        return _as_text(value)
    document = _same_when_written(value)
    if document is None:
        return _looked_at(text(value))
    return document


def embedded_json(value: bytes) -> object:
    """orjson's value for it: the text as it is, or a string if it is nested too deeply."""
    if _too_deep(value):
        return _as_text(value)
    checked = text(value)
    embedded = orjson.Fragment(value)
    # The embedded text has every digit, but ordinary parsers round it (docs/adr/0019).
    if _same_when_written(value) is None and isinstance(_looked_at(checked), Inexact):
        return Inexact(embedded, checked)
    return embedded


def native_documents(values: Sequence[bytes | None]) -> list[object] | None:
    """`native_json` of each (NULL as None) at a third of the cost; None if one of them needs a
    closer look.
    """
    # A document that is nested too deeply has a bracket on both sides for each level.
    if any(
        value is not None and len(value) > 2 * NESTING_MAX and _too_deep(value) for value in values
    ):
        return None
    whole = b"[%b]" % b",".join([b"null" if value is None else value for value in values])
    documents = _same_when_written(whole)
    if not isinstance(documents, list) or len(documents) != len(values):
        return None
    # A document `null` among them looks like NULL here, and only the closer look marks it.
    if documents.count(None) == values.count(None):
        return documents
    return None


def exact_numbers(value: bytes) -> object:
    """A JSON text, with numbers that neither 64 bits nor a double can hold as strings of their
    digits.
    """
    document = _same_when_written(value)
    if document is None:
        return _Look().read(value.decode())
    return document


def _as_text(value: bytes) -> Inexact:
    whole = text(value)
    return Inexact(whole, whole)


def _same_when_written(value: bytes) -> object:
    """The document, if writing it again gives the same text except for spaces; else, and for
    `null`, None.
    """
    try:
        document: object = orjson.loads(value)
        written = orjson.dumps(document)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    # Spaces inside strings go as well, on both sides, where the strings are the same.
    if written.translate(None, _SPACES) == value.translate(None, _SPACES):
        return document
    return None


class _Look:
    """Checks each number and each key of a document."""

    def __init__(self) -> None:
        self.lost = False

    def read(self, source: str) -> object:
        # Python's parser accepts NaN and Infinity, which are not JSON.
        document: object = json.loads(
            source,
            parse_int=self._int,
            parse_float=self._float,
            parse_constant=_no_constant,
            object_pairs_hook=self._object,
        )
        return document

    def _int(self, digits: str) -> int | float | str:
        return self._noted(_exact_int(digits), digits)

    def _float(self, digits: str) -> int | float | str:
        return self._noted(_exact_number(digits), digits)

    def _noted(self, number: float | str, digits: str) -> int | float | str:
        self.lost = self.lost or not _prints_as(number, digits)
        return number

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        self.lost = self.lost or len(made) < len(pairs)
        return made


def _looked_at(source: str) -> object:
    look = _Look()
    try:
        document = look.read(source)
    except ValueError:
        raise DecodeError(f"a json value of {len(source)} characters is not JSON") from None
    except RecursionError:  # called from too deep a stack for even NESTING_MAX
        return Inexact(source, source)
    # Two escapes that form a pair are one character: only the decoded text shows a half.
    if _SURROGATE.search(source) and not _is_utf8(document):
        return Inexact(source, source)
    if look.lost or document is None:
        return Inexact(document, source)
    return document


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
    """The double, if its shortest decimal form is the same number; else the digits."""
    number = float(digits)
    if number == 0:
        # The double is also 0 for a number too small for it (1e-400), which is not zero.
        mantissa = digits.lower().partition("e")[0]
        if not mantissa.strip("-0."):
            return number
        return digits
    if number in (float("inf"), float("-inf")) or Decimal(repr(number)) != Decimal(digits):
        return digits
    return number


def _prints_as(number: float | str, digits: str) -> bool:
    """Whether the number, written as JSON, is the same to PostgreSQL, which keeps trailing zeros of
    a fraction.
    """
    printed = repr(number)
    if printed == digits:
        return True
    # Python writes an exponent from 1e16 on, and PostgreSQL all digits: then the scale decides.
    if not isinstance(number, float) or "e" not in printed or "e" in digits.lower():
        return False
    return _scale(printed) == _scale(digits)


def _scale(digits: str) -> int:
    exponent = Decimal(digits).as_tuple().exponent
    if isinstance(exponent, int):
        return max(0, -exponent)
    return 0


def _too_deep(value: bytes) -> bool:
    # The number of brackets is an upper limit of the depth, and cheaper to find.
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
