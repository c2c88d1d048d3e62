"""Which snapshots of a table are dropped, so that its metadata and its files stay bounded. Pure.

A snapshot is kept for as long as a kept cut may refer to it: its successor's time decides, because
until then cuts show it. Tags and branches keep theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class CutRetention:
    """The cuts that readers can go back to."""

    cuts: int
    # Older cuts are dropped even if there are fewer.
    age_s: float = math.inf

    def since_us(self, now_us: int) -> int:
        """The time before which cuts are dropped, in microseconds since 1970."""
        if math.isinf(self.age_s):
            return 0
        return max(0, now_us - int(self.age_s * 1_000_000))


def expired(metadata: TableMetadata, keep: CutRetention, now_us: int, added: int = 1) -> list[int]:
    """The snapshots to drop when as many are added."""
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    ordered = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    surplus = {each.snapshot_id for each in ordered[: max(0, len(ordered) + added - keep.cuts)]}
    since_ms = keep.since_us(now_us) // 1000
    surplus |= {
        before.snapshot_id for before, after in pairwise(ordered) if after.timestamp_ms < since_ms
    }
    return [each.snapshot_id for each in ordered if each.snapshot_id in surplus - kept]
