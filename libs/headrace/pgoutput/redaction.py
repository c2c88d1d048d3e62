"""Removes values from a change of a row, where raw messages are stored. Pure."""

from __future__ import annotations

import struct
from collections.abc import Collection

from headrace.errors import DecodeError
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import UNCHANGED, Delete, Insert, Row, Update


def without(data: bytes, columns: Collection[int]) -> bytes:
    """The message with NULL in these columns, by index; empty if they can't be found."""
    try:
        message = decode(data)
    except DecodeError:
        # The caller wants to store the bytes, and a value that is not found can't be removed.
        return b""
    rows: list[tuple[bytes, Row | None]]
    if isinstance(message, Insert):
        rows = [(b"N", message.new)]
    elif isinstance(message, Update):
        rows = [(b"K", message.key), (b"O", message.old), (b"N", message.new)]
    elif isinstance(message, Delete):
        rows = [(b"K", message.key), (b"O", message.old)]
    else:
        return b""
    # The kind and the relation's OID stay as they are.
    return data[:5] + b"".join(
        kind + _written(row, columns) for kind, row in rows if row is not None
    )


def _written(row: Row, columns: Collection[int]) -> bytes:
    written = [struct.pack(">H", len(row))]
    for place, value in enumerate(row):
        if value is None or place in columns:
            written.append(b"n")
        elif value is UNCHANGED:
            written.append(b"u")
        else:
            written.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(written)
