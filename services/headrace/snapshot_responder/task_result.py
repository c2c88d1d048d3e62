"""The result of a Spark task of a snapshot. Imports nothing that the responder does not need."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How much a task published."""

    chunks: int = 0
    rows: int = 0

    def pack(self) -> bytes:
        return bytes(msgpack.packb([self.chunks, self.rows]))

    @classmethod
    def unpack(cls, packed: bytes) -> TaskResult:
        return cls(*msgpack.unpackb(packed))
