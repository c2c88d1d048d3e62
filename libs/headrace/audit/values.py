"""A change's values as JSON text that PostgreSQL accepts as jsonb, escaped once for COPY. Pure.

Promises that every value of an event has a form: text that jsonb refuses (the character U+0000,
half a surrogate pair) becomes the six characters of its escape; NaN and the infinities are strings,
bytes are PostgreSQL's `\\x…`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

_REFUSED = re.compile("[\x00\ud800-\udfff]")
# Content of json that jsonb refuses, or may refuse: some escapes, numbers beyond numeric's range.
_NOT_JSONB = re.compile(r"\\u|[0-9][eE][+-]?[0-9]{4}|[0-9.]{16000}")
_EXPONENT = re.compile(r"[0-9][eE]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# Its digits before the point, and behind it.
_NUMERIC_MOST = 131_000
_NUMERIC_LEAST = -16_000
# The end of bemi-sqlalchemy's comments, after the context's own fields.
_STATEMENT = ', "SQL":'
_NESTED_MAX = 20
TEXT_KEY = "_text"
EMPTY = b"{}"


def row_json(values: Mapping[str, Any], exact: Mapping[str, str] | None = None) -> bytes:
    """The JSON object of a row's values; `exact` contains the text of values whose own form loses
    information.
    """
    try:
        text = orjson.dumps(_with_texts(values, exact) if exact else values, default=_hex)
    except TypeError:
        # Half a surrogate pair, or an integer beyond 64 bits.
        return _slowly(values)
    # orjson writes NaN as null, and a NUL as an escape that jsonb refuses.
    if b"\\u0000" in text or (b"null" in text and _has_nonfinite(values)):
        return _slowly(values)
    return text


def _with_texts(values: Mapping[str, Any], exact: Mapping[str, str]) -> dict[str, Any]:
    """The values with these documents in their exact text, as far as jsonb accepts it."""
    documents = {
        name: orjson.Fragment(text)
        for name, text in exact.items()
        if _is_document(text, values[name])
    }
    return {**values, **documents}


def _is_document(text: str, native: object) -> bool:
    """Whether jsonb accepts it; the text of an array that came as a list is not a document, though
    `{}` looks like one.
    """
    if _NOT_JSONB.search(text):
        return False
    try:
        document = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return not isinstance(native, list) or isinstance(document, list)


def not_in_jsonb(values: Mapping[str, Any]) -> dict[str, str]:
    """The text of documents with content that jsonb refuses: only the type json allows it."""
    found = {
        name: value
        for name, value in values.items()
        if not isinstance(value, bytes) and _is_refused(value)
    }
    return {name: json.dumps(value) for name, value in found.items()}


def _is_refused(value: object) -> bool:
    if isinstance(value, str):
        return _REFUSED.search(value) is not None
    if isinstance(value, Mapping):
        return any(_is_refused(str(name)) or _is_refused(one) for name, one in value.items())
    return isinstance(value, list) and any(_is_refused(one) for one in value)


def context_json(text: str) -> bytes:
    """A context message's JSON; other text is stored under `_text`, and null is an empty object."""
    try:
        raw = text.encode()
        parsed = _parsed(raw, text)
    except (ValueError, RecursionError):
        # A context is never refused: one that is no JSON is kept as text.
        return row_json(_salvaged(text) or {TEXT_KEY: text})
    if parsed is None:
        return EMPTY
    # The text itself, so that PostgreSQL reads its numbers to the last digit.
    if b"\\u0000" in raw:
        return _slowly(parsed)
    return raw


def _parsed(raw: bytes, text: str) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if not _EXPONENT.search(text) or _SURROGATE.search(text):
            raise
    # A number beyond a double, which jsonb accepts within numeric's range.
    return json.loads(text, parse_float=_numeric, parse_constant=_numeric)


def _numeric(digits: str) -> Decimal:
    number = Decimal(digits)
    if not number.is_finite() or not _NUMERIC_LEAST < number.adjusted() < _NUMERIC_MOST:
        raise ValueError(f"{digits[:20]} is beyond numeric's range")
    return number


def _salvaged(text: str) -> dict[str, Any] | None:
    """The fields of a comment that bemi-sqlalchemy wrote before its statement, and the statement
    itself.

    psycopg2 puts the statement's values into the comment too, so that a value with a quote, a
    backslash or a line break breaks the JSON. A field's own value can't contain the quotes around
    the statement's name.
    """
    at = -1
    # A message that repeats this name must not be parsed that many times.
    for _ in range(_NESTED_MAX):
        at = text.find(_STATEMENT, at + 1)
        if at < 0:
            break
        try:
            fields = orjson.loads(text[:at] + "}")
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            continue
        rest = text[at + len(_STATEMENT) :].removeprefix(' "')
        if isinstance(fields, dict):
            return {**fields, "SQL": rest.removesuffix("}").removesuffix('"')}
        return None
    return None


def unreadable(text: str, reason: str) -> bytes:
    """Replaces JSON that PostgreSQL refused after all."""
    return row_json({"_unreadable": reason, TEXT_KEY: text})


def escaped_row(values: Mapping[str, Any], exact: Mapping[str, str] | None = None) -> bytes:
    """`row_json` as a field of COPY's text format, in which only its backslashes need escaping."""
    text = row_json(values, exact)
    if exact:
        # Such a text may contain line breaks between its tokens.
        return escaped(text)
    if b"\\" in text:
        return text.replace(b"\\", b"\\\\")
    return text


def escaped(text: bytes) -> bytes:
    """A field of COPY's text format."""
    if b"\\" in text:
        text = text.replace(b"\\", b"\\\\")
    # Three searches of a short text cost less than three copies of it.
    if b"\n" in text or b"\t" in text or b"\r" in text:
        text = text.replace(b"\n", b"\\n").replace(b"\t", b"\\t").replace(b"\r", b"\\r")
    return text


def _hex(value: object) -> str:
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    raise TypeError(f"a value that was read as {type(value).__name__}")


def _has_nonfinite(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_nonfinite(one) for one in value.values())
    return isinstance(value, list) and any(_has_nonfinite(one) for one in value)


def _slowly(value: object) -> bytes:
    return json.dumps(_clean(value), ensure_ascii=False, separators=(",", ":")).encode()


def _clean(value: object) -> object:
    if isinstance(value, str):
        return _REFUSED.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        if value > 0:
            return "Infinity"
        return "-Infinity"
    if isinstance(value, bytes):
        return _hex(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(_clean(str(name))): _clean(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return value
