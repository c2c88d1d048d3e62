"""Turns the filters of Spark 4.1 into a `RowSelection` of the archive. Pure.

Promises a selection that includes every row that the filters match. It may include more: Spark
applies its filters as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headrace.archive.file_format import RowSelection, time_us

_TO_EQUAL = ("EqualTo", "EqualNullSafe")
# Beyond the range of an int64, so no bound.
_MOST = (1 << 63) - 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """The wanted values of a column: minimum and maximum, if there are any."""

    least: int | None = None
    most: int | None = None


_ORDERED: Mapping[str, Callable[[int], Bounds]] = {
    "GreaterThan": lambda value: Bounds(least=value + 1),
    "GreaterThanOrEqual": lambda value: Bounds(least=value),
    "LessThan": lambda value: Bounds(most=value - 1),
    "LessThanOrEqual": lambda value: Bounds(most=value),
}


def narrowed(selection: RowSelection, filters: Iterable[Any]) -> RowSelection:
    """The selection without what the filters leave out."""
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) != 1:
            continue
        selection = _narrowed(selection, path[0], each)
    return selection


def _narrowed(selection: RowSelection, column: str, asked: Any) -> RowSelection:
    if column == "table":
        return _of_tables(selection, [value for value in _values(asked) if isinstance(value, str)])
    if column in {"commit_lsn", "commit_time"}:
        bounds = _bounds(asked)
    else:
        bounds = None
    if bounds is None:
        return selection
    if bounds.most is None or bounds.most > _MOST:
        end = None
    else:
        end = bounds.most + 1
    if column == "commit_lsn":
        if bounds.least is None:
            after = None
        else:
            # Behind every position of the LSN before: ordinals stay below 2^62.
            after = (bounds.least - 1, 1 << 62)
        return replace(
            selection,
            after=max(filter(None, (selection.after, after)), default=None),
            before_lsn=_earlier(selection.before_lsn, end),
        )
    later = [moment for moment in (selection.from_time_us, bounds.least) if moment is not None]
    return replace(
        selection,
        from_time_us=max(later, default=None),
        before_time_us=_earlier(selection.before_time_us, end),
    )


def _earlier(bound: int | None, other: int | None) -> int | None:
    return min((value for value in (bound, other) if value is not None), default=None)


def _of_tables(selection: RowSelection, names: list[str]) -> RowSelection:
    if not names:
        return selection
    if not selection.tables:
        return replace(selection, tables=tuple((None, name) for name in names))
    both = tuple(table for table in selection.tables if table[1] in names)
    # Of none, nothing is asked: that is Spark's to find out, since here it would mean all.
    if both:
        return replace(selection, tables=both)
    return selection


def _values(asked: Any) -> Sequence[Any]:
    """The values that an equality filter matches; none for another filter."""
    kind = type(asked).__name__
    if kind in _TO_EQUAL:
        return (asked.value,)
    if kind == "In":
        return tuple(asked.value)
    return ()


def _bounds(asked: Any) -> Bounds | None:
    """The bounds that a comparison sets for a column of numbers or times; None if unknown."""
    values = [_number(value) for value in _values(asked)]
    known = [value for value in values if value is not None]
    if values:
        if len(known) == len(values):
            return Bounds(min(known), max(known))
        return None
    value = _number(getattr(asked, "value", None))
    made = _ORDERED.get(type(asked).__name__)
    if value is None or made is None:
        return None
    return made(value)


def _number(value: object) -> int | None:
    """A value as in the files: LSNs are numbers, times are microseconds."""
    if isinstance(value, datetime):
        return time_us(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
