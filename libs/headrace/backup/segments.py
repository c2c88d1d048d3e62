"""Which of the log is there without a hole, only from the names of the stored pieces. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.backup.layout import LogPiece, Segments
from headrace.backup.timelines import TimelineStretch


@dataclass(frozen=True, slots=True)
class Range:
    """Log without a hole on one timeline: from `start` up to `end`, which is not included."""

    # On this timeline only: others have the same LSNs.
    timeline: int
    start: int
    end: int


def ranges(pieces: Iterable[LogPiece]) -> list[Range]:
    """The contiguous ranges of each timeline, in order."""
    found: list[Range] = []
    # A whole segment comes before its parts, which then add nothing.
    for piece in sorted(pieces, key=lambda one: (one.timeline, one.start, -one.end)):
        last = found[-1] if found else None
        if last is not None and last.timeline == piece.timeline and piece.start <= last.end:
            found[-1] = Range(last.timeline, last.start, max(last.end, piece.end))
        else:
            found.append(Range(piece.timeline, piece.start, piece.end))
    return found


def holes(found: Sequence[Range]) -> list[Range]:
    """The missing log between the ranges of one timeline."""
    return [
        Range(before.timeline, before.end, after.start)
        for before, after in itertools.pairwise(found)
        if before.timeline == after.timeline
    ]


def covers(found: Sequence[Range], before: Sequence[Range]) -> bool:
    """Whether nothing of the earlier ranges is missing in the later ones."""
    return all(
        any(
            one.timeline == old.timeline and one.start <= old.start and old.end <= one.end
            for one in found
        )
        for old in before
    )


def reach(pieces: Sequence[LogPiece], stretches: Sequence[TimelineStretch], start: int) -> int:
    """Up to where the log is there without a hole, from `start` on, along the way to a timeline."""
    position = start
    for stretch in stretches:
        # The way was on this timeline before `start`.
        if stretch.end <= position:
            continue
        own = ranges(piece for piece in pieces if piece.timeline == stretch.timeline)
        position = max(
            [min(one.end, stretch.end) for one in own if one.start <= position < one.end]
            + [position]
        )
        if position < stretch.end:
            return position
    return position


def needed(
    pieces: Iterable[LogPiece],
    stretches: Sequence[TimelineStretch],
    segments: Segments,
    start: int,
    end: int,
) -> list[list[LogPiece]]:
    """The segments to read from `start` to `end`, each as one whole piece or as its parts.

    A segment that two timelines share is included for both: PostgreSQL prefers the newer one.
    """
    of_segment: dict[tuple[int, int], list[LogPiece]] = {}
    for piece in pieces:
        key = (piece.timeline, segments.begin(piece.start))
        of_segment.setdefault(key, []).append(piece)
    chosen = []
    for stretch in stretches:
        first = segments.begin(max(start, stretch.begin))
        for begin in range(first, min(end, stretch.end), segments.size):
            found = sorted(of_segment.get((stretch.timeline, begin), ()))
            whole = [piece for piece in found if not piece.partial]
            if found:
                # Parts are removed after the whole segment was stored, so both may be listed.
                chosen.append(whole or found)
    return chosen
