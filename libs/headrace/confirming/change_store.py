"""The port of a change store: where changes are stored before they are confirmed. Pure.

A change store is three methods. It holds what it took in memory, makes it durable when it sees fit,
and returns how far that is each time that it is asked. It raises when the outcome of something is
in doubt; then a new one starts from the durable end of what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from headrace.bus.frame import Entry, Opening

# The interval at which a change store is asked again when nothing comes, unless it wants to be
# asked sooner.
TICK_S = 0.25


class Demand(Enum):
    """The share of the taken entries that has to be stored."""

    # The next frame is at hand: only what must not wait.
    LITTLE = auto()
    # Nothing is at hand.
    MORE = auto()
    # The wal-reader or this service is about to stop: everything that is whole, and wait for it.
    ALL = auto()


@dataclass(frozen=True, slots=True)
class Stored:
    """The progress of a change store: everything before `lsn` is durable, so that PostgreSQL may
    forget it.

    `lsn` never exceeds what was taken in this epoch or stored before. `waiting`: something was
    taken that could be confirmed once it is durable. Within `again_s` the change store is asked
    again, even if nothing comes.
    """

    lsn: int
    waiting: bool
    again_s: float = TICK_S


@dataclass(frozen=True, slots=True)
class Taken:
    """The entries of one frame, in the order of the log; none where it only asks how far it is."""

    frame: str
    entries: Sequence[Entry] = ()


class ChangeStore(Protocol):
    async def on_epoch(self, opening: Opening) -> None:
        """The log begins again from `opening.confirmed_lsn`: transactions come whole, and changes
        that are stored already come again. Raises when this is not the source that it was.
        """
        ...

    async def take(self, taken: Taken) -> Stored:
        """Take a frame; entries that the service's stop leaves untaken come again.

        After `ReadingAbandonedError` it is not called again, but `store` is: what was taken before
        stays.
        """
        ...

    async def store(self, demand: Demand) -> Stored:
        """Called after each frame and at intervals: make durable what is demanded."""
        ...
