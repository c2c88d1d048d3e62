"""Names and versions in OpenSearch: of indices, fields and documents.

Promises: two destinations, columns or keys never get the same name, no matter which characters
they contain, and a later change of a row never gets a lower version than an earlier one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import orjson

from headrace.lsn import Position
from headrace.sinks.port import RefusedError, SinkError
from headrace.sinks.routing import Record

# `=` begins an encoded byte and `~` a part of the sink's own, so neither is left in a name.
_PLAIN_INDEX = re.compile(rb"[a-z0-9._-]")
# Reserved for the system and for wildcards at the beginning of an index's name.
_FIRST = frozenset(b"._-")
# Of 255 bytes, minus those of the generation.
INDEX_BYTES_MAX = 200
_KEPT_BYTES = 120
ID_BYTES_MAX = 512
_HASHED = "sha256:"
# Fields that no column can have: their `=` is not followed by an encoded byte.
EXACT = "=text"
UNKNOWN = "=unknown"

# A version has 63 bits: 52 of the commit's LSN, whose last three are always 0 in PostgreSQL, and 11
# for the part of the transaction.
_LSN_MAX = 1 << 55
_PART_BITS = 11
PART_EVENTS = 1 << 15
# 0 is that of a copy's row, which every change that follows the copy replaces.
LAST_PART = (1 << _PART_BITS) - 1


def index_name(destination: str) -> str:
    """The name under which readers find a destination: lower case, other bytes as `=c3`."""
    plain = destination.encode()
    encoded = ""
    for byte in plain:
        if _PLAIN_INDEX.match(bytes((byte,))) and (encoded or byte not in _FIRST):
            encoded += chr(byte)
        else:
            encoded += f"={byte:02x}"
    if len(encoded) <= INDEX_BYTES_MAX:
        return encoded
    return f"{encoded[:_KEPT_BYTES]}=h{hashlib.sha256(plain).hexdigest()}"


def field_name(column: str) -> str:
    """The name of a column's field. A dot would make an object of it, and a leading underscore
    names fields of the server's own.
    """
    encoded = column.replace("=", "=3d").replace(".", "=2e")
    if encoded.startswith("_"):
        return f"=5f{encoded[1:]}"
    if not encoded.strip():
        return "".join(f"={byte:02x}" for byte in column.encode())
    return encoded


def document_id(record: Record) -> str:
    """The document of a row's key: the value of a single column, or a list in JSON. A long one is
    hashed; its columns are in the document.
    """
    if record.key is None:
        raise RefusedError(record, "its table has no key; add one, or set `key`")
    parts = orjson.loads(record.key)
    if None in parts:
        raise RefusedError(record, "its key has no value that distinguishes it from other rows")
    return id_of_key(parts)


def id_of_key(parts: Sequence[Any]) -> str:
    """The document of a key's values."""
    key = orjson.dumps(parts)
    found = key.decode()
    if len(parts) == 1:
        text = parts[0]
        if not isinstance(text, str):
            text = orjson.dumps(text).decode()
        # A text that looks like another form of an ID, or is no ID, keeps the brackets.
        if text and not text.startswith(("[", _HASHED)):
            found = text
    if len(found.encode()) <= ID_BYTES_MAX:
        return found
    return _HASHED + hashlib.sha256(key).hexdigest()


def version_of(position: Position, *, copied: bool = False) -> int:
    """The version of a row's state after the part of the transaction that contains a position."""
    if position.lsn >= _LSN_MAX:
        raise SinkError(
            f"The position {position.lsn} is beyond the versions that OpenSearch can hold",
            remedy="Deliver this source to another kind of sink.",
        )
    part = 0 if copied else part_of(position)
    return position.lsn >> 3 << _PART_BITS | part


def part_of(position: Position) -> int:
    """The part of a transaction: all its events have one version, and are written together."""
    return min(position.seq // PART_EVENTS + 1, LAST_PART)


def is_open_ended(version: int) -> bool:
    """Whether several writes may have this version: the rest of a transaction beyond 67 million
    events.
    """
    return version & LAST_PART == LAST_PART
