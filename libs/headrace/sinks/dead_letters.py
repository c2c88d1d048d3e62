"""Records that a target refused, kept in the object store of parked changes until someone decides.

Promises: a record is stored before the sink passes it. A replay is delivered exactly once by a sink
that promises so: the mark of the replayed record is committed with it, and the stored record is
removed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgpack
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace.consumer.event import Event
from headrace.errors import HeadraceError
from headrace.jetstream.object_store import LargeMissingError, ObjectStore
from headrace.lsn import Position

_PREFIX = "sink"


class DeadLetterError(HeadraceError):
    """There is no such parked record."""

    remedy = "`headrace dead-letters ls` lists them."


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One parked record."""

    sink: str
    # The record's ID.
    id: str
    destination: str
    reason: str
    parked_at: str
    event: Event

    def packed(self) -> dict[str, Any]:
        event = self.event
        return {
            "sink": self.sink,
            "id": self.id,
            "destination": self.destination,
            "reason": self.reason,
            "parked_at": self.parked_at,
            "event": dict(event.payload),
            "place": [event.subject, event.stream_seq, event.lane],
        }


def _unpacked(body: Mapping[str, Any]) -> DeadLetter:
    payload = body["event"]
    subject, stream_seq, lane = body["place"]
    tx = payload["tx"]
    event = Event(
        str(payload.get("source", "")),
        str(payload.get("schema", "")),
        str(payload.get("table", "")),
        str(payload["operation"]),
        Position(tx["lsn"], tx["seq"]),
        payload,
        subject,
        stream_seq,
        lane,
        closes=True,
    )
    return DeadLetter(
        body["sink"], body["id"], body["destination"], body["reason"], body["parked_at"], event
    )


@dataclass(slots=True)
class DeadLetters:
    """The parked records of one suite."""

    js: JetStreamContext
    bucket: str
    source: str

    def _name(self, sink: str, record_id: str) -> str:
        return f"{_PREFIX}/{self.source}/{sink}/{record_id}"

    async def park(
        self, sink: str, record_id: str, destination: str, event: Event, reason: str
    ) -> None:
        """Store a record; a replay of the stream stores the same one again."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        letter = DeadLetter(sink, record_id, destination, reason, now, event)
        data = bytes(msgpack.packb(letter.packed()))
        await ObjectStore(self.js, self.bucket).put(self._name(sink, record_id), data)

    async def names(self, sink: str | None = None) -> list[tuple[str, str]]:
        """The sink and ID of each parked record."""
        prefix = f"{_PREFIX}/{self.source}/"
        try:
            store = await self.js.object_store(self.bucket)
            entries = await store.list(ignore_deletes=True)
        except NotFoundError:
            return []
        found = []
        for entry in entries:
            name = entry.name or ""
            if name.startswith(prefix):
                owner, _, record_id = name.removeprefix(prefix).partition("/")
                if sink in {None, owner}:
                    found.append((owner, record_id))
        return sorted(found)

    async def get(self, sink: str, record_id: str) -> DeadLetter:
        """One parked record."""
        try:
            data = await ObjectStore(self.js, self.bucket).get(self._name(sink, record_id))
        except LargeMissingError as error:
            raise DeadLetterError(f"{sink} has no dead letter {record_id}") from error
        return _unpacked(msgpack.unpackb(data, strict_map_key=False))

    async def drop(self, sink: str, record_id: str) -> None:
        """Remove a parked record."""
        store = await self.js.object_store(self.bucket)
        try:
            await store.delete(self._name(sink, record_id))
        except NotFoundError as error:
            raise DeadLetterError(f"{sink} has no dead letter {record_id}") from error
