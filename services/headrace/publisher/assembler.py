"""From pgoutput messages to events: positions, ids, payloads. Pure; one instance per epoch.

Promises: positions strictly increase; the same WAL gives the same ids and positions on every replay; an event is held
back until it is known whether it is its transaction's last. `feed` yields what to publish (`Event`) and, where
everything before an LSN is complete, a `Mark`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.contract import events
from headrace.contract.events import Payload
from headrace.contract.naming import Operation, message_id
from headrace.contract.values import Encoding
from headrace.errors import HeadraceError
from headrace.lsn import Position
from headrace.pgoutput.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    PgoutputMessage,
    Row,
    Truncate,
    Update,
    pg_timestamp_iso,
)
from headrace.publisher.shape import Shape


class ProtocolError(HeadraceError):
    """PostgreSQL's messages came in an order that its protocol excludes."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event, encoded, with its place."""

    position: Position
    subject: str
    msg_id: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything before `lsn` has been yielded; `whole` tells a transaction's end from a keepalive."""

    lsn: int
    whole: bool


@dataclass(slots=True)
class _Held:
    position: Position
    subject: str
    msg_id: str
    payload: Payload


class Assembler:
    def __init__(self, source: str, encoding: Encoding) -> None:
        self._source = source
        self._encoding = encoding
        self._shapes: dict[int, Shape] = {}
        self._begin: Begin | None = None
        self._ts = ""
        self._seq = 0
        self._held: _Held | None = None
        self._lsn = -1
        self._repeats: dict[tuple[str, Operation], int] = {}

    @property
    def in_transaction(self) -> bool:
        return self._begin is not None

    def learn(self, shape: Shape) -> None:
        """Rows of this relation have this shape from here on."""
        self._shapes[shape.relation.relation_id] = shape

    def keepalive(self, lsn: int) -> Iterator[Mark]:
        """PostgreSQL says that it sent everything before `lsn`."""
        if self._begin is None:
            yield Mark(lsn, whole=False)

    def feed(self, lsn: int, message: PgoutputMessage) -> Iterator[Event | Mark]:
        match message:
            case Insert():
                yield from self._insert(lsn, message)
            case Update():
                yield from self._update(lsn, message)
            case Delete():
                yield from self._delete(lsn, message)
            case Truncate():
                yield from self._truncate(lsn, message)
            case Begin():
                self._on_begin(message)
            case Commit():
                yield from self._commit(message)
            case _:
                # Types and origins carry nothing of their own; relations come through `learn`.
                return

    def _on_begin(self, begin: Begin) -> None:
        if self._begin is not None:
            raise ProtocolError("a transaction began inside another")
        self._begin, self._seq = begin, 0
        self._ts = pg_timestamp_iso(begin.commit_ts_us)

    def _commit(self, commit: Commit) -> Iterator[Event | Mark]:
        if self._begin is None:
            raise ProtocolError("a transaction ended that never began")
        if self._held is not None:
            yield self._release(last=True)
        self._begin = None
        yield Mark(commit.end_lsn, whole=True)

    def _insert(self, lsn: int, message: Insert) -> Iterator[Event]:
        shape = self._shape(message.relation_id)
        data, unchanged = shape.row(message.new)
        yield from self._hold(lsn, shape, Operation.INSERT, data, unchanged=unchanged)

    def _update(self, lsn: int, message: Update) -> Iterator[Event]:
        shape = self._shape(message.relation_id)
        data, unchanged = shape.row(message.new)
        old = _old(shape, message.key, message.old)
        yield from self._hold(lsn, shape, Operation.UPDATE, data, old=old, unchanged=unchanged)

    def _delete(self, lsn: int, message: Delete) -> Iterator[Event]:
        shape = self._shape(message.relation_id)
        old = _old(shape, message.key, message.old)
        yield from self._hold(lsn, shape, Operation.DELETE, shape.deleted(old or {}), old=old)

    def _truncate(self, lsn: int, message: Truncate) -> Iterator[Event]:
        for relation_id in message.relation_ids:
            yield from self._hold(lsn, self._shape(relation_id), Operation.TRUNCATE, {})

    def _shape(self, relation_id: int) -> Shape:
        shape = self._shapes.get(relation_id)
        if shape is None:
            raise ProtocolError(f"a change of relation {relation_id}, which was never described")
        return shape

    def _hold(
        self,
        lsn: int,
        shape: Shape,
        operation: Operation,
        data: Payload,
        *,
        old: Payload | None = None,
        unchanged: list[str] | None = None,
    ) -> Iterator[Event]:
        """Hold this event back, let go of the one before."""
        begin = self._begin
        if begin is None:
            raise ProtocolError("a change outside a transaction")
        if self._held is not None:
            yield self._release(last=False)
        msg_id = message_id(lsn, shape.token, operation, self._repeat(lsn, shape.token, operation))
        position = Position(begin.final_lsn, self._seq)
        self._seq += 1
        payload: Payload = {
            "subject": shape.subjects[operation],
            "table": shape.relation.name,
            "operation": operation.upper(),
            "msg_id": msg_id,
            "relation_id": shape.relation.relation_id,
            "data": data,
            "schema": shape.relation.schema,
            "source": self._source,
            "lsn": lsn,
            "tx": events.transaction(begin.xid, position, self._ts, last=False),
        }
        if old is not None:
            payload["old"] = old
        if unchanged:
            payload["unchanged"] = unchanged
        self._held = _Held(position, shape.subjects[operation], msg_id, payload)

    def _repeat(self, lsn: int, token: str, operation: Operation) -> int:
        """How many changes of this table and kind the same WAL record had before."""
        if lsn != self._lsn:
            self._lsn = lsn
            self._repeats.clear()
        before = self._repeats.get((token, operation), 0)
        self._repeats[token, operation] = before + 1
        return before

    def _release(self, *, last: bool) -> Event:
        held = self._held
        assert held is not None
        self._held = None
        held.payload["tx"]["last"] = last
        return Event(held.position, held.subject, held.msg_id, events.encode(held.payload, self._encoding))


def _old(shape: Shape, key: Row | None, old: Row | None) -> dict[str, object] | None:
    if old is not None:
        return shape.row(old)[0]
    return None if key is None else shape.key_row(key)
