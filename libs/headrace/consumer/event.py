"""A change event as consumers see it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.contract import events
from headrace.errors import DecodeError
from headrace.lsn import Position


# A tuple, because tens of thousands are created per second: a dataclass would cost three times as
# much.
class Event(NamedTuple):
    """One event of the stream: a change of a row, a schema, an emitted message or a gap."""

    # The replication slot that it comes from.
    source: str
    # The table's schema in PostgreSQL.
    schema: str
    # The table's name.
    table: str
    # INSERT, UPDATE, DELETE, TRUNCATE, SCHEMA, MESSAGE or GAP.
    operation: str
    # Strictly increasing within a source: store it with your output, and compare with it.
    position: Position
    # The contract's complete map (docs/contract.md).
    payload: Mapping[str, Any]
    # The subject of its message.
    subject: str
    # The stream sequence of its message.
    stream_seq: int
    # The key of its watermark: the source; for batches the source and table.
    lane: str
    # Whether it is its message's last event, so that the message may be acknowledged.
    closes: bool
    # Every transaction of the source that committed before this LSN is in the stream completely, up
    # to this event. Set on the last event of an array; 0 if unknown.
    complete: int = 0

    @property
    def data(self) -> Mapping[str, Any]:
        """The row after the change, by column; empty if the event has none."""
        return self.payload.get("data") or {}

    @property
    def old(self) -> Mapping[str, Any] | None:
        """The row before the change, as far as PostgreSQL's replica identity contains it."""
        return self.payload.get("old")

    @property
    def exact(self) -> Mapping[str, str]:
        """PostgreSQL's text of columns in `data` whose native value loses information."""
        return self.payload.get("exact") or {}

    @property
    def exact_old(self) -> Mapping[str, str]:
        """PostgreSQL's text of columns in `old` whose native value loses information."""
        return self.payload.get("exact_old") or {}

    @property
    def unchanged(self) -> list[str]:
        """Columns that are absent from `data`, because PostgreSQL doesn't send a large value that
        did not change.
        """
        return self.payload.get("unchanged") or []

    @property
    def advances(self) -> bool:
        """Whether applying it moves the watermark forward; a schema event doesn't."""
        return events.advances(self.payload)


def of_message(data: bytes, subject: str, stream_seq: int, header: bytes = b"") -> list[Event]:
    """The events of a message: one, or a batch's. Facts from its header are missing without it."""
    decoded = events.decode(data)
    if not isinstance(decoded, list):
        return [_event(decoded, subject, stream_seq, batch=False, closes=True)]
    last = len(decoded) - 1
    found = [
        _event(payload, subject, stream_seq, batch=True, closes=index == last)
        for index, payload in enumerate(decoded)
    ]
    if found and (complete := events.complete_before(header)):
        found[-1] = found[-1]._replace(complete=complete)
    return found


def _event(payload: object, subject: str, stream_seq: int, *, batch: bool, closes: bool) -> Event:
    if not isinstance(payload, dict):
        raise DecodeError(f"the message on {subject} is not an event")
    get = payload.get
    source = str(get("source", ""))
    schema = str(get("schema", ""))
    table = str(get("table", ""))
    position = events.position_of(payload)
    lane = f"{source}/{schema}.{table}" if batch else source
    operation = str(get("operation", ""))
    return Event(
        source, schema, table, operation, position, payload, subject, stream_seq, lane, closes
    )
