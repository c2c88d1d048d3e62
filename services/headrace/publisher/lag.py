"""Time and WAL from a commit to JetStream's acknowledgement: measured once for each frame.

The measured time is from the commit of the frame's first event to the acknowledgement of its last:
the maximum for any of its events. Times compare PostgreSQL's clock with this machine's.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from headrace import log as logs
from headrace.metrics.counters import Counters
from headrace.pgoutput.messages import PG_EPOCH_US
from headrace.process.tracing import ROOT, Span, Traces

log = logs.logger("publisher")

# A frame of keepalives and old events has none; the window and the credit bound those that wait.
FRAMES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame whose events were handed over: they are in the first `accepted` messages."""

    name: str
    accepted: int
    commit_s: float
    lsn: int
    received_s: float


class AckLag:
    """The frames that are not acknowledged yet."""

    def __init__(self, stats: Counters, traces: Traces) -> None:
        self._stats = stats
        self._traces = traces
        self._frames: deque[Frame] = deque(maxlen=FRAMES_MAX)

    def forget(self) -> None:
        """Frames of a run that ended come again."""
        self._frames.clear()

    def handed_over(self, frame: Frame) -> None:
        self._frames.append(frame)

    def acknowledged(self, acked: int, acked_at: float, reached_lsn: int) -> list[Frame]:
        """The first `acked` messages are stored, the last since `acked_at`; returns the frames
        completed by them.
        """
        # All of them were acknowledged by this answer, as far as anybody here can know.
        done: list[Frame] = []
        while self._frames and self._frames[0].accepted <= acked:
            done.append(self._frames.popleft())
        if done:
            # The answer came some time ago, and was noted by the monotonic clock.
            acked_s = time.time() - (time.monotonic() - acked_at)
            for frame in done:
                # PostgreSQL's clock may be ahead of ours.
                lag_s = max(0.0, acked_s - frame.commit_s)
                self._stats.observe("ack_lag_seconds", lag_s)
                self._stats.observe("ack_lag_bytes", max(0, reached_lsn - frame.lsn))
                self._trace(frame, acked_s)
                log.debug("frame_acknowledged", frame=frame.name, lag_ms=round(lag_s * 1000, 3))
        return done

    def _trace(self, frame: Frame, acked_s: float) -> None:
        if self._traces.follow(int(frame.name.rpartition("-")[2])):
            self._traces.add(Span(ROOT, frame.name, frame.commit_s, acked_s))
            self._traces.add(Span("publish", frame.name, frame.received_s, acked_s))

    def refresh(self, stats: Counters) -> None:
        if self._frames:
            stats.set("lag_seconds", round(max(0.0, time.time() - self._frames[0].commit_s), 3))
        else:
            stats.set("lag_seconds", 0)


def unix_s(postgres_us: int) -> float:
    """PostgreSQL counts microseconds since 2000."""
    return (PG_EPOCH_US + postgres_us) / 1e6
