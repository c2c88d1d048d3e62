"""zstd dictionaries, which make single events compressible: they are too small to repeat
themselves.

Owns the training, and the dictionaries that this process has loaded. A compressed event names its
dictionary by the id in its zstd frame; the dictionary itself is the value of the key that `key`
returns. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import zstandard

from headrace.errors import DecodeError

# A low level, because events are compressed in the publisher's hot path.
LEVEL = 1
# Small, because a dictionary is a value in the state bucket, which every consumer reads.
DICTIONARY_BYTES = 8 * 1024
# Above this number the oldest are dropped, and loaded again when needed.
KNOWN_MAX = 1024
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_known: dict[int, zstandard.ZstdDecompressor] = {}


class UnknownDictionaryError(DecodeError):
    """A message is compressed with a dictionary that this process has not loaded."""

    remedy = "Read it from the state bucket (dictionary.{id}); headrace.consumer does."


def key(dictionary_id: int) -> str:
    """The key in the state bucket that contains the dictionary."""
    return f"dictionary.{dictionary_id}"


def named_by(data: bytes) -> int:
    """The id of the dictionary that a message needs; 0 for none."""
    if data[:4] != ZSTD_MAGIC:
        return 0
    return int(zstandard.get_frame_parameters(data).dict_id)


def knows(dictionary_id: int) -> bool:
    return dictionary_id in _known


def learn(dictionary: bytes) -> int:
    """Load a dictionary; returns its id."""
    read = zstandard.ZstdCompressionDict(dictionary)
    while len(_known) >= KNOWN_MAX:
        del _known[next(iter(_known))]
    _known[read.dict_id()] = zstandard.ZstdDecompressor(dict_data=read)
    return int(read.dict_id())


def decompressor(data: bytes) -> zstandard.ZstdDecompressor:
    """The decompressor of this frame."""
    dictionary_id = named_by(data)
    # Chunks of snapshots are compressed without a dictionary, and their frames name none.
    if not dictionary_id:
        return zstandard.ZstdDecompressor()
    try:
        return _known[dictionary_id]
    except KeyError:
        raise UnknownDictionaryError(f"dictionary {dictionary_id} is not loaded") from None


def train(samples: Sequence[bytes]) -> bytes | None:
    """A dictionary for messages like these; None if they have nothing in common."""
    try:
        return bytes(zstandard.train_dictionary(DICTIONARY_BYTES, list(samples)).as_bytes())
    except zstandard.ZstdError:
        # zstd fails if there are too few samples or they share nothing. That is no error.
        return None


@dataclass(slots=True)
class Compressor:
    """Compresses with one dictionary."""

    dictionary: bytes
    dictionary_id: int = 0
    _zstd: zstandard.ZstdCompressor = field(init=False)

    def __post_init__(self) -> None:
        made = zstandard.ZstdCompressionDict(self.dictionary)
        # The level is part of a prepared dictionary, so both lines need the same one.
        made.precompute_compress(level=LEVEL)
        self.dictionary_id = int(made.dict_id())
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, dict_data=made)

    def compress(self, payload: bytes) -> bytes:
        return self._zstd.compress(payload)
