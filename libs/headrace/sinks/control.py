"""The instructions for a sink's process, in one key of the state bucket: pause, reset, replay.

Promises: an instruction survives the process, and another command's instruction given at the same
moment is not lost, because each write replaces only the revision that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from nats.js.kv import KeyValue

from headrace.jetstream.state import Cell, LostRaceError

_ATTEMPTS = 20


class ResetTo(StrEnum):
    """Where a sink continues after a reset."""

    # With the first event that the stream still has.
    START = "start"
    # After the stream's last event.
    NOW = "now"
    # With a new copy of every table.
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Instructions:
    """The state that an operator wants."""

    paused: bool = False
    # Why, if the process has paused the sink.
    reason: str = ""
    reset: ResetTo | None = None
    # IDs of parked records to deliver.
    replay: tuple[str, ...] = ()

    def packed(self) -> dict[str, Any]:
        return {
            "paused": self.paused,
            "reason": self.reason,
            "reset": self.reset and str(self.reset),
            "replay": list(self.replay),
        }


def _unpacked(value: Mapping[str, Any] | None) -> Instructions:
    if value is None:
        return Instructions()
    reset = value.get("reset")
    return Instructions(
        bool(value.get("paused")),
        str(value.get("reason") or ""),
        ResetTo(reset) if reset else None,
        tuple(value.get("replay") or ()),
    )


def control_key(source: str, sink: str) -> str:
    """The key of a sink's instructions."""
    return f"sink.{source}.{sink}.control"


def marks_key(source: str, sink: str) -> str:
    """The key of the marks of a sink whose target keeps none."""
    return f"sink.{source}.{sink}.marks"


def durable_name(source: str, sink: str) -> str:
    """The sink's consumer on the server, which shows how far it is."""
    return f"sink-{source}-{sink}"


@dataclass(slots=True)
class Control:
    """The instructions of one sink."""

    bucket: KeyValue
    key: str

    async def read(self) -> Instructions:
        return _unpacked(await Cell(self.bucket, self.key).read())

    async def change(self, change: Callable[[Instructions], Instructions]) -> Instructions:
        """Replace the instructions by what `change` makes of them."""
        for _ in range(_ATTEMPTS):
            cell = Cell(self.bucket, self.key)
            changed = change(_unpacked(await cell.read()))
            try:
                await cell.write(changed.packed())
            except LostRaceError:
                continue
            return changed
        raise LostRaceError(f"{self.key} is written all the time", remedy="Try again.")

    async def pause(self, reason: str = "") -> None:
        await self.change(lambda found: replace(found, paused=True, reason=reason))

    async def resume(self) -> None:
        await self.change(lambda found: replace(found, paused=False, reason=""))
