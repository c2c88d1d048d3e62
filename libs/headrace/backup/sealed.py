"""Objects that notice one flipped bit: a zstd frame, facts about it, and the SHA-256 of both.

The facts and the digest are a skippable frame, so `zstd -d` reads an object as it is. Pure.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import orjson
import zstandard

from headrace.backup.errors import DamagedError

# Higher levels take several times the processor time for a tenth less space.
LEVEL = 1
_SKIPPABLE = struct.Struct("<II")
# One of sixteen numbers that zstd reserves for frames that readers skip.
_MAGIC = 0x184D2A5B
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32
_END_BYTES = _LENGTH.size + _DIGEST_BYTES
# Enough for the facts of nearly every object in one request for its last bytes.
TAIL_BYTES = 16 * 1024


def seal(content: bytes | bytearray | memoryview, facts: Mapping[str, Any] | None = None) -> bytes:
    """An object with this content, and facts that can be read without it."""
    frame = zstandard.ZstdCompressor(LEVEL).compress(content)
    said = orjson.dumps(dict(facts or {}))
    head = _SKIPPABLE.pack(_MAGIC, len(said) + _END_BYTES)
    signed = b"".join((frame, head, said, _LENGTH.pack(len(said))))
    return signed + hashlib.sha256(signed).digest()


def unseal(sealed: bytes, name: str) -> bytes:
    """The content of an object; raises `DamagedError` if any bit of it is not as written."""
    if hashlib.sha256(sealed[:-_DIGEST_BYTES]).digest() != sealed[-_DIGEST_BYTES:]:
        raise DamagedError(f"{name} is damaged: its SHA-256 differs")
    try:
        return zstandard.ZstdDecompressor().decompress(sealed)
    except zstandard.ZstdError as error:
        raise DamagedError(f"{name} is damaged: {error}") from error


def facts_in(tail: bytes, name: str) -> dict[str, Any] | None:
    """The facts at the end of an object, from its last bytes; None if more of these are needed."""
    if len(tail) < _END_BYTES:
        raise DamagedError(f"{name} is damaged: it has only {len(tail)} bytes")
    (size,) = _LENGTH.unpack_from(tail, len(tail) - _END_BYTES)
    begin = len(tail) - _END_BYTES - size
    # The facts begin before the bytes that were requested.
    if begin < 0:
        return None
    try:
        return dict(orjson.loads(tail[begin : begin + size]))
    except (ValueError, TypeError) as error:
        raise DamagedError(f"{name} is damaged: its facts can't be read") from error
