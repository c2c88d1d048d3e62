"""Records that a target refused, kept in the object store of parked changes until someone decides.

Promises: a record is stored before the sink passes it. A replay is delivered exactly once by a sink
that promises so: the mark of the replayed record is committed with it, and the stored record is
removed afterwards. A correction is stored next to the record, so that correcting a record that is
delivered at the same moment never brings it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgpack
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace.consumer.event import Event
from headrace.errors import HeadraceError
from headrace.jetstream.object_store import LargeMissingError, ObjectStore
from headrace.lsn import Position
from headrace.sinks.corrections import corrected

_PREFIX = "sink"
_CORRECTIONS = "sink.corrected"


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
    # The columns that were corrected, and the name of the last user who did so.
    corrected: tuple[str, ...] = ()
    corrected_by: str = ""

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
            "corrected": list(self.corrected),
            "corrected_by": self.corrected_by,
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
        body["sink"],
        body["id"],
        body["destination"],
        body["reason"],
        body["parked_at"],
        event,
        # Records that were parked before corrections existed lack these fields.
        tuple(body.get("corrected") or ()),
        str(body.get("corrected_by") or ""),
    )


@dataclass(slots=True)
class DeadLetters:
    """The parked records of one suite."""

    js: JetStreamContext
    bucket: str
    source: str

    def _name(self, sink: str, record_id: str, prefix: str = _PREFIX) -> str:
        return f"{prefix}/{self.source}/{sink}/{record_id}"

    async def park(
        self, sink: str, record_id: str, destination: str, event: Event, reason: str
    ) -> None:
        """Store a record; a replay of the stream stores the same one again."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        letter = DeadLetter(sink, record_id, destination, reason, now, event)
        data = bytes(msgpack.packb(letter.packed()))
        store = ObjectStore(self.js, self.bucket)
        name = self._name(sink, record_id)
        try:
            # A record that is parked already, and comes again, keeps its correction.
            await store.get(name)
        except LargeMissingError:
            # Of an earlier time that it was parked, if it was corrected while it was delivered.
            await self._remove(self._name(sink, record_id, _CORRECTIONS))
        await store.put(name, data)

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
        """One parked record, with its correction."""
        store = ObjectStore(self.js, self.bucket)
        try:
            data = await store.get(self._name(sink, record_id))
        except LargeMissingError as error:
            raise DeadLetterError(f"{sink} has no dead letter {record_id}") from error
        with contextlib.suppress(LargeMissingError):
            data = await store.get(self._name(sink, record_id, _CORRECTIONS))
        return _unpacked(msgpack.unpackb(data, strict_map_key=False))

    async def correct(
        self, sink: str, record_id: str, wanted: Mapping[str, str | None], by: str
    ) -> None:
        """Store other values for columns; the next replay delivers them."""
        # With an earlier correction, so that columns can be corrected one after the other.
        letter = await self.get(sink, record_id)
        event = letter.event._replace(payload=corrected(letter.event.payload, wanted))
        columns = tuple(dict.fromkeys((*letter.corrected, *wanted)))
        changed = replace(letter, event=event, corrected=columns, corrected_by=by)
        name = self._name(sink, record_id, _CORRECTIONS)
        data = bytes(msgpack.packb(changed.packed()))
        await ObjectStore(self.js, self.bucket).put(name, data)
        try:
            await self.get(sink, record_id)
        except DeadLetterError:
            # It was delivered or dropped in the meantime.
            await self._remove(name)
            raise

    async def drop(self, sink: str, record_id: str) -> None:
        """Remove a parked record, and its correction."""
        # The record last: without it, nobody would see what is left after a crash in between.
        await self._remove(self._name(sink, record_id, _CORRECTIONS))
        if not await self._remove(self._name(sink, record_id)):
            raise DeadLetterError(f"{sink} has no dead letter {record_id}")

    async def _remove(self, name: str) -> bool:
        """Whether there was such an object."""
        store = await self.js.object_store(self.bucket)
        try:
            await store.delete(name)
        except NotFoundError:
            return False
        return True
