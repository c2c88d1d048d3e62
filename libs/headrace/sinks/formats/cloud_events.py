"""CloudEvents 1.0 in the structured JSON form; `data` is the wire contract's event."""

from __future__ import annotations

from typing import Any

from headrace.consumer.event import Event
from headrace.sinks.formats.headrace_events import json_payload
from headrace.sinks.formats.json_values import dumps


def cloud_event(event: Event) -> dict[str, Any]:
    """The attributes, and the event as data."""
    body: dict[str, Any] = {
        "specversion": "1.0",
        "id": str(event.payload.get("msg_id") or ""),
        # With the ID it is unique: IDs are unique within a source.
        "source": f"/headrace/{event.source}",
        "type": f"io.headrace.{event.operation.lower()}",
        "datacontenttype": "application/json",
    }
    if event.table:
        body["subject"] = f"{event.schema}.{event.table}"
    if event.payload["tx"]["ts"] is not None:
        body["time"] = event.payload["tx"]["ts"]
    body["data"] = json_payload(event.payload)
    return body


def encode_cloud_event(event: Event) -> bytes:
    """The event as one JSON document."""
    return dumps(cloud_event(event))
