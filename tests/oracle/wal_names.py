"""Which log a backup store has, from the names of its files: shares no code with Headrace."""

from __future__ import annotations

from pathlib import Path

SEGMENT = 16 << 20


def stored(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """For each timeline the stretches of log without a hole, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for path in folder.glob("*.zst"):
        stem = path.name.removesuffix(".zst")
        name, _, part = stem.partition(".")
        if len(name) != 24:
            continue
        begin = (int(name[8:16], 16) << 32) + int(name[16:24], 16) * SEGMENT
        first, last = 0, SEGMENT
        if part:
            first, last = (int(word, 16) for word in part.split("-"))
        found.setdefault(int(name[:8], 16), []).append((begin + first, begin + last))
    return {timeline: _joined(sorted(own)) for timeline, own in found.items()}


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
