"""Holes: sequences in the middle of a stream whose messages are gone.

Limits remove messages from the front of a stream, and the suite deletes none. A hole is therefore a
message that someone deleted or that a damaged file lost (docs/adr/0026). nats-server lists some
holes. It notices the others only when it reads the message, and skips it: a reader of all subjects
sees a jump in the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StreamConfig

from headrace.errors import HeadraceError
from headrace.jetstream.bulk import connection_of

_TIMEOUT_S = 10.0

# The first and the last sequence that are gone.
Hole = tuple[int, int]


class HolesError(HeadraceError):
    """nats-server did not list the missing messages of a stream."""

    retry = True


def keeps_all(config: StreamConfig) -> bool:
    """Whether limits remove messages only from the front, so that a hole is a loss."""
    copied = config.mirror
    if copied is not None and (copied.filter_subject or copied.subject_transforms):
        # It has the sequences of the stream that it copies, and not all of its messages.
        return False
    per_subject = config.max_msgs_per_subject or -1
    limits = config.retention in {None, RetentionPolicy.LIMITS}
    return limits and per_subject < 0 and not config.allow_rollup_hdrs


async def known_holes(js: JetStreamContext, stream: str) -> list[Hole]:
    """The holes that nats-server lists, in order."""
    reply = await connection_of(js).request(
        f"$JS.API.STREAM.INFO.{stream}", b'{"deleted_details":true}', timeout=_TIMEOUT_S
    )
    answer = orjson.loads(reply.data)
    if "error" in answer:
        raise HolesError(f"stream {stream}: {answer['error'].get('description')}")
    return merged((seq, seq) for seq in answer["state"].get("deleted") or [])


def jumps(sequences: Iterable[int], after: int) -> list[Hole]:
    """The sequences skipped by these, which follow `after`."""
    found: list[Hole] = []
    for seq in sequences:
        if seq > after + 1:
            found.append((after + 1, seq - 1))
        after = seq
    return found


def merged(holes: Iterable[Hole]) -> list[Hole]:
    """The same sequences, in order; holes that touch or overlap become one."""
    found: list[Hole] = []
    for first, last in sorted(holes):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def within(holes: Iterable[Hole], first: int, last: int) -> list[Hole]:
    """The parts of these holes between two sequences, both included."""
    cut = ((max(first, begin), min(last, end)) for begin, end in holes)
    return [(begin, end) for begin, end in cut if begin <= end]


def without(holes: Iterable[Hole], known: Iterable[Hole]) -> list[Hole]:
    """The parts of these holes that no known one covers."""
    left = merged(holes)
    for first, last in known:
        left = [
            part
            for begin, end in left
            for part in ((begin, min(end, first - 1)), (max(begin, last + 1), end))
            if part[0] <= part[1]
        ]
    return left
