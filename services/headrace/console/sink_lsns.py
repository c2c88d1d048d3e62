"""The LSN before which each sink has everything, for the waterline.

A sink counts messages of the stream. It has every change before the first event that comes after
its last message; without such an event it has all that the stream has. Nothing is read while
nobody looks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.console.reading import EventReader

# After the last look.
USED_S = 10.0
_PREFIX = "sink-"


class SinkLsns:
    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        # The sequence of each sink, and the LSN that was found for it.
        self._found: dict[str, tuple[int, int | None]] = {}
        self._known: dict[str, int] = {}
        self._looked_at = float("-inf")

    def look(self) -> Mapping[str, int]:
        """The LSNs that are known, by the sink's name."""
        self._looked_at = time.monotonic()
        return self._known

    def forget(self) -> None:
        """They can't be read now."""
        self._known = {}

    async def read(self, status: Mapping[str, Any] | None) -> None:
        """Find the LSNs that belong to this status."""
        if status is None or time.monotonic() - self._looked_at > USED_S:
            self.forget()
            return
        services = status["services"]
        sinks = {
            name.removeprefix(_PREFIX): int(service["figures"]["sink_stream_seq"])
            for name, service in services.items()
            if name.startswith(_PREFIX) and service["figures"].get("sink_stream_seq")
        }
        # Read after the status: a sink that has this message has all that was published before.
        _, last = await self._reader.bounds()
        published = services.get("publisher", {}).get("figures", {}).get("confirmed_lsn")
        known: dict[str, int | None] = {}
        for name, seq in sinks.items():
            known[name] = int(published or 0) if seq >= last else await self._after(name, seq)
        self._found = {name: found for name, found in self._found.items() if name in sinks}
        self._known = {name: lsn for name, lsn in known.items() if lsn}

    async def _after(self, name: str, seq: int) -> int | None:
        """The LSN of the first event after this sequence."""
        # A sink that stands still is not read again once the event has been found.
        found = self._found.get(name)
        if found is None or found[0] != seq or found[1] is None:
            event = await self._reader.event_from(seq + 1)
            # Batches of several tables overlap: a later one may have an earlier event.
            lsn = event.position.lsn if event is not None and "/" not in event.lane else None
            self._found[name] = found = (seq, lsn)
        return found[1]
