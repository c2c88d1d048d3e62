"""The frame: many raw pgoutput messages in one NATS message. Format version 1; pure.

    header   magic "HR" | version u8 | kind u8 | epoch u64 | seq u64           big-endian
    OPEN     MessagePack map: what the epoch is (see `Opening`); its seq is 0
    DATA     entries: lsn u64 | length u32 | pgoutput message; length 0: all before this LSN was
             sent (a keepalive)
    PART     lsn u64 | offset u64 | total u64 | bytes: a message larger than a frame, in order,
             in frames without other entries
    PING     nothing; its seq is the last one sent
    HELLO    nothing: a wal-reader asks who is there
    FLUSH    nothing; like PING, and asks to confirm now what can be confirmed: the wal-reader is
             about to leave

Upgrade rule: a reader takes every version up to its own; a newer version is a `DecodeError` that
names both, so confirmers are upgraded before the wal-reader.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import msgpack

from headrace.accelerator import native
from headrace.errors import DecodeError

VERSION = 1
_MAGIC = b"HR"
_HEADER = struct.Struct(">2sBBQQ")
_ENTRY = struct.Struct(">QI")
_PART = struct.Struct(">QQQ")
ENTRY_OVERHEAD_BYTES = _ENTRY.size
FRAME_OVERHEAD_BYTES = _HEADER.size + _PART.size
# PostgreSQL's messages are smaller than 1 GiB.
MESSAGE_BYTES_MAX = 1 << 31

Entry = tuple[int, bytes]


class FrameKind(IntEnum):
    OPEN = 1
    DATA = 2
    PART = 3
    PING = 4
    HELLO = 5
    FLUSH = 6


@dataclass(frozen=True, slots=True)
class Header:
    kind: FrameKind
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Opening:
    """The start of an epoch: its confirmers, the server that is read, and its first LSN."""

    sessions: dict[str, str]
    slot: str
    database: str
    system_id: str
    timeline: int
    confirmed_lsn: int
    # How far the server's WAL reaches, and where each older timeline ended. Absent in the first
    # frames of version 1.
    current_lsn: int = 0
    forks: tuple[tuple[int, int], ...] = ()
    # Whether the slot has delivered changes before this epoch, as far as is known. Absent in frames
    # of earlier versions.
    slot_used: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message that is larger than a frame."""

    lsn: int
    offset: int
    total: int
    data: bytes


def header(kind: FrameKind, epoch: int, seq: int) -> bytes:
    return _HEADER.pack(_MAGIC, VERSION, kind, epoch, seq)


def frame_name(epoch: int, seq: int) -> str:
    """A frame's name in logs and traces, from sending to acknowledgement."""
    return f"{epoch:x}-{seq}"


def encode_open(epoch: int, opening: Opening) -> bytes:
    body = {name: getattr(opening, name) for name in Opening.__slots__}
    return header(FrameKind.OPEN, epoch, 0) + bytes(msgpack.packb(body))


# lsn, length: precede each message in a DATA frame.
entry_head = _ENTRY.pack


def encode_entry(lsn: int, message: bytes) -> bytes:
    return _ENTRY.pack(lsn, len(message)) + message


def encode_part(epoch: int, seq: int, part: Part) -> bytes:
    return (
        header(FrameKind.PART, epoch, seq)
        + _PART.pack(part.lsn, part.offset, part.total)
        + part.data
    )


def decode_header(frame: bytes) -> Header:
    if len(frame) < _HEADER.size:
        raise DecodeError(f"a frame of {len(frame)} bytes is shorter than its header")
    magic, version, kind, epoch, seq = _HEADER.unpack_from(frame)
    if magic != _MAGIC:
        raise DecodeError("not a frame: the magic bytes are missing")
    # Even the header of a newer version may mean something else, so nothing of it is used.
    if not 1 <= version <= VERSION:
        raise DecodeError(
            f"unsupported frame version {version} (this service reads up to {VERSION})"
        )
    try:
        return Header(FrameKind(kind), epoch, seq)
    except ValueError as error:
        raise DecodeError(f"unknown frame kind {kind}") from error


def decode_open(frame: bytes) -> Opening:
    try:
        body = msgpack.unpackb(frame[_HEADER.size :])
        forks = tuple((int(timeline), int(lsn)) for timeline, lsn in body.pop("forks", ()))
        later = {
            "current_lsn": body.pop("current_lsn", 0),
            "forks": forks,
            "slot_used": body.pop("slot_used", False),
        }
        opening = Opening(
            **{name: body[name] for name in Opening.__slots__ if name not in later}, **later
        )
    # MessagePack of another shape raises any of these, depending on where it differs.
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        msgpack.UnpackException,
    ) as error:
        raise DecodeError(f"malformed OPEN frame: {error}") from error
    checks = (
        (opening.sessions, dict),
        (opening.slot, str),
        (opening.database, str),
        (opening.system_id, str),
        (opening.timeline, int),
        (opening.confirmed_lsn, int),
        (opening.current_lsn, int),
        (opening.slot_used, bool),
    )
    if not all(isinstance(value, kind) for value, kind in checks):
        raise DecodeError("malformed OPEN frame: a field has the wrong type")
    return opening


def decode_entries(frame: bytes) -> list[Entry]:
    """The entries of a DATA frame."""
    if native is not None and (found := native.entries(frame, _HEADER.size)) is not None:
        entries_: list[Entry] = found
        return entries_
    return _decoded_entries(frame)


def _decoded_entries(frame: bytes) -> list[Entry]:
    # Every change passes through this loop, so it looks up names once.
    entries: list[Entry] = []
    add = entries.append
    head = _ENTRY.unpack_from
    overhead = _ENTRY.size
    at = _HEADER.size
    end = len(frame)
    while at < end:
        if end - at < overhead:
            raise DecodeError("a frame ends inside an entry's header")
        lsn, length = head(frame, at)
        start = at + overhead
        at = start + length
        if at > end:
            raise DecodeError(f"an entry of {length} bytes in a frame with {end - start} left")
        add((lsn, frame[start:at]))
    return entries


def decode_part(frame: bytes) -> Part:
    # A part without bytes would never complete its message.
    if len(frame) <= _HEADER.size + _PART.size:
        raise DecodeError(f"a PART frame of {len(frame)} bytes has no content")
    lsn, offset, total = _PART.unpack_from(frame, _HEADER.size)
    data = frame[_HEADER.size + _PART.size :]
    # The receiver collects the parts in memory, so a damaged length must not be believed.
    if total > MESSAGE_BYTES_MAX or offset + len(data) > total:
        raise DecodeError(f"a PART frame at {offset} with {len(data)} bytes of {total}")
    return Part(lsn, offset, total, data)
