"""The share of a stream's retention that a consumer has left: when, at the current pace, it loses
events. Pure.

A stream discards its oldest messages by age, by bytes and by number. A consumer loses messages that
are discarded before it has acknowledged them. Bytes are estimated with the stream's average
message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.telemetry.trend import Trend, seconds_left

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream, as JetStream shows it; 0 for a missing limit."""

    name: str
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    consumers: int
    bytes_max: int
    messages_max: int
    age_max_s: float
    discards_old: bool

    @classmethod
    def of(cls, info: dict[str, Any]) -> StreamView:
        config = info["config"]
        state = info["state"]
        return cls(
            name=config["name"],
            messages=state["messages"],
            bytes=state["bytes"],
            first_seq=state["first_seq"],
            last_seq=state["last_seq"],
            consumers=state["consumer_count"],
            # JetStream writes -1 for no limit.
            bytes_max=max(0, config.get("max_bytes", 0)),
            messages_max=max(0, config.get("max_msgs", 0)),
            age_max_s=config.get("max_age", 0) / _NS,
            discards_old=config.get("discard", "old") == "old",
        )

    @property
    def message_bytes(self) -> float:
        """The average message."""
        if self.messages:
            return self.bytes / self.messages
        return 0.0


class WritingPace:
    """How fast a stream is written to, in bytes: its size stops growing once it discards."""

    def __init__(self) -> None:
        self._trend = Trend()
        self._last_seq: int | None = None
        self._written = 0.0

    def add(self, now: float, stream: StreamView) -> None:
        """Note the stream's last sequence."""
        # Another stream has taken the name: its sequences begin again.
        if self._last_seq is not None and stream.last_seq < self._last_seq:
            self._last_seq = None
            self._trend.forget()
        # Only new messages: the average varies, and times all messages ever written, a small change
        # would look like gigabytes.
        if self._last_seq is not None:
            self._written += (stream.last_seq - self._last_seq) * stream.message_bytes
        self._last_seq = stream.last_seq
        self._trend.add(now, self._written)

    @property
    def bytes_per_s(self) -> float:
        return self._trend.per_second


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A durable consumer, and the retention it has left; None if the stream has no such limit."""

    stream: str
    name: str
    pending: int
    unacknowledged: int
    lag_s: float
    left_s: float | None
    left_bytes: float | None
    left_ratio: float
    lost: int

    @property
    def key(self) -> str:
        return f"{self.stream} {self.name}"


@dataclass(frozen=True, slots=True)
class Standing:
    """A consumer's position: everything up to `floor_seq` is acknowledged, or was delivered without
    requiring it.
    """

    name: str
    pending: int
    unacknowledged: int
    floor_seq: int
    subject: str

    @classmethod
    def of(cls, info: dict[str, Any]) -> Standing:
        config = info["config"]
        filters = config.get("filter_subjects") or []
        # The oldest message is searched by one subject. With several filters it is any subject,
        # which can only overstate the message's age.
        one = config.get("filter_subject", "")
        if not one and len(filters) == 1:
            one = filters[0]
        one = one or ">"
        # Without acknowledgements, the server knows only about delivery.
        if config.get("ack_policy", "explicit") == "none":
            floor = info["delivered"]["stream_seq"]
            unacknowledged = 0
        else:
            floor = info["ack_floor"]["stream_seq"]
            unacknowledged = info.get("num_ack_pending", 0)
        return cls(info["name"], info.get("num_pending", 0), unacknowledged, floor, one)

    @property
    def behind(self) -> bool:
        return bool(self.pending or self.unacknowledged)


def judge(
    stream: StreamView, standing: Standing, oldest_age_s: float, bytes_per_s: float
) -> ConsumerView:
    """`oldest_age_s`: the age of the oldest message that it has not acknowledged."""
    # The number of messages that the stream may still discard before the consumer loses one.
    ahead = max(0, standing.floor_seq + 1 - stream.first_seq)
    seconds: list[float] = []
    ratios = [1.0]
    left_bytes = None
    if stream.age_max_s:
        left_age_s = stream.age_max_s - oldest_age_s
        # A stream may have several limits; the first that is reached counts.
        seconds.append(left_age_s)
        ratios.append(left_age_s / stream.age_max_s)
    # A stream that refuses new messages instead of discarding old ones loses nothing.
    if stream.bytes_max and stream.discards_old:
        left_bytes = max(0.0, stream.bytes_max - stream.bytes + ahead * stream.message_bytes)
        ratios.append(left_bytes / stream.bytes_max)
        paced = seconds_left(left_bytes, bytes_per_s)
        if paced is not None:
            seconds.append(paced)
    # Without a time: the pace of messages is not measured.
    if stream.messages_max and stream.discards_old:
        ratios.append((stream.messages_max - stream.messages + ahead) / stream.messages_max)
    # A consumer that waits for nothing loses nothing, however old its floor: later messages did not
    # match its filter.
    behind = standing.behind
    return ConsumerView(
        stream=stream.name,
        name=standing.name,
        pending=standing.pending,
        unacknowledged=standing.unacknowledged,
        lag_s=round(oldest_age_s, 3) if behind else 0.0,
        left_s=round(max(0.0, min(seconds)), 3) if behind and seconds else None,
        left_bytes=left_bytes if behind else None,
        left_ratio=round(min(1.0, max(0.0, min(ratios))), 4) if behind else 1.0,
        lost=max(0, stream.first_seq - standing.floor_seq - 1) if behind else 0,
    )
