"""What one frame in so many took on its way, part by part: what telemetry sends as OpenTelemetry
traces.

A frame's epoch and number are its trace's id, so nothing has to travel with it, and each service
chooses the same frames by itself. Spans go to telemetry with the reports. Holds a bounded number of
them; the oldest go first. Pure.
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
    """A stretch of a frame's way, in seconds of the machine's clock since 1970."""

    name: str
    frame: str
    began_s: float
    ended_s: float
    attributes: dict[str, int | float | str] = field(default_factory=dict)

    def packed(self) -> list[Any]:
        return [self.name, self.frame, self.began_s, self.ended_s, self.attributes]


def unpacked(spans: Iterable[Any]) -> tuple[Span, ...]:
    """Spans out of a report; raises ValueError or TypeError for what are none."""
    return tuple(
        Span(str(name), str(frame), float(began), float(ended), dict(attributes))
        for name, frame, began, ended, attributes in spans
    )


class Traces:
    """The spans of a service that telemetry has not been told yet."""

    def __init__(self) -> None:
        # One frame in so many; 0: none.
        self.every = 0
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)

    def follow(self, seq: int) -> bool:
        """Whether the frame with this number is one of those."""
        return self.every > 0 and seq % self.every == 0

    def add(self, span: Span) -> None:
        self._spans.append(span)

    def taken(self) -> list[Span]:
        """All of them; from here on they are the caller's."""
        spans = list(self._spans)
        self._spans.clear()
        return spans
