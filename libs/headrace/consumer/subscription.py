"""The part of a stream that a consumer follows, and where it starts. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.jetstream.dictionaries import STATE_BUCKET


class Start(StrEnum):
    """Where a consumer without a watermark starts."""

    # At the first message of the stream.
    ALL = "all"
    # After the last message of the stream.
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What to follow, and where to start."""

    # The name of the stream.
    stream: str = "CDC"
    # Subjects, with NATS wildcards; empty for all of the stream.
    filters: tuple[str, ...] = ()
    # The name of a consumer on the server, which then shows its progress; None for an unnamed one.
    durable: str | None = None
    # Where a consumer without a watermark starts.
    start: Start = Start.ALL
    # The stream sequence at which a consumer that has seen nothing starts, instead of `start`. If
    # this message or a later one was discarded, that is a gap.
    start_seq: int | None = None
    # Contains the dictionaries of compressed events: the suite's HEADRACE_STATE_BUCKET.
    state_bucket: str = STATE_BUCKET
