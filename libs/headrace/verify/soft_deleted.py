"""Rows of a mirror that are marked as deleted: they are counted, and not compared."""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.mirror.table import Column, Table
from headrace.mirror.target import TargetReading
from headrace.verify.digest import Row


async def unmarked(reading: TargetReading, table: Table) -> AsyncIterator[list[Row]]:
    """The rows that the source has, too, with the source's columns."""
    columns = table.source_columns
    if not table.rules.soft_delete:
        async for rows in reading.rows(table, columns):
            yield rows
        return
    # The mark is read last, and is not one of the source's values.
    async for rows in reading.rows(table, (*columns, _mark(table))):
        yield [row[:-1] for row in rows if row[-1] is None]


async def count_marked(reading: TargetReading, table: Table) -> int:
    """The number of marked rows."""
    if not table.rules.soft_delete:
        return 0
    count = 0
    async for rows in reading.rows(table, (_mark(table),)):
        count += sum(time is not None for (time,) in rows)
    return count


def _mark(table: Table) -> Column:
    return next(one for one in table.columns if one.name == table.rules.soft_delete)
