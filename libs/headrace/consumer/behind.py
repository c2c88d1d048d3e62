"""How far a follower is behind its stream, in messages and in seconds.

Reads only. Promises that a follower which stands still is seen to fall behind, whatever keeps it:
the stream is asked, not the follower. Counts every message of the stream, also those that the
follower would pass over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Behind:
    """Messages that are not settled, and the age of the oldest of them; both 0 at the stream's end."""

    messages: int = 0
    age_s: float = 0.0


async def behind(js: JetStreamContext, stream: str, settled_seq: int) -> Behind:
    """How far who has settled everything up to this sequence is behind."""
    state = (await js.stream_info(stream)).state
    settled_seq = max(settled_seq, state.first_seq - 1)
    if state.last_seq <= settled_seq:
        return Behind()
    try:
        oldest = (await js.get_msg(stream, seq=settled_seq + 1, next=True)).time
    except NotFoundError:
        # Discarded since the stream was asked: nothing is left to wait for.
        return Behind()
    if oldest is not None:
        age_s = (datetime.now(UTC) - oldest).total_seconds()
    else:
        age_s = 0.0
    return Behind(state.last_seq - settled_seq, round(max(0.0, age_s), 3))
