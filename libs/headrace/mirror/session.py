"""One session of a mirror's follower: what it knows since it started from the committed state, and
the errors that end a session.

A session is discarded whole: after a rollback nothing in it is true any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from headrace.consumer import Event, Watermark
from headrace.consumer.watermark import Watermarks
from headrace.lsn import ORIGIN, Position
from headrace.mirror.ahead import Ahead
from headrace.mirror.assembly import Assembly, is_outside
from headrace.mirror.reach import Reach
from headrace.mirror.target import RowMissingError, TakenOverError, TargetAwayError, TargetError

# How soon to look for the end of a transaction that may be of tables not followed; longer each time
# in vain.
LOOK_S = 0.002


@dataclass(slots=True)
class FollowSession:
    """The state between the committed one and what was read."""

    # How far each source is in the target's open transaction; the book's own lanes say how far it
    # is in the committed state.
    lanes: Watermarks
    reach: Reach
    ahead: Ahead
    assembly: Assembly = field(default_factory=Assembly)
    # Whole transactions that are not written to the target yet.
    ready: list[Event] = field(default_factory=list)
    # The size of the referenced objects among the events taken since the last write: a few large
    # values may fill the memory long before there are many events.
    large_bytes: int = 0
    # The number of reads of many events since the last write.
    reads: int = 0
    # Whether the target has an open transaction of ours. Then this session holds the book's lock:
    # a bootstrap that committed in between would commit half of it.
    writing: bool = False
    # By source: the LSN of its unfinished transaction in the target's open transaction. Until it
    # ends, nothing may be committed.
    spilled: dict[str, int] = field(default_factory=dict)
    # The pause before the next look ahead; doubled while looking finds nothing.
    look_s: float = LOOK_S

    def advance(self, events: Iterable[Event]) -> None:
        """Note how far each source is with these events written."""
        positions: dict[str, Position] = {}
        sequences: dict[str, int] = {}
        for event in events:
            source = event.source
            if event.stream_seq > sequences.get(source, 0):
                sequences[source] = event.stream_seq
            if event.position > positions.get(source, ORIGIN) and not is_outside(event):
                positions[source] = event.position
        for source, stream_seq in sequences.items():
            mark = self.lanes.get(source, Watermark())
            position = max(mark.position, positions.get(source, ORIGIN))
            self.lanes[source] = Watermark(position, max(mark.stream_seq, stream_seq))


def without_positions(lanes: Watermarks, sources: Collection[str]) -> Watermarks:
    """The lanes if the positions of these sources no longer have a meaning."""
    return {
        # Its stream_seq stays: events outside transactions are compared by it.
        lane: replace(mark, position=ORIGIN) if lane in sources else mark
        for lane, mark in lanes.items()
        if lane in sources or lane.split("/")[0] not in sources
    }


class TornError(Exception):
    """The target's open transaction contains a part of one that will never be complete."""


class StepRefusedError(Exception):
    """The target refuses something of what was written together."""


class StepsRefusedError(Exception):
    """The target refuses a change of this table, or to replace the table by its copy."""

    def __init__(self, token: str, error: TargetError) -> None:
        super().__init__(str(error))
        self.token = token
        self.error = error


@contextlib.contextmanager
def refusals(token: str) -> Iterator[None]:
    """Name the table that the target refuses. A temporary error, or one that a copy repairs, stays
    as it is.
    """
    try:
        yield
    except (TargetAwayError, TakenOverError, RowMissingError):
        raise
    except TargetError as error:
        raise StepsRefusedError(token, error) from error
