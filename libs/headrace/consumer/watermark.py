"""How far a consumer has applied the stream, and where that is stored.

A watermark is all a consumer needs to be exactly-once: the position of the last event it applied,
per lane (a source; for batches a source and table), and the stream sequence up to which it has seen
everything.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.lsn import ORIGIN, Position


class WatermarkError(HeadraceError):
    """The stored watermarks can't be read."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a consumer has applied one lane."""

    # The position of the last applied event.
    position: Position = ORIGIN
    # Every message up to this stream sequence is applied, or irrelevant to the consumer.
    stream_seq: int = 0


# By lane.
Watermarks = dict[str, Watermark]


class WatermarkStore(Protocol):
    """Stores the watermarks of a consumer: two methods, so that any database can implement it.

    For exactly-once processing, store the watermark in the transaction that stores the data.
    """

    async def load(self) -> dict[str, Watermark]:
        """Return the watermarks of all lanes; none for a consumer that never ran."""
        ...

    async def save(self, lane: str, watermark: Watermark) -> None:
        """Store one lane's watermark durably, before returning."""
        ...


class MemoryWatermarks:
    """Keeps watermarks in memory, for a consumer that starts over each time."""

    def __init__(self) -> None:
        self._lanes: dict[str, Watermark] = {}

    async def load(self) -> dict[str, Watermark]:
        """Return the watermarks that were saved in this process."""
        return dict(self._lanes)

    async def save(self, lane: str, watermark: Watermark) -> None:
        """Remember one lane's watermark."""
        self._lanes[lane] = watermark


class FileWatermarks:
    """Keeps watermarks in a small JSON file, which is replaced atomically.

    It suits consumers whose effects are idempotent: after a crash between an effect and `save`, the
    event is delivered again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lanes: dict[str, Watermark] = {}

    async def load(self) -> dict[str, Watermark]:
        """Read the file; raise `WatermarkError` if it contains anything else."""
        if self._path.exists():
            try:
                stored = json.loads(self._path.read_text())
                self._lanes = {
                    lane: Watermark(Position(a, b), seq) for lane, (a, b, seq) in stored.items()
                }
            except (ValueError, TypeError, AttributeError) as error:
                raise WatermarkError(
                    f"{self._path} does not contain watermarks",
                    remedy="Remove it to start from the beginning.",
                ) from error
        return dict(self._lanes)

    async def save(self, lane: str, watermark: Watermark) -> None:
        """Replace the file, and wait until it is on disk."""
        self._lanes[lane] = watermark
        body = {name: [*mark.position, mark.stream_seq] for name, mark in self._lanes.items()}
        fresh = self._path.with_suffix(self._path.suffix + ".new")
        with fresh.open("w") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
