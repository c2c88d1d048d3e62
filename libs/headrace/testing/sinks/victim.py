"""The process that the kit kills: a session of the frame, with a sink and the kit's transactions.

It reads its task from standard input, and ends by a failpoint or when everything is delivered.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from headrace.consumer import FileWatermarks, Transaction, Watermark
from headrace.lsn import ORIGIN
from headrace.metrics.counters import Counters
from headrace.process import failpoint
from headrace.sinks.port import Pace, SinkOptions
from headrace.sinks.reading import source_mark
from headrace.sinks.remembered import RememberedMarks
from headrace.sinks.routing import Router
from headrace.sinks.session import SinkSession
from headrace.sinks.targets import keeps_marks, sink_class
from headrace.testing.sinks.records import SOURCE, of_number

# A commit every few transactions.
PACE = Pace(events_max=4)


@dataclass(slots=True)
class Numbered:
    """Reads the transactions with these numbers, as from a stream."""

    number: int
    end: int
    ended: asyncio.Event
    settled_seq: int = 0

    async def next(self, _: float) -> Transaction | None:
        """The next one; at the end it ends the session."""
        if self.number >= self.end:
            self.ended.set()
            return None
        transaction = of_number(self.number)
        self.number += 1
        self.settled_seq = transaction.events[-1].stream_seq
        return transaction

    async def done(self, stream_seq: int) -> None:
        """Nothing is kept for a repeat."""


@dataclass(slots=True)
class FileMarks:
    """The marks of a sink whose target has no place for them."""

    store: FileWatermarks

    async def load(self) -> dict[str, Watermark]:
        return await self.store.load()

    async def save(self, marks: Mapping[str, Watermark]) -> None:
        for lane, mark in marks.items():
            await self.store.save(lane, mark)


async def deliver(task: Mapping[str, Any]) -> None:
    """One session, from the committed marks."""
    given = {name: task[name] for name in ("name", "to", "stream", "options")}
    made = sink_class(task["sink"])
    sink = made(SinkOptions(**given))
    if not keeps_marks(made):
        sink = RememberedMarks(sink, FileMarks(FileWatermarks(Path(task["marks"]))))
    # From here on as in the service: the marks decide which transaction is next.
    marks = dict(await sink.open())
    number = int(task["first"])
    while of_number(number).events[-1].position <= source_mark(marks, SOURCE) != ORIGIN:
        number += 1
    ended = asyncio.Event()
    reader = Numbered(number, task["end"], ended)
    destination = str(task["destination"])
    router = Router(destination=lambda _: destination)
    await SinkSession(sink, router, reader, marks, Counters(), PACE).run(ended)
    await sink.close()


def main() -> None:
    """Deliver what standard input says."""
    task = orjson.loads(sys.stdin.buffer.read())
    # A sink of the tests, which the calling process can import.
    sys.path[:] = task["path"]
    if task["failpoint"]:
        failpoint.arm(task["failpoint"])
    asyncio.run(deliver(task))


if __name__ == "__main__":
    main()
