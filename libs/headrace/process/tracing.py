"""Timing of one frame in every n, service by service: telemetry sends it as OpenTelemetry traces.

A frame's epoch and number are its trace id, so nothing has to travel with it, and every service
picks the same frames. Spans go to telemetry with the reports. Keeps a bounded number of them; the
oldest are dropped first. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SPANS_MAX = 256
# From the commit to JetStream's acknowledgement; the other spans are parts of it.
ROOT = "change"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a frame's way, in seconds of the machine's clock since 1970."""

    name: str
    frame: str
    began_s: float
    ended_s: float
    attributes: dict[str, int | float | str] = field(default_factory=dict)

    def packed(self) -> list[Any]:
        return [self.name, self.frame, self.began_s, self.ended_s, self.attributes]


def unpacked(spans: Iterable[Any]) -> tuple[Span, ...]:
    """The spans of a report; raises ValueError or TypeError if they are malformed."""
    return tuple(
        Span(str(name), str(frame), float(began), float(ended), dict(attributes))
        for name, frame, began, ended, attributes in spans
    )


class Traces:
    """The spans of a service that have not been reported to telemetry yet."""

    def __init__(self) -> None:
        # Trace one frame in this many; 0: none.
        self.every = 0
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)

    def follow(self, seq: int) -> bool:
        """Whether the frame with this number is traced."""
        return self.every > 0 and seq % self.every == 0

    def add(self, span: Span) -> None:
        self._spans.append(span)

    def taken(self) -> list[Span]:
        """Hand over all spans; they then belong to the caller."""
        spans = list(self._spans)
        self._spans.clear()
        return spans
