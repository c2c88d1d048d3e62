"""Events as a sink stores them: filtered, with a destination, a key and encoded bytes.

Promises: the records of a transaction are in its order, and an event has the same records at each
attempt. An update that changes a row's key is preceded by a delete of the old key, so that readers
of either key's lane see the row leave and arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.consumer.event import Event
from headrace.consumer.transactions import Transaction
from headrace.errors import HeadraceError
from headrace.lsn import Position
from headrace.sinks.formats.headrace_events import encode_json
from headrace.sinks.formats.json_values import dumps, plain_row

# `pg_logical_emit_message(true, 'headrace:skip', 'orders,search')` leaves the transaction out of
# these sinks.
SKIP_PREFIX = "headrace:skip"

_ROWS = frozenset({"INSERT", "UPDATE", "DELETE"})


class UnroutableError(HeadraceError):
    """An event that a filter, a template or a function can't process."""

    remedy = 'Correct the configuration, or set `on_error = "park"` to park such events.'

    def __init__(self, event: Event, cause: Exception) -> None:
        # The text of an unknown error may contain the row's values.
        reason = type(cause).__name__
        if isinstance(cause, HeadraceError):
            reason = str(cause)
        super().__init__(f"{event.payload.get('msg_id')} can't be routed: {reason}")
        self.event = event
        self.reason = reason


# A tuple, like the event: tens of thousands are created per second.
class Record(NamedTuple):
    """One event for one sink."""

    # The event's message ID: the same at each attempt, and unique within the stream.
    id: str
    # The topic, key prefix, folder or path that the sink's template yields.
    destination: str
    # The row's key as compact JSON, such as `[7]`; None for an event that concerns no single row.
    key: bytes | None
    # The event in the sink's format; empty if the sink encodes events itself.
    value: bytes
    # The event. Its operation is the one to apply: a filter may have made it another than the
    # source's.
    event: Event

    @property
    def headers(self) -> dict[str, str]:
        """Facts by which readers order and recognize records in any format."""
        event = self.event
        tx = event.payload["tx"]
        return {
            "headrace-id": self.id,
            "headrace-source": event.source,
            "headrace-position": f"{event.position.lsn} {event.position.seq}",
            "headrace-operation": event.operation,
            "headrace-xid": str(tx["xid"]),
            "headrace-last": "1" if tx["last"] else "0",
        }


@dataclass(frozen=True, slots=True)
class RoutedTransaction:
    """The records of one transaction for one sink, in order."""

    # Never empty.
    records: tuple[Record, ...]
    # Of its last event, also if a filter has left that event out.
    source: str
    position: Position
    stream_seq: int
    # Whether this is the transaction's last part.
    ends: bool = True


def event_id(event: Event) -> str:
    """The ID under which an event is parked from which no records can be made."""
    return f"event-{event.payload.get('msg_id')}"


def encoded_key(row: Mapping[str, Any], columns: Sequence[str]) -> bytes:
    """The values of a key's columns as compact JSON."""
    # As in the event: NaN and both infinities would be null, one key for three rows.
    kept = plain_row({column: row.get(column) for column in columns}) or {}
    return dumps([kept[column] for column in columns])


Encode = Callable[[Event], bytes]
Destination = Callable[[Event], str]
Filter = Callable[[Event], Iterable[Event]]


def table_name(event: Event) -> str:
    """The destination without a template: `schema.table`."""
    return f"{event.schema}.{event.table}"


@dataclass(frozen=True, slots=True)
class Router:
    """Turns transactions of the stream into those of one sink."""

    # The sink's name, by which a skip mark in the log names it.
    name: str = ""
    destination: Destination = table_name
    encode: Encode = encode_json
    # The columns of a record's key; empty for the table's own.
    key: tuple[str, ...] = ()
    # In order; each takes what the one before it returned.
    filters: tuple[Filter, ...] = ()
    # IDs of records, and of events without records, that are parked as dead letters.
    parked: set[str] = field(default_factory=set)
    # By table: the LSN before which everything is in its snapshot, which the sink has.
    copied: dict[tuple[str, str], int] = field(default_factory=dict)
    # By source: the transaction that has started, and whether it is skipped.
    _open: dict[str, tuple[int, bool]] = field(default_factory=dict)

    def route(self, transaction: Transaction) -> RoutedTransaction | None:
        """The transaction's records; None if nothing of it is for this sink."""
        if self._is_skipped(transaction):
            return None
        records = tuple(
            record
            for event in transaction.events
            for record in self._safe_records(event)
            if record.id not in self.parked
        )
        if not records:
            return None
        last = transaction.events[-1]
        return RoutedTransaction(
            records, last.source, last.position, last.stream_seq, transaction.ends
        )

    def _is_skipped(self, transaction: Transaction) -> bool:
        """Whether a mark in the log leaves the transaction out of this sink.

        The first part of a large transaction decides: what is written can't be taken back.
        """
        first = transaction.events[0]
        lsn = first.position.lsn
        begun, skipped = self._open.get(first.source, (0, False))
        if begun != lsn:
            skipped = any(self._names_this(event) for event in transaction.events)
        if transaction.ends:
            self._open.pop(first.source, None)
        else:
            self._open[first.source] = (lsn, skipped)
        return skipped

    def _names_this(self, event: Event) -> bool:
        if event.operation != "MESSAGE" or event.payload.get("prefix") != SKIP_PREFIX:
            return False
        # Outside a transaction it marks nothing.
        names = str(event.payload.get("content", "")).split(",")
        return event.payload["tx"]["xid"] != 0 and self.name in {name.strip() for name in names}

    def _safe_records(self, event: Event) -> Iterator[Record]:
        """The records; an error names the event, so that it can be parked."""
        if event.operation == "MESSAGE" and event.payload.get("prefix") == SKIP_PREFIX:
            return
        if self.parked and event_id(event) in self.parked:
            return
        if self.copied and event.position.lsn < self.copied.get((event.schema, event.table), 0):
            return
        try:
            yield from self.records(event)
        except Exception as error:
            raise UnroutableError(event, error) from error

    def records(self, event: Event) -> Iterator[Record]:
        """The records of one event."""
        events: Iterable[Event] = (event,)
        for one in self.filters:
            events = [kept for before in events for kept in one(before)]
        for kept in events:
            if kept.operation == "UPDATE" and (left := self._left(kept)) is not None:
                yield self._record(left)
            yield self._record(kept)

    def _record(self, event: Event) -> Record:
        return Record(
            str(event.payload.get("msg_id") or ""),
            self.destination(event),
            self._key(event, event.data),
            self.encode(event),
            event,
        )

    def _columns(self, event: Event) -> tuple[str, ...]:
        return self.key or tuple(event.payload.get("key") or ())

    def _key(self, event: Event, row: Mapping[str, Any]) -> bytes | None:
        columns = self._columns(event)
        if event.operation not in _ROWS or not columns:
            return None
        return encoded_key(row, columns)

    def _left(self, event: Event) -> Event | None:
        """The delete of the old key, if the update has changed the key."""
        old = event.old
        columns = self._columns(event)
        if old is None or not columns or any(column not in old for column in columns):
            return None
        if self._key(event, old) == self._key(event, event.data):
            return None
        data = {column: old[column] for column in columns}
        payload = {**event.payload, "operation": "DELETE", "data": data}
        payload["msg_id"] = f"{event.payload.get('msg_id')}-old"
        payload["tx"] = {**event.payload["tx"], "last": False}
        for part in ("unchanged", "exact"):
            payload.pop(part, None)
        return event._replace(operation="DELETE", payload=payload)
