"""The forms in which sinks write events: Headrace's own, Debezium's envelope, CloudEvents.

A form is a function from an event to bytes. None of them loses a value that the event has: what
JSON can't hold is text, as the wire contract defines.

Only `sinks` and `cli` may import it. It never reads or writes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from headrace.consumer.event import Event
from headrace.sinks.formats.cloud_events import encode_cloud_event
from headrace.sinks.formats.debezium import encode_debezium
from headrace.sinks.formats.headrace_events import encode_json, encode_msgpack


class Format(StrEnum):
    """The form of a record's value."""

    JSON = "json"
    MSGPACK = "msgpack"
    DEBEZIUM = "debezium"
    CLOUD_EVENTS = "cloudevents"


_ENCODERS: dict[Format, Callable[[Event], bytes]] = {
    Format.JSON: encode_json,
    Format.MSGPACK: encode_msgpack,
    Format.DEBEZIUM: encode_debezium,
    Format.CLOUD_EVENTS: encode_cloud_event,
}


def encoder(form: Format) -> Callable[[Event], bytes]:
    """The function that writes an event in this form."""
    return _ENCODERS[form]
