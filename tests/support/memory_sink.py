"""A sink in memory that promises exactly once, and stands for a target that outlives its process.

`Target` is what survives; each `MemorySink` is one session. A session that was fenced is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.consumer import Watermark
from headrace.sinks import (
    Promise,
    Record,
    RefusedError,
    RoutedTransaction,
    SinkAwayError,
    SinkFencedError,
)


@dataclass
class Target:
    """What readers see."""

    records: list[Record] = field(default_factory=list)
    marks: dict[str, Watermark] = field(default_factory=dict)
    # The number of records after each commit.
    commits: list[int] = field(default_factory=list)
    # The session that may commit.
    epoch: int = 0
    # IDs of records that it refuses.
    refused: set[str] = field(default_factory=set)
    # Errors of the next commits, and whether each of them commits nevertheless.
    failures: list[tuple[Exception, bool]] = field(default_factory=list)


class MemorySink:
    promise = Promise.EXACTLY_ONCE
    # Whether it compares the target's marks with those that it has committed last.
    notices = True

    def __init__(self, target: Target) -> None:
        self._target = target
        self._epoch = 0
        self._written: list[Record] = []
        self._marks: dict[str, Watermark] = {}
        self.closed = False

    async def open(self) -> Mapping[str, Watermark]:
        self._target.epoch += 1
        self._epoch = self._target.epoch
        self._marks = dict(self._target.marks)
        return dict(self._marks)

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        for transaction in transactions:
            for record in transaction.records:
                if record.id in self._target.refused:
                    raise RefusedError(record, "it is refused")
                self._written.append(record)

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        target = self._target
        if self._epoch != target.epoch:
            raise SinkFencedError("a newer session has opened the target")
        if self.notices and target.marks != self._marks:
            raise SinkAwayError("the target has lost commits")
        error, commits = target.failures.pop(0) if target.failures else (None, True)
        if commits:
            target.records += self._written
            target.marks = dict(marks)
            self._marks = dict(marks)
            target.commits.append(len(target.records))
            self._written = []
        if error is not None:
            raise error

    async def close(self) -> None:
        self.closed = True
