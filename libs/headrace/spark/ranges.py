"""Cuts a table's storage into ranges, and distributes ranges to tasks.

A range is the unit of numbering: its rows come in storage order, so under one snapshot its chunks
are the same at every attempt. Promises that every page is in exactly one range, and that the last
range of a storage has no end, because the table may have grown. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableStorage:
    """One relation that holds rows: its quoted, qualified name, its size and its OID."""

    relation: str
    pages: int
    relation_id: int


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages `first` up to, not including, `end`; to the end of the storage if that is None."""

    index: int
    relation: str
    first: int
    end: int | None
    relation_id: int

    def sql(self) -> str:
        """The condition that selects its rows by a TID range scan."""
        # The items of a page count from 1, so `(page,0)` is before all of its rows.
        if self.end is None:
            upper = ""
        else:
            upper = f" AND ctid < '({self.end},0)'::pg_catalog.tid"
        return f"ctid >= '({self.first},0)'::pg_catalog.tid{upper}"


def cut_ranges(storages: Sequence[TableStorage], pages_max: int) -> tuple[PageRange, ...]:
    """Ranges of at most `pages_max` pages; a storage without pages has none."""
    ranges: list[PageRange] = []
    for storage in storages:
        # Never across storages: a range is read by the name of one relation.
        for first in range(0, storage.pages, pages_max):
            end = first + pages_max
            last = end >= storage.pages
            ranges.append(
                PageRange(
                    len(ranges),
                    storage.relation,
                    first,
                    None if last else end,
                    storage.relation_id,
                )
            )
    return tuple(ranges)


def deal(ranges: Sequence[T], tasks_max: int) -> list[Sequence[T]]:
    """Each task's share: adjacent ranges together, counts that differ by one at most."""
    tasks = min(len(ranges), tasks_max)
    if not tasks:
        return []
    # Adjacent ranges, so that a task reads its part of the storage in order.
    edges = [len(ranges) * task // tasks for task in range(tasks + 1)]
    return [ranges[edges[task] : edges[task + 1]] for task in range(tasks)]
