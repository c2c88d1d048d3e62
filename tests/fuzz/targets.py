"""The targets of fuzzing, their seeds, and what must hold: the complete meaning of the bytes or a
`DecodeError`, nothing else.

Each `check` returns for bytes that were understood or refused, and raises for anything else. Pure,
so that a coverage-guided fuzzer can drive it as well as hypothesis does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import msgpack
import orjson
import zstandard

from headrace.bus import control, frame
from headrace.bus.frame import FrameKind, Opening, Part
from headrace.bus.receiver import FrameReceiver
from headrace.consumer.event import of_message
from headrace.contract import events, type_oids
from headrace.contract.values import (
    ArrayForm,
    Converter,
    Encoding,
    JsonForm,
    ValueOptions,
    converter,
)
from headrace.errors import DecodeError
from headrace.lsn import Position
from headrace.pgoutput import messages
from headrace.pgoutput.decoder import decode


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    seeds: list[bytes]
    check: Callable[[bytes], None]


def _row(values: messages.Row) -> bytes:
    parts = [struct.pack("!H", len(values))]
    for value in values:
        if isinstance(value, bytes):
            parts.append(b"t" + struct.pack("!I", len(value)) + value)
        else:
            parts.append(b"u" if value is messages.UNCHANGED else b"n")
    return b"".join(parts)


_ROW = _row((b"1", None, b"a text", messages.UNCHANGED, b""))
_PGOUTPUT = [
    b"B" + struct.pack("!QqI", 0x16F7348, 800_000_000_000_000, 757),
    b"C" + struct.pack("!BQQq", 0, 0x16F7348, 0x16F7378, 800_000_000_000_000),
    b"O" + struct.pack("!Q", 7) + b"origin\0",
    b"R" + struct.pack("!I", 16384) + b"public\0users\0d" + struct.pack("!H", 2)
    + b"\1id\0" + struct.pack("!Ii", 23, -1) + b"\0name\0" + struct.pack("!Ii", 25, -1),
    b"Y" + struct.pack("!I", 16500) + b"public\0mood\0",
    b"I" + struct.pack("!I", 16384) + b"N" + _ROW,
    b"U" + struct.pack("!I", 16384) + b"K" + _ROW + b"N" + _ROW,
    b"U" + struct.pack("!I", 16384) + b"O" + _ROW + b"N" + _ROW,
    b"U" + struct.pack("!I", 16384) + b"N" + _ROW,
    b"D" + struct.pack("!I", 16384) + b"O" + _ROW,
    b"T" + struct.pack("!IB", 2, 3) + struct.pack("!2I", 16384, 16396),
    b"M" + struct.pack("!BQ", 1, 0x16F7348) + b"audit\0" + struct.pack("!I", 5) + b"hello",
]  # fmt: skip


def _pgoutput(data: bytes) -> None:
    """A message with rows spells every byte of what it was read from."""
    try:
        message = decode(data)
    except DecodeError:
        return
    match message:
        case messages.Insert(relation_id, new):
            assert data == b"I" + struct.pack("!I", relation_id) + b"N" + _row(new)
        case messages.Update(relation_id, key, old, new):
            before = (
                b"K" + _row(key) if key is not None else b"" if old is None else b"O" + _row(old)
            )
            assert data == b"U" + struct.pack("!I", relation_id) + before + b"N" + _row(new)
        case messages.Delete(relation_id, key, old):
            before = b"K" + _row(key) if key is not None else b"O" + _row(old or ())
            assert data == b"D" + struct.pack("!I", relation_id) + before
        case messages.Truncate(relation_ids):
            assert data[6:] == struct.pack(f"!{len(relation_ids)}I", *relation_ids)


_OPENING = Opening(
    {"publisher": "s1"}, "slot", "db", "7500000000000000000", 1, 0x100, 0x200, ((1, 0x80),)
)
_ENTRIES = b"".join(frame.encode_entry(0x100 + at, message) for at, message in enumerate(_PGOUTPUT))
_FRAMES = [
    frame.encode_open(5, _OPENING),
    frame.header(FrameKind.DATA, 5, 1) + _ENTRIES,
    frame.header(FrameKind.PING, 5, 0),
    frame.header(FrameKind.FLUSH, 5, 0),
    frame.header(FrameKind.HELLO, 0, 0),
    frame.encode_part(5, 1, Part(0x100, 0, 10, b"12345")),
    frame.encode_part(5, 1, Part(0x100, 0, 5, b"12345")),
]


def _frames(data: bytes) -> None:
    """A receiver in an epoch answers anything, and gives out no entry that the frame doesn't spell."""
    receiver = FrameReceiver("publisher", "s1")
    receiver.receive(_FRAMES[0], 0.0)
    received = receiver.receive(data, 1.0)
    entries = tuple(received.entries)
    head = len(frame.header(FrameKind.DATA, 5, 1))
    if entries and frame.decode_header(data).kind is FrameKind.DATA:
        assert b"".join(frame.encode_entry(lsn, message) for lsn, message in entries) == data[head:]
    if received.opening is not None:
        assert frame.decode_open(data) == received.opening


_CONTROLS = [
    control.encode(control.Join("publisher", "s1", 5)),
    control.encode(control.Confirm("publisher", "s1", 5, 17, 0x100, settled=True)),
    control.encode(control.Restart("publisher", "s1", 5, "a gap")),
]


def _control(data: bytes) -> None:
    try:
        message = control.decode(data)
    except DecodeError:
        return
    assert control.decode(control.encode(message)) == message


_PAYLOAD: events.Payload = {
    "subject": "cdc.users.insert",
    "table": "users",
    "operation": "INSERT",
    "msg_id": "16f7348-users-insert",
    "relation_id": 16384,
    "data": {"id": 1, "name": "Ada", "tags": ["a", None], "score": 1.5},
    "schema": "public",
    "source": "slot",
    "lsn": 24081224,
    "tx": events.transaction(757, Position(24081648, 0), "2025-12-12T12:00:34.338547Z", last=False),
}
_EVENTS = [
    events.encode(value, encoding)
    for encoding in Encoding
    for value in (_PAYLOAD, [_PAYLOAD, _PAYLOAD])
]
_EVENTS += [zstandard.ZstdCompressor().compress(data) for data in _EVENTS]


def _events(data: bytes) -> None:
    """A consumer gets events, or an error that these are not events."""
    try:
        found = list(of_message(data, "cdc.users.insert", 1))
    except DecodeError:
        return
    for event in found:
        assert isinstance(event.position, Position)


_VALUES = [
    b"t",
    b"-9223372036854775808", b"1.5e-300", b"NaN", b"-Infinity", b"123456789012345678901234567890.12", b"$1,234.50",
    b"\\xdeadbeef", b"2025-12-12 12:00:34.338547+00", b"0044-03-15 12:00:00+00 BC", b"infinity", b"12:00:34.5+02",
    b'{"a": [1, 2.50, "x", null, {"b": 1e400}], "a": 12345678901234567890}', b'{{1,2},{3,NULL}}', b'{"a b",c,"d\\"e"}',
    b"[0:1]={1,2}", b"(1,2),(3,4)", b"{(1,2),(3,4);(5,6),(7,8)}", "é\U0001f600".encode(), b"",
]  # fmt: skip
_OIDS = [
    type_oids.BOOL, type_oids.INT8, type_oids.FLOAT8, type_oids.MONEY, type_oids.BYTEA, type_oids.JSON,
    type_oids.JSONB, type_oids.TIMESTAMP,
    type_oids.TIMESTAMPTZ, type_oids.TIMETZ, 1082, 1083, 1186, 1700, 25, *type_oids.ELEMENT_OIDS,
]  # fmt: skip


_JSON_OIDS = {
    oid
    for oid in _OIDS
    if {type_oids.ELEMENT_OIDS.get(oid, oid)} & {type_oids.JSON, type_oids.JSONB}
}


def _converters() -> list[tuple[int, Encoding, Converter]]:
    options = [
        ValueOptions(encoding, arrays, form)
        for encoding in Encoding
        for arrays in ArrayForm
        for form in JsonForm
    ]
    return [
        (oid, one.encoding, converter(oid, one, lambda _: None)) for one in options for oid in _OIDS
    ]


_CONVERTERS = _converters()


def _values(data: bytes) -> None:
    """A value that no PostgreSQL printed is refused, or has some form that the encoder can write."""
    for oid, encoding, convert in _CONVERTERS:
        try:
            encoded = events.encode({"data": {"column": convert(data)}}, encoding)
        except DecodeError:
            continue
        # PostgreSQL's json goes into JSON as it is, unread.
        if encoding is Encoding.MSGPACK:
            msgpack.unpackb(encoded)
        elif oid not in _JSON_OIDS:
            orjson.loads(encoded)


TARGETS = {
    target.name: target
    for target in (
        Target("pgoutput", _PGOUTPUT, _pgoutput),
        Target("frames", _FRAMES, _frames),
        Target("control", _CONTROLS, _control),
        Target("events", _EVENTS, _events),
        Target("values", _VALUES, _values),
    )
}
