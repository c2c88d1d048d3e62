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
    position: Position = ORIGIN
    stream_seq: int = 0


class WatermarkStore(Protocol):
    """Two methods, so that any database can implement it."""

    async def load(self) -> dict[str, Watermark]:
        """The watermarks of all lanes; empty for a consumer that never ran."""
        ...

    async def save(self, lane: str, watermark: Watermark) -> None:
        """Store one lane's watermark."""
        ...


class MemoryWatermarks:
    """For a consumer that starts over each time, such as `headrace tail`."""

    def __init__(self) -> None:
        self._lanes: dict[str, Watermark] = {}

    async def load(self) -> dict[str, Watermark]:
        return dict(self._lanes)

    async def save(self, lane: str, watermark: Watermark) -> None:
        self._lanes[lane] = watermark


class FileWatermarks:
    """A small JSON file, replaced atomically: for consumers whose effects are idempotent or files
    as well.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lanes: dict[str, Watermark] = {}

    async def load(self) -> dict[str, Watermark]:
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
        self._lanes[lane] = watermark
        body = {name: [*mark.position, mark.stream_seq] for name, mark in self._lanes.items()}
        fresh = self._path.with_suffix(self._path.suffix + ".new")
        with fresh.open("w") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
