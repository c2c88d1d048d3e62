"""Compares rows of two databases in any order: first digests of ranges, then rows. Pure.

A range is a share of the hashes of the rows' keys: no two databases sort text alike, but both
compute the same hashes. A range's digest is a sum over its rows, so that their order doesn't
matter, and equal rows count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any

# More ranges make fewer rows to read again for one difference, and longer digests.
RANGES = 1024
_MODULUS = 1 << 128

Row = tuple[Any, ...]


class RowFault(StrEnum):
    """The fault of a row of the mirror."""

    MISSING = "missing"
    EXTRA = "extra"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """A row, by its key, or whole if it has none; for a changed row, the columns that differ."""

    kind: RowFault
    key: Row
    columns: tuple[str, ...] = ()


@dataclass(slots=True)
class Digests:
    """The digest and number of rows of each range; `places` are the indexes of the key's columns
    (none: the whole row).
    """

    places: Sequence[int] = ()
    sums: list[int] = field(default_factory=lambda: [0] * RANGES)
    counts: list[int] = field(default_factory=lambda: [0] * RANGES)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            place = range_of(key_of(row, self.places))
            # A sum doesn't depend on the order of rows, and counts a row each time it occurs.
            self.sums[place] = (self.sums[place] + _hash(row)) % _MODULUS
            self.counts[place] += 1

    def add_sums(self, place: int, count: int, one: int, other: int) -> None:
        """The rows of a range whose hashes, in two halves, were summed on the server."""
        self.sums[place] = (self.sums[place] + one + (other << 64)) % _MODULUS
        self.counts[place] += count

    @property
    def rows(self) -> int:
        return sum(self.counts)


def key_of(row: Row, places: Sequence[int]) -> Row:
    if places:
        return tuple(row[place] for place in places)
    return row


def range_of(key: Row) -> int:
    return _hash(key) % RANGES


def _hash(values: Row) -> int:
    # The text forms of text, numbers, bytes and None are one-to-one, and the same in every process.
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=16).digest())


def differing(source: Digests, mirror: Digests) -> frozenset[int]:
    """The ranges that differ."""
    pairs = enumerate(zip(source.sums, source.counts, mirror.sums, mirror.counts, strict=True))
    # The counts too: rows whose hashes sum to zero would not be noticed otherwise.
    return frozenset(
        place for place, (a, a_count, b, b_count) in pairs if a != b or a_count != b_count
    )


def differences(
    source: Iterable[Row], mirror: Iterable[Row], places: Sequence[int], names: Sequence[str]
) -> list[Difference]:
    """The faults of the mirror's rows among these rows."""
    # A table without a key may have the same row several times.
    wanted = Counter(source)
    there = Counter(mirror)
    missing = list((wanted - there).elements())
    extra = list((there - wanted).elements())
    by_key: dict[Row, list[Row]] = {}
    for row in extra:
        by_key.setdefault(key_of(row, places), []).append(row)
    found = []
    for row in missing:
        key = key_of(row, places)
        # Without a key nothing shows which of the extra rows a missing one became.
        if places and by_key.get(key):
            other = by_key[key].pop()
            columns = tuple(name for name, a, b in zip(names, row, other, strict=True) if a != b)
            found.append(Difference(RowFault.CHANGED, key, columns))
        else:
            found.append(Difference(RowFault.MISSING, key))
    found += [Difference(RowFault.EXTRA, key) for key, rows in by_key.items() for _ in rows]
    return found
