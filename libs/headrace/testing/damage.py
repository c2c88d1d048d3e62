"""Damage to the files of a JetStream stream, done while its server is stopped.

Blocks (`msgs/N.blk`) hold a stream's messages as consecutive records: the length (its highest bit
marks headers), the sequence, a time, the subject with its length, and the rest, with a checksum at
the end. `index.db` holds the state of the server when it stopped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEAD = struct.Struct("<IQqH")
_HEADERS = 1 << 31
_CHECKSUM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Record:
    """The place of a message in its block."""

    seq: int
    at: int
    size: int


def folder_of(store: Path, stream: str = "CDC") -> Path:
    """The files of a stream's messages."""
    return next(store.rglob(f"streams/{stream}/msgs"))


def blocks(store: Path, stream: str = "CDC") -> list[Path]:
    """From the oldest to the newest."""
    return sorted(folder_of(store, stream).glob("*.blk"), key=lambda block: int(block.stem))


def records(block: Path) -> Iterator[Record]:
    data, at = block.read_bytes(), 0
    while at + _HEAD.size <= len(data):
        length, seq, _, _ = _HEAD.unpack_from(data, at)
        size = length & ~_HEADERS
        yield Record(seq, at, size)
        at += size


def middle_record(block: Path) -> Record:
    """The record in the middle of a block's messages."""
    found = list(records(block))
    return found[len(found) // 2]


def flip_payload(block: Path, record: Record) -> None:
    """One bit of a message: its checksum is wrong."""
    _flip(block, record.at + record.size - _CHECKSUM_BYTES - 1)


def flip_length(block: Path, record: Record) -> None:
    """One bit of a record's length: later records of the block can't be found."""
    _flip(block, record.at + 1)


def _flip(block: Path, at: int) -> None:
    data = bytearray(block.read_bytes())
    data[at] ^= 1 << 5
    block.write_bytes(bytes(data))


def forget_index(store: Path, stream: str = "CDC") -> None:
    """Remove the server's index, as a crash of its machine does: it then reads all blocks."""
    (folder_of(store, stream) / "index.db").unlink(missing_ok=True)
