"""What a message only refers to, because it is too large for one: an event, or a snapshot's chunk
of one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nats.js import JetStreamContext

from headrace.contract.events import decode
from headrace.jetstream.object_store import LargeStore


async def whole(js: JetStreamContext, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The payload itself; where it has a `reference`, what is kept in the object store in its
    place.
    """
    reference = payload.get("reference")
    if not isinstance(reference, Mapping):
        return payload
    kept: Mapping[str, Any] = decode(
        await LargeStore(js, str(reference["bucket"])).get(str(reference["name"]))
    )
    return kept
