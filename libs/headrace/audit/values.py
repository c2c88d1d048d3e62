"""A change's values as JSON text that PostgreSQL takes as jsonb, exactly once escaped for COPY. Pure.

Promises that whatever an event can hold has a form: what jsonb refuses (the character U+0000, half a surrogate pair)
becomes the six characters of its escape; NaN and the infinities are strings, bytes are PostgreSQL's `\\x…`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

_REFUSED = re.compile("[\x00\ud800-\udfff]")
TEXT_KEY = "_text"
EMPTY = b"{}"


def row_json(values: Mapping[str, Any]) -> bytes:
    """The JSON object of a row's values."""
    try:
        text = orjson.dumps(values, default=_hex)
    except TypeError:
        return _slowly(values)
    # orjson writes NaN as null, and a NUL as an escape that jsonb refuses.
    if b"\\u0000" in text or (b"null" in text and _has_nonfinite(values)):
        return _slowly(values)
    return text


def context_json(text: str) -> bytes:
    """A context message's JSON; what isn't JSON is kept as text under `_text`, and null is an empty object."""
    try:
        raw = text.encode()
        parsed = orjson.loads(raw)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return row_json({TEXT_KEY: text})
    if parsed is None:
        return EMPTY
    # The text itself, so that PostgreSQL reads its numbers to the last digit.
    return _slowly(parsed) if b"\\u0000" in raw else raw


def unreadable(text: str, reason: str) -> bytes:
    """In place of JSON that PostgreSQL refused after all."""
    return row_json({"_unreadable": reason, TEXT_KEY: text})


def escaped_row(values: Mapping[str, Any]) -> bytes:
    """`row_json` as a field of COPY's text format: of what is escaped there, such JSON has the backslash alone."""
    text = row_json(values)
    return text.replace(b"\\", b"\\\\") if b"\\" in text else text


def escaped(text: bytes) -> bytes:
    """A field of COPY's text format."""
    text = text.replace(b"\\", b"\\\\") if b"\\" in text else text
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
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return _hex(value)
    if isinstance(value, Mapping):
        return {str(_clean(str(name))): _clean(one) for name, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list) else value
