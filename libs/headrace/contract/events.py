"""Change events as consumers read them: the payload's shape, its bytes in both encodings, and its
position.

Owns the contract's keys and their order. Pure. What a consumer in any language may rely on is in
docs/contract.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgpack
import orjson
import zstandard

from headrace.contract import dictionaries
from headrace.contract.values import Encoding
from headrace.contract.values_json import exact_numbers
from headrace.errors import DecodeError
from headrace.lsn import Position

Payload = dict[str, Any]

_JSON_FIRST = b"{["
MESSAGE_BYTES_MAX = 256 * 1024 * 1024
# Parts of an event that only the whole of it has.
_PARTS = frozenset({"old", "unchanged", "exact", "exact_old", "columns", "content"})


_COMPLETE = re.compile(rb"^Headrace-Complete: *([0-9]+)", re.MULTILINE)
# What arrays of a publisher have that does not write the other header yet.
_FLOOR = re.compile(rb"^Headrace-Position: *[^ \r\n]+ ([0-9]+) ", re.MULTILINE)

# Events that tell about the rows that follow, and so take no consumer's position forward.
SCHEMA = "SCHEMA"
GAP = "GAP"
_STANDING = frozenset({SCHEMA, GAP})


def transaction(xid: int, position: Position, ts: str | None, *, last: bool) -> Payload:
    """The payload's `tx`."""
    return {"xid": xid, "lsn": position.lsn, "ts": ts, "seq": position.seq, "last": last}


def change(  # noqa: PLR0913  # what an event consists of
    *,
    subject: str,
    table: str,
    operation: str,
    msg_id: str | None,
    relation_id: int,
    data: Payload | None,
    schema: str,
    source: str,
    key: Sequence[str],
    lsn: int | None,
    tx: Payload | None,
) -> Payload:
    """The payload of a change of a row; None, in a template alone, for what differs from row to
    row.
    """
    return {
        "subject": subject,
        "table": table,
        "operation": operation,
        "msg_id": msg_id,
        "relation_id": relation_id,
        "data": data,
        "schema": schema,
        "source": source,
        "key": key,
        "lsn": lsn,
        "tx": tx,
    }


ID_HEADER = "Headrace-Msg-Id"
POSITION_HEADER = "Headrace-Position"
# Of an array of events: every transaction of its source that committed before this LSN is whole in
# the stream.
COMPLETE_HEADER = "Headrace-Complete"
# Where a stored request's answer goes: a stream keeps headers, and no reply subjects.
REPLY_HEADER = "Headrace-Reply"
# What the PG→NATS bridge documents of an event, in its order, and nothing else.
_BRIDGE_KEYS = ("data", "msg_id", "operation", "relation_id", "subject", "table")


def position_header(source: str, position: Position) -> str:
    """The place of a message whose payload doesn't tell it."""
    return f"{source} {position.lsn} {position.seq}"


def parse_position_header(text: str) -> tuple[str, Position]:
    try:
        source, lsn, seq = text.split(" ")
        return source, Position(int(lsn), int(seq))
    except ValueError as error:
        raise DecodeError(f"a malformed {POSITION_HEADER} header") from error


def complete_before(header: bytes) -> int:
    """The LSN before which, by a message's raw header, its source's transactions are whole; 0 where
    it has none.
    """
    found = _COMPLETE.search(header) or _FLOOR.search(header)
    if found:
        return int(found[1])
    return 0


def as_bridge(payload: Payload) -> Payload:
    """An event as the bridge has it: its keys alone, and the older `columns` beside `data`."""
    bridge = {key: payload[key] for key in _BRIDGE_KEYS}
    return {
        **bridge,
        "columns": [{"name": name, "value": value} for name, value in payload["data"].items()],
    }


def referring(payload: Payload, key: Collection[str], size: int, bucket: str) -> Payload:
    """An event too large for a message: its key columns, and where the whole of it is kept."""
    small = {name: value for name, value in payload.items() if name not in _PARTS}
    small["data"] = {name: value for name, value in payload.get("data", {}).items() if name in key}
    return {**small, "reference": {"bucket": bucket, "name": payload["msg_id"], "bytes": size}}


def _unpackable(value: object) -> object:
    # Its type alone: errors are logged, and rows never are.
    raise DecodeError(f"a value that was read as {type(value).__name__} has no form on the wire")


_PACK = msgpack.Packer(default=_unpackable).pack


def encode(payload: Payload | list[Payload], encoding: Encoding) -> bytes:
    if encoding is Encoding.JSON:
        try:
            return orjson.dumps(payload)
        except TypeError as error:
            raise DecodeError(f"a value has no form on the wire: {error}") from error
    # A packer is made once: that costs more than packing. After an error it is as new.
    return bytes(_PACK(payload))


def writer(encoding: Encoding) -> Callable[[object], bytes]:
    """`encode` without a look at what is written: its errors are the library's own."""
    return orjson.dumps if encoding is Encoding.JSON else _PACK


def pieces(payload: Payload, holes: Collection[str], encoding: Encoding) -> list[bytes]:
    """The payload's bytes without the values of these keys: one piece more than there are holes.

    Whoever writes values between the pieces, in the order of the keys, has the bytes of the whole
    payload.
    """
    write = writer(encoding)
    json_ = encoding is Encoding.JSON
    cut = []
    if json_:
        piece = b"{"
    else:
        piece = bytes(msgpack.Packer().pack_map_header(len(payload)))
    for index, (key, value) in enumerate(payload.items()):
        piece += (b"," if json_ and index else b"") + write(key) + (b":" if json_ else b"")
        if key in holes:
            cut.append(piece)
            piece = b""
        else:
            piece += write(value)
    return [*cut, piece + (b"}" if json_ else b"")]


def join(encoded: list[bytes], encoding: Encoding) -> bytes:
    """Encoded payloads as one list: a batch's message."""
    if encoding is Encoding.JSON:
        return b"[" + b",".join(encoded) + b"]"
    return bytes(msgpack.Packer().pack_array_header(len(encoded))) + b"".join(encoded)


def decode(data: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> Any:
    """A payload or a list of them, whichever encoding (and compression) it has; `bytes_max` is
    before compression.

    A number that 64 bits or a double can't hold is a string of its digits, from JSON as from
    MessagePack.
    """
    try:
        if data[:4] == dictionaries.ZSTD_MAGIC:
            data = _decompressed(data, bytes_max)
        if data[:1] and data[:1] in _JSON_FIRST:
            return exact_numbers(data)
        return msgpack.unpackb(data, strict_map_key=False)
    except (
        ValueError,
        TypeError,
        msgpack.UnpackException,
        zstandard.ZstdError,
        RecursionError,
    ) as error:
        raise DecodeError(f"a message that is neither MessagePack nor JSON: {error}") from error


def _decompressed(data: bytes, bytes_max: int) -> bytes:
    # A frame may tell its size, and then that much is allocated, whatever the limit.
    if zstandard.frame_content_size(data) > bytes_max:
        raise ValueError(f"more than {bytes_max} bytes, compressed")
    return dictionaries.decompressor(data).decompress(data, max_output_size=bytes_max)


def position_of(payload: Mapping[str, Any]) -> Position:
    """Where an event stands in its source."""
    try:
        tx = payload["tx"]
        return Position(int(tx["lsn"]), int(tx["seq"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError("an event without a position") from error


def advances(payload: Mapping[str, Any]) -> bool:
    """Whether applying the event takes a consumer's position forward."""
    return payload.get("operation") not in _STANDING
