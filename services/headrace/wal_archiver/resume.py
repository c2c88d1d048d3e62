"""Decides where the log continues: compares the store with the server.

Promises that a server that isn't the store's, or is older than it, is refused before anything is
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.backup.errors import DivergedError, ForeignStoreError
from headrace.backup.layout import LogPiece, Segments
from headrace.backup.segments import ranges
from headrace.backup.timelines import parents, way
from headrace.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class Server:
    """The server as it is now."""

    # Its current one.
    timeline: int
    # The end of its log on disk.
    lsn: int
    history: bytes
    # The beginning of the log that its slot retains.
    slot_lsn: int


@dataclass(frozen=True, slots=True)
class LogStart:
    """Where to continue: the timeline, the LSN up to which the store is complete."""

    # The timeline to ask the server for.
    timeline: int
    end: int


def resume(pieces: Sequence[LogPiece], server: Server, segments: Segments) -> LogStart:
    """Where to continue. An empty store begins with the slot's segment."""
    before = parents(server.history)
    stretches = way(server.timeline, before)
    if not pieces:
        begin = segments.begin(server.slot_lsn)
        timeline = next(one.timeline for one in stretches if begin < one.end)
        return LogStart(timeline, begin)
    newest = max(piece.timeline for piece in pieces)
    if newest > server.timeline:
        raise ForeignStoreError(
            f"the store has timeline {newest} already, and this server is on the older timeline "
            f"{server.timeline}: another server has taken over"
        )
    # A timeline that the server has never been on: another standby was promoted before.
    stretch = next((one for one in stretches if one.timeline == newest), None)
    if stretch is None:
        raise ForeignStoreError(
            f"the store is on timeline {newest}, which timeline {server.timeline} of this server "
            "has never been on"
        )
    own = ranges(piece for piece in pieces if piece.timeline == newest)
    end = own[-1].end
    if newest == server.timeline and server.lsn < end:
        raise DivergedError(
            f"the server's log ends at {format_lsn(server.lsn)}, and the store has it up to "
            f"{format_lsn(end)}"
        )
    if end < stretch.end:
        return LogStart(newest, end)
    # Log of the old timeline beyond the fork belongs to nobody's future.
    following = stretches[stretches.index(stretch) + 1]
    return LogStart(following.timeline, stretch.end)
