"""How far a follower is behind its stream, in messages and seconds.

Only reads. Promises that a follower that stalls is seen to fall behind for any reason, because the
stream is queried and not the follower. Counts every message of the stream, including those that the
follower would skip.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Behind:
    """Unprocessed messages, and the age of the oldest of them; both 0 at the stream's end."""

    messages: int = 0
    age_s: float = 0.0


async def behind(js: JetStreamContext, stream: str, settled_seq: int) -> Behind:
    """The lag of a follower that has processed everything up to this sequence."""
    state = (await js.stream_info(stream)).state
    settled_seq = max(settled_seq, state.first_seq - 1)
    if state.last_seq <= settled_seq:
        return Behind()
    try:
        oldest = (await js.get_msg(stream, seq=settled_seq + 1, next=True)).time
    except NotFoundError:
        # Discarded since the stream was queried: nothing is left to wait for.
        return Behind()
    if oldest is not None:
        age_s = (datetime.now(UTC) - oldest).total_seconds()
    else:
        age_s = 0.0
    return Behind(state.last_seq - settled_seq, round(max(0.0, age_s), 3))
