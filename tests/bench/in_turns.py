"""Two ways to do the same, measured in turns, so that both see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from headrace.consumer import Watermark
from headrace.sinks.port import Sink
from headrace.sinks.routing import RoutedTransaction

ROUNDS = 5
Batches = Sequence[Sequence[RoutedTransaction]]


def events_in(batches: Batches) -> int:
    return sum(len(one.records) for batch in batches for one in batch)


async def through(sink: Sink, batches: Batches) -> None:
    """Write batches, each with a commit, as a session does."""
    for batch in batches:
        await sink.write(batch)
        last = batch[-1]
        await sink.commit({last.source: Watermark(last.position, last.stream_seq)})


async def beside(
    ours: Callable[[], Awaitable[None]], bare: Callable[[], Awaitable[None]], events: int
) -> tuple[float, float, float]:
    """The medians of both rates, and the processor time of ours for an event, in microseconds."""
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    cpu_us = []
    for _ in range(ROUNDS):
        for name, work in (("bare", bare), ("ours", ours)):
            began, busy = time.perf_counter(), time.process_time()
            await work()
            rates[name].append(events / (time.perf_counter() - began))
            if name == "ours":
                cpu_us.append((time.process_time() - busy) / events * 1e6)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return medians["ours"], medians["bare"], statistics.median(cpu_us)
