"""Messages between a service and the driver process: a length, then a MessagePack map. Pure.

To the driver: `run` (job, function, plan, tasks, pool), `cancel` (job). From it: `ready`,
`progress` (job, done, tasks), `done` (job, results), `failed` (job, error, lasting: whether
another attempt would fail too).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgpack

LENGTH = struct.Struct(">I")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SparkWork:
    """A job: Spark's workers call a function with the plan and each of the tasks' numbers.

    The function returns bytes. It raises an error with `retry` if another attempt may avoid it.
    """

    # As `module:name`; the workers import it.
    function: str
    # Never contains a secret: tasks take credentials from their own environment.
    plan: bytes
    tasks: int
    # Jobs of one pool wait for each other; Spark keeps each pool for as long as it runs.
    pool: str


def pack(message: Message) -> bytes:
    body = bytes(msgpack.packb(message))
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Message:
    message: Message = msgpack.unpackb(body)
    return message
