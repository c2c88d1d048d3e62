"""A change event as a consumer holds it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.contract import events
from headrace.errors import DecodeError
from headrace.lsn import Position


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the stream; `payload` is the contract's map, whole."""

    source: str
    schema: str
    table: str
    operation: str
    position: Position
    payload: Mapping[str, Any]
    subject: str
    stream_seq: int
    # What its watermark is kept under: the source; with batches the source and table.
    lane: str
    # Whether it is the last of its message, so that the message may be acknowledged.
    closes: bool

    @property
    def data(self) -> Mapping[str, Any]:
        return self.payload.get("data") or {}

    @property
    def old(self) -> Mapping[str, Any] | None:
        return self.payload.get("old")

    @property
    def unchanged(self) -> list[str]:
        """Columns whose value PostgreSQL did not send, because it did not change: absent from `data`."""
        return self.payload.get("unchanged") or []

    @property
    def advances(self) -> bool:
        """Whether having applied it takes the watermark forward; a schema event does not."""
        return events.advances(self.payload)


def of_message(data: bytes, subject: str, stream_seq: int) -> Iterator[Event]:
    """The events of a message: one, or a batch's."""
    decoded = events.decode(data)
    batch = isinstance(decoded, list)
    payloads = decoded if batch else [decoded]
    for index, payload in enumerate(payloads):
        if not isinstance(payload, Mapping):
            raise DecodeError(f"a message on {subject} that is not an event")
        source, table = str(payload.get("source", "")), str(payload.get("table", ""))
        schema = str(payload.get("schema", ""))
        yield Event(
            source=source,
            schema=schema,
            table=table,
            operation=str(payload.get("operation", "")),
            position=events.position_of(payload),
            payload=payload,
            subject=subject,
            stream_seq=stream_seq,
            lane=f"{source}/{schema}.{table}" if batch else source,
            closes=index == len(payloads) - 1,
        )
