"""Delivers the change stream to sinks: Kafka, files, webhooks, a program's own (docs/sinks.md).

A sink is four methods (`Sink`). Each runs in a separate process with a committed position, so that
one that is slow, unavailable or refusing delays no other:

    class Lines:
        promise = Promise.EXACTLY_ONCE

        async def open(self): ...                 # the marks that are committed there
        async def write(self, transactions): ...  # not visible to readers yet
        async def commit(self, marks): ...        # data and marks, or neither
        async def close(self): ...

Any program may import it. It never confirms an LSN, never changes a stream of events, and never
skips a change silently.
"""

from headrace.consumer.watermark import Watermark
from headrace.sinks.port import (
    CheckableSink,
    DisabledError,
    Pace,
    Promise,
    RefusedError,
    Sink,
    SinkAwayError,
    SinkError,
    SinkFencedError,
    SinkOptions,
)
from headrace.sinks.routing import Record, RoutedTransaction

__all__ = [
    "CheckableSink",
    "DisabledError",
    "Pace",
    "Promise",
    "Record",
    "RefusedError",
    "RoutedTransaction",
    "Sink",
    "SinkAwayError",
    "SinkError",
    "SinkFencedError",
    "SinkOptions",
    "Watermark",
]
