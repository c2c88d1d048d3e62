"""Chunk numbers of one snapshot: 0, 1, 2, … in the order of the first request, stable afterwards.

The key is (range, chunk within the range), whose rows are the same at every attempt, so a retried
task gets the numbers of its predecessor. Pure; `chunk_permits` sends and receives over NATS.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import HeadraceError


class NumberingError(HeadraceError):
    """A task reports another number of chunks than it requested numbers for."""

    remedy = "The snapshot is not complete: request it again. If it happens twice, report it."


@dataclass(slots=True)
class ChunkNumbers:
    """The numbers given so far, and the chunks they belong to."""

    # Of all chunks that have a number, published or not.
    rows: int = 0
    bytes: int = 0
    # By range, and chunk within the range.
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._numbers)

    def has(self, page_range: int, index: int) -> bool:
        """Whether this chunk has a number."""
        return (page_range, index) in self._numbers

    def number(self, page_range: int, index: int, rows: int, size: int) -> int:
        """The number of this chunk."""
        known = self._numbers.get((page_range, index))
        # Not counted again: a repeated chunk has the same rows.
        if known is not None:
            return known
        self.rows += rows
        self.bytes += size
        return self._numbers.setdefault((page_range, index), len(self._numbers))

    def settle(self, chunks: int, rows: int) -> None:
        """Raise unless the finished tasks account for every number given."""
        # A chunk with a number that no finished task accounts for may be missing from the stream.
        if chunks != len(self._numbers) or rows != self.rows:
            raise NumberingError(
                f"tasks finished {chunks} chunks of {rows} rows, and {len(self._numbers)} of "
                f"{self.rows} were started"
            )
