"""Timelines: where each left its parent. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import DecodeError
from headrace.lsn import parse_lsn


@dataclass(frozen=True, slots=True)
class TimelineStretch:
    """A part of the way to a timeline: its log counts from `begin` to `end`."""

    # Between these LSNs its log counts, and no other's.
    timeline: int
    begin: int
    end: int


# Beyond every LSN.
ENDLESS = 1 << 64


def parents(history: bytes) -> list[tuple[int, int]]:
    """The timelines before this one, each with the LSN where it was left."""
    found = []
    for line in history.decode(errors="replace").splitlines():
        words = line.split()
        # Empty lines and comments are allowed in it.
        if len(words) >= 2 and words[0].isdigit():
            try:
                found.append((int(words[0]), parse_lsn(words[1])))
            except DecodeError:
                continue
    return found


def way(timeline: int, before: list[tuple[int, int]]) -> list[TimelineStretch]:
    """The stretches of the log that lead to a timeline, the oldest first."""
    found = []
    begin = 0
    for parent, left in before:
        found.append(TimelineStretch(parent, begin, left))
        begin = left
    return [*found, TimelineStretch(timeline, begin, ENDLESS)]
