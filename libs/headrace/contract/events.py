"""Change events as consumers read them: the payload, its bytes in both encodings, and its position.

Owns the contract's keys and their order. Pure. docs/contract.md says what consumers in any language
may rely on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgpack
import orjson
import zstandard

from headrace.contract import dictionaries
from headrace.contract.json_bytes import compact_json
from headrace.contract.values import Encoding
from headrace.contract.values_json import exact_numbers
from headrace.errors import DecodeError
from headrace.lsn import Position

Payload = dict[str, Any]

# In MessagePack these two bytes are small integers, and a payload is a map or a list: the first
# byte tells the encodings apart.
_JSON_FIRST = b"{["
# A small compressed message must not be able to fill a reader's memory.
MESSAGE_BYTES_MAX = 256 * 1024 * 1024
# Parts of an event that only its complete form has.
_PARTS = frozenset({"old", "unchanged", "exact", "exact_old", "columns", "content"})


# Raw headers are searched: the bulk parser leaves them unparsed (docs/adr/0015).
_COMPLETE = re.compile(rb"^Headrace-Complete: *([0-9]+)", re.MULTILINE)
# Headers of a publisher's arrays that doesn't write the other header yet.
_FLOOR = re.compile(rb"^Headrace-Position: *[^ \r\n]+ ([0-9]+) ", re.MULTILINE)

# Events that describe following rows, and therefore move no consumer's position forward.
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
    """The payload of a row change; in templates, None marks what differs from row to row."""
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
# On an array of events: every transaction of its source that committed before this LSN is in the
# stream completely.
COMPLETE_HEADER = "Headrace-Complete"
# The reply subject of a stored request: a stream keeps headers, but no reply subjects.
REPLY_HEADER = "Headrace-Reply"
# The keys that the PG→NATS bridge documents for an event, in its order.
_BRIDGE_KEYS = ("data", "msg_id", "operation", "relation_id", "subject", "table")


def position_header(source: str, position: Position) -> str:
    """The position of a message whose payload doesn't contain it."""
    return f"{source} {position.lsn} {position.seq}"


def parse_position_header(text: str) -> tuple[str, Position]:
    try:
        source, lsn, seq = text.split(" ")
        return source, Position(int(lsn), int(seq))
    except ValueError as error:
        raise DecodeError(f"malformed {POSITION_HEADER} header") from error


def complete_before(header: bytes) -> int:
    """The LSN before which, by a message's raw header, its source's transactions are complete; 0 if
    it has none.
    """
    found = _COMPLETE.search(header) or _FLOOR.search(header)
    if found:
        return int(found[1])
    return 0


def as_bridge(payload: Payload) -> Payload:
    """An event as the bridge publishes it: only its keys, and the older `columns` in addition to
    `data`.
    """
    bridge = {key: payload[key] for key in _BRIDGE_KEYS}
    return {
        **bridge,
        "columns": [{"name": name, "value": value} for name, value in payload["data"].items()],
    }


def referring(payload: Payload, key: Collection[str], size: int, bucket: str) -> Payload:
    """An event too large for a message: its key columns, and a reference to the stored event."""
    small = {name: value for name, value in payload.items() if name not in _PARTS}
    small["data"] = {name: value for name, value in payload.get("data", {}).items() if name in key}
    return {**small, "reference": {"bucket": bucket, "name": payload["msg_id"], "bytes": size}}


def _unpackable(value: object) -> object:
    # Only its type: errors are logged, and rows never are.
    raise DecodeError(f"a value of type {type(value).__name__} can't be encoded")


_PACK = msgpack.Packer(default=_unpackable).pack


def encode(payload: Payload | list[Payload], encoding: Encoding) -> bytes:
    if encoding is Encoding.JSON:
        try:
            return compact_json(payload)
        except TypeError as error:
            raise DecodeError(f"a value can't be encoded: {error}") from error
    # A packer is created once: creating it costs more than packing. After an error it is as good as
    # new.
    return bytes(_PACK(payload))


def writer(encoding: Encoding) -> Callable[[object], bytes]:
    """`encode` without checks: its errors are the library's own."""
    return orjson.dumps if encoding is Encoding.JSON else _PACK


def pieces(payload: Payload, holes: Collection[str], encoding: Encoding) -> list[bytes]:
    """The payload's bytes without the values of these keys: one piece more than there are holes.

    Values written between the pieces, in the order of the keys, yield the bytes of the whole
    payload.
    """
    write = writer(encoding)
    json_ = encoding is Encoding.JSON
    cut = []
    piece = b"{" if json_ else bytes(msgpack.Packer().pack_map_header(len(payload)))
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
    """Decodes a payload or a list of them, in any encoding and compression; `bytes_max` limits the
    decompressed size.

    A number that neither 64 bits nor a double can hold is a string of its digits, from JSON as from
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
    # A frame may declare its size, which would then be allocated even above the limit.
    if zstandard.frame_content_size(data) > bytes_max:
        raise ValueError(f"more than {bytes_max} bytes after decompression")
    # A frame that declares no size stops at this limit instead.
    return dictionaries.decompressor(data).decompress(data, max_output_size=bytes_max)


def position_of(payload: Mapping[str, Any]) -> Position:
    """An event's position in its source."""
    try:
        tx = payload["tx"]
        return Position(int(tx["lsn"]), int(tx["seq"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError("an event without a position") from error


def advances(payload: Mapping[str, Any]) -> bool:
    """Whether applying the event moves a consumer's position forward."""
    return payload.get("operation") not in _STANDING
