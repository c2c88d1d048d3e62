"""The wire contract's own event, as JSON or MessagePack (docs/contract.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from headrace.consumer.event import Event
from headrace.sinks.formats.json_values import dumps, plain_row

_ROWS = ("data", "old")


def json_payload(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The payload with rows as JSON holds them."""
    rows = {part: payload[part] for part in _ROWS if part in payload}
    plain = {part: plain_row(row) for part, row in rows.items()}
    if all(plain[part] is row for part, row in rows.items()):
        return payload
    return {**payload, **plain}


def encode_json(event: Event) -> bytes:
    """The event as JSON: bytes are base64, NaN and infinity strings."""
    return dumps(json_payload(event.payload))


def encode_msgpack(event: Event) -> bytes:
    """The event as MessagePack."""
    return bytes(msgpack.packb(dict(event.payload)))
