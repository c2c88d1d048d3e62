"""Compares a table's rows in a source and a mirror that both stand still: first digests of ranges,
then rows.

Promises that every difference of values is found. If both are PostgreSQLs and each column's text is
its value, the servers hash their rows; else rows are converted to one form and hashed here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.verify.digest import (
    Difference,
    Digests,
    Row,
    differences,
    differing,
    key_of,
    range_of,
)
from headrace.verify.forms import Form
from headrace.verify.sql_rows import SqlRows

# The rows of ranges that differ are held in memory, for both sides.
ROWS_COMPARED_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many rows the source has, the ranges that differ, and what is wrong in (some of) them."""

    rows: int
    ranges: int = 0
    found: tuple[Difference, ...] = ()
    # The rows that the mirror lacks, and those that only it has, of the differences in `found`.
    missing: tuple[Row, ...] = ()
    extra: tuple[Row, ...] = ()


class ComparedTable(Protocol):
    """One of the two tables; `places` are the key's columns (none: the whole row)."""

    async def digests(self, places: Sequence[int], /) -> Digests:
        """Of all its rows."""
        ...

    async def within(self, ranges: frozenset[int], places: Sequence[int], /) -> list[Row]:
        """Its rows in these ranges."""
        ...


@dataclass(frozen=True, slots=True)
class HashedThere:
    """A side whose server hashes its rows; its table knows the key."""

    table: SqlRows

    async def digests(self, _: Sequence[int]) -> Digests:
        return await self.table.digests()

    async def within(self, ranges: frozenset[int], _: Sequence[int]) -> list[Row]:
        return [row async for rows in self.table.rows(ranges) for row in rows]


@dataclass(frozen=True, slots=True)
class HashedHere:
    """A side whose rows are read and converted to comparable forms (None: unchanged)."""

    read: Callable[[], AsyncIterator[list[Row]]]
    forms: Sequence[Form | None]

    async def digests(self, places: Sequence[int]) -> Digests:
        digests = Digests(places)
        async for rows in self._rows():
            digests.add(rows)
        return digests

    async def within(self, ranges: frozenset[int], places: Sequence[int]) -> list[Row]:
        return [
            row
            async for rows in self._rows()
            for row in rows
            if range_of(key_of(row, places)) in ranges
        ]

    async def as_read(self, wanted: Sequence[Row]) -> tuple[Row, ...]:
        """The rows, as `read` returns them, that have these comparable forms."""
        left = Counter(wanted)
        found = []
        async for rows in self.read():
            for row in rows:
                compared_row = formed(self.forms, row)
                # Of several rows with one form, as many as are wanted.
                if left.get(compared_row, 0) > 0:
                    left[compared_row] -= 1
                    found.append(row)
        return tuple(found)

    async def _rows(self) -> AsyncIterator[list[Row]]:
        async for rows in self.read():
            yield [formed(self.forms, row) for row in rows]


def formed(forms: Sequence[Form | None], row: Row) -> Row:
    """A row as it is compared."""
    return tuple(
        value if value is None or form is None else form(value)
        for form, value in zip(forms, row, strict=True)
    )


async def compared(
    source: ComparedTable,
    mirror: ComparedTable,
    names: Sequence[str],
    key: Sequence[str],
    ignored: AbstractSet[Row] = frozenset(),
) -> Comparison:
    """The differences of the mirror's rows, named by the key, or as whole rows without a key; rows
    with ignored keys may differ.
    """
    places = [names.index(name) for name in key]
    sides = await _both(source.digests(places), mirror.digests(places))
    ranges = differing(*sides)
    if not ranges:
        return Comparison(sides[0].rows)
    left = ranges
    while left:
        some = _some(left, *sides)
        rows = await _both(source.within(some, places), mirror.within(some, places))
        every = differences(*rows, places, names)
        found = tuple(each for each in every if each.key not in ignored)
        left -= some
        # If nothing is ignored, a range that differs has differences.
        if found or not ignored:
            wanted, there = Counter(rows[0]), Counter(rows[1])
            missing, extra = (wanted - there).elements(), (there - wanted).elements()
            return Comparison(sides[0].rows, len(ranges), found, tuple(missing), tuple(extra))
    return Comparison(sides[0].rows)


async def _both(one: Any, other: Any) -> tuple[Any, Any]:
    """The results of both; the first error of either, unchanged, when both have ended."""
    tasks = (
        asyncio.create_task(one, name="verify-source"),
        asyncio.create_task(other, name="verify-mirror"),
    )
    try:
        first, second = await asyncio.gather(*tasks)
    finally:
        # The other side must not continue on a connection that its caller closes.
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return first, second


def _some(ranges: frozenset[int], *sides: Digests) -> frozenset[int]:
    """As many of the ranges as fit in memory."""
    chosen: set[int] = set()
    rows = 0
    for place in sorted(ranges):
        rows += sum(side.counts[place] for side in sides)
        # One range is always taken, however large: otherwise no difference would be named.
        if chosen and rows > ROWS_COMPARED_MAX:
            break
        chosen.add(place)
    return frozenset(chosen)
