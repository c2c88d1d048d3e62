"""A row's message without the values of some columns, to be kept as it is. Pure.

Promises that nothing of a hidden column is in what comes out, also where the message is malformed: then no value is.
"""

from __future__ import annotations

from collections.abc import Collection

# Kind and relation.
_HEAD_BYTES = 5
_WITHOUT_VALUE = b"nu"


def masked(message: bytes, hidden: Collection[int]) -> bytes:
    """An Insert, Update or Delete in which the columns at these places are null."""
    if not hidden:
        return message
    out, at = bytearray(message[:_HEAD_BYTES]), _HEAD_BYTES
    try:
        while at < len(message):
            # The tuple's kind, and how many columns it has.
            count = int.from_bytes(message[at + 1 : at + 3])
            out += message[at : at + 3]
            at += 3
            for place in range(count):
                end = at + 1 if message[at] in _WITHOUT_VALUE else at + 5 + int.from_bytes(message[at + 1 : at + 5])
                if end > len(message):
                    return message[:_HEAD_BYTES]
                out += b"n" if place in hidden else message[at:end]
                at = end
    except IndexError:
        return message[:_HEAD_BYTES]
    return bytes(out)
