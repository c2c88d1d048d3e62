"""Messages between the responder and the driver process: a length, then a MessagePack map. Pure.

To the driver: `run` (job, plan), `cancel` (job). From it: `ready`, `progress` (job, done, tasks),
`done` (job, chunks, rows), `failed` (job, error).
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

LENGTH = struct.Struct(">I")

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    body = bytes(msgpack.packb(message))
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Message:
    message: Message = msgpack.unpackb(body)
    return message
