"""The port of a sink: what a destination of changes implements, and what it promises.

A session opens a sink, writes whole transactions, commits them with the marks, and closes it. Any
error ends the session: the next one opens a new sink and continues from the marks that it returns,
which also resolves a commit whose outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from headrace.consumer.watermark import Watermark
from headrace.errors import HeadraceError
from headrace.sinks.routing import Record, RoutedTransaction

# The key of the mark that says how far the stream was read; every other key is a source.
SEEN = ""
# The reason of the gap event that precedes new copies of all tables.
COPIES_FOLLOW = "sink_beyond_retention"


# A table's description: the `columns` of its last schema event and more, or None if unknown.
Describe = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]


class Promise(StrEnum):
    """The guarantee to a sink's readers, even if processes and connections fail."""

    # Every change once, and the changes of a transaction together.
    EXACTLY_ONCE = "exactly once"
    # The newest state of each row: a change may be applied twice, without an effect.
    RIGHT_STATE = "right state"
    # Every change at least once, in order within a key, with an ID by which to recognize a repeat.
    AT_LEAST_ONCE = "at least once"


class SinkError(HeadraceError):
    """The sink can't continue without a change of its configuration or its target."""


class SinkAwayError(SinkError):
    """The target is unavailable, or its answer is missing: worth another attempt."""

    retry = True


class SinkFencedError(SinkError):
    """Another process writes to the target under this sink's name."""

    remedy = "Only one process may run a sink: stop one of them, or give the sink another name."


class DisabledError(SinkError):
    """The target wants nothing more: the sink pauses until someone resumes it."""

    remedy = "Resume it with `headrace sinks resume NAME` when the target accepts changes again."


class RefusedError(SinkError):
    """The target refuses this record, and would at each attempt."""

    remedy = (
        'Correct the row or the target, or set `on_error = "park"` to store such records as dead '
        "letters and continue."
    )

    def __init__(self, record: Record, reason: str) -> None:
        super().__init__(f"{record.destination} refuses {record.id}: {reason}")
        # Handed over by the session, which parks it or stops.
        self.record = record
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Pace:
    """When a sink commits: at this many events, or this long after the first one."""

    events_max: int = 2000
    wait_s: float = 0.1
    # For each call of the sink: after that its answer counts as missing.
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The arguments of a sink's class."""

    # Unique within the suite: names the sink's marks, transactional ID, producer or lock.
    name: str
    # The target's address, such as `kafka://broker:9092` or `file:///var/lib/changes`.
    to: str
    # Identifies the stream whose sequences the marks contain: another one counts from 1 again.
    stream: str = ""
    # The sink's own table of headrace.toml, with secrets resolved.
    options: Mapping[str, Any] = field(default_factory=dict)
    # Asks for a table's newest published description, by schema and name; None where there is no
    # suite that publishes one.
    describe: Describe | None = field(default=None, compare=False)


class Sink(Protocol):
    """A destination of changes. Created from `SinkOptions` for each session; never used again
    after an error, except for `close`.
    """

    @property
    def promise(self) -> Promise:
        """The guarantee to its readers; a class attribute."""
        ...

    async def open(self) -> Mapping[str, Watermark]:
        """Connect, fence an older process of the same name, and return the committed marks; none
        for a sink that never committed.
        """
        ...

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Take transactions, in order. A sink that promises exactly once shows none of it before
        `commit`.
        """
        ...

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Make what was written visible and durable, together with all marks, or nothing of it.

        Raises `SinkFencedError` if a newer process has opened the sink. May be called without a
        `write` before it, to store how far the stream was seen.
        """
        ...

    async def close(self) -> None:
        """Release connections, discard what is not committed; a lost connection is no error."""
        ...


@runtime_checkable
class CheckableSink(Protocol):
    """A sink that can try its connection; `headrace sinks test` does."""

    async def check(self) -> str:
        """Connect and log in as `open` does, but write nothing and fence nobody. Returns what was
        tried, in a few words.
        """
        ...
