"""JSON texts that are held for a while. Pure.

orjson returns each text in the buffer in which it was written, of 4 KiB at least and often of
several times the text: with thousands of them held, most of a process would be that.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson


def compact_json(value: object, default: Callable[[object], object] | None = None) -> bytes:
    """The value's JSON, in a buffer of its length."""
    # The fastest copy there is: `bytes` returns the same object, and so does joining one part.
    return b"".join((orjson.dumps(value, default=default), b""))
