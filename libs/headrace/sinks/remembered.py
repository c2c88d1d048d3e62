"""Watermarks of a sink whose target has no place for them: kept in the suite's state bucket.

Promises: marks are stored only after the target has acknowledged everything up to them, so nothing
is skipped; what was delivered since the last marks is delivered again after a crash. A process that
was replaced finds out with its next commit, because a write replaces only the revision that this
process has read or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.consumer.watermark import Watermark
from headrace.jetstream.state import Cell, LostRaceError
from headrace.lsn import Position
from headrace.sinks.port import Promise, Sink, SinkFencedError
from headrace.sinks.routing import RoutedTransaction


class MarkStore(Protocol):
    """Where the marks are kept."""

    async def load(self) -> dict[str, Watermark]: ...

    async def save(self, marks: Mapping[str, Watermark]) -> None: ...


@dataclass(slots=True)
class StateMarks:
    """Watermarks in one key of the state bucket."""

    cell: Cell

    async def load(self) -> dict[str, Watermark]:
        """Read the marks, and take over: an older process can't store any more after this."""
        value = await self.cell.read() or {}
        await self.cell.write(value)
        return {
            lane: Watermark(Position(lsn, seq), stream_seq)
            for lane, (lsn, seq, stream_seq) in value.get("marks", {}).items()
        }

    async def save(self, marks: Mapping[str, Watermark]) -> None:
        body: dict[str, Any] = {
            lane: [*mark.position, mark.stream_seq] for lane, mark in marks.items()
        }
        try:
            await self.cell.write({"marks": body})
        except LostRaceError as error:
            raise SinkFencedError(f"another process has taken over {self.cell.key}") from error


class RememberedMarks:
    """A sink with its marks elsewhere: at least once."""

    promise = Promise.AT_LEAST_ONCE

    def __init__(self, sink: Sink, store: MarkStore) -> None:
        self._sink = sink
        self._store = store

    async def open(self) -> Mapping[str, Watermark]:
        await self._sink.open()
        return await self._store.load()

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await self._sink.write(transactions)

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        # The target first: marks that are ahead of it would lose changes.
        await self._sink.commit(marks)
        await self._store.save(marks)

    async def close(self) -> None:
        await self._sink.close()
