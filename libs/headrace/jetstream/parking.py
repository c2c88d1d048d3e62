"""`--poison park`: stores an undecodable change with the reason, so that the stream continues.

Parked changes are in an object store without an age limit, under source, LSN and ordinal. A replay,
or the other reader of the log (publisher and archiver), overwrites one with the same content. By
default nothing is parked: an undecodable change visibly stops the stream.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgpack

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.jetstream.object_store import ObjectStore
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.pgoutput.redaction import without
from headrace.settings import Poison

log = logs.logger("parking")

# Only row changes and emitted messages may be skipped: without a Begin, Commit or Relation, nothing
# after it could be decoded.
_ROWS = frozenset(b"IUD")
_MAY_BE_MISSING = _ROWS | frozenset(b"M")


@dataclass(frozen=True, slots=True)
class Parking:
    _poison: Poison
    _store: ObjectStore
    _source: str
    _stats: Counters
    _figure: str = "parked_messages"

    def takes(self, message: bytes) -> bool:
        return self._poison is Poison.PARK and message[0] in _MAY_BE_MISSING

    async def put(
        self,
        lsn: int,
        position: Position,
        message: bytes,
        reason: HeadraceError,
        hidden: Collection[int] = (),
    ) -> None:
        """Store the message before the stream passes it, without the columns at these indexes."""
        if hidden and message[0] in _ROWS:
            message = without(message, hidden)
        name = f"{self._source}-{position.lsn:x}-{position.seq}"
        body = {
            "source": self._source,
            "lsn": lsn,
            "position": list(position),
            "reason": str(reason),
            "message": message,
        }
        await self._store.put(name, bytes(msgpack.packb(body)))
        self._stats.count(self._figure)
        log.error("message_parked", name=name, reason=str(reason), bytes=len(message))
