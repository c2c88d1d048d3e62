"""Loads what is too large for a message, which only refers to it: an event, or a snapshot chunk of
one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nats.js import JetStreamContext

from headrace.contract.events import decode
from headrace.jetstream.object_store import ObjectStore


async def whole(js: JetStreamContext, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The payload itself, loaded from the object store if it contains a `reference`."""
    reference = payload.get("reference")
    if not isinstance(reference, Mapping):
        return payload
    kept: Mapping[str, Any] = decode(
        await ObjectStore(js, str(reference["bucket"])).get(str(reference["name"]))
    )
    return kept
