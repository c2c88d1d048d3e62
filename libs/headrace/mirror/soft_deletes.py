"""Turns the step of a change into those of a table that keeps deleted rows, marked by a time.

Promises: a key has at most one row, which is marked or not; so a row that comes back replaces the
marked one, and a change is never applied to a marked row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.consumer import Event
from headrace.errors import DecodeError
from headrace.mirror.table import Table
from headrace.mirror.target import (
    DeleteRow,
    InsertRows,
    RemoveSoftDeleted,
    Step,
    TruncateTable,
    UpdateRow,
)


def softly(step: Step, event: Event) -> list[Step]:
    """The steps of one change."""
    table = step.table
    name = table.rules.soft_delete
    match step:
        case InsertRows(_, rows):
            return [*_removals(table, rows[0]), step]
        case UpdateRow(_, where, data):
            # A row may take the key of one that was deleted.
            changed = any(where.get(one, data.get(one)) != data.get(one) for one in table.key)
            removals = _removals(table, data) if changed else []
            return [*removals, UpdateRow(table, {**where, name: None}, data)]
        case DeleteRow(_, where):
            # Only a row that is not marked: of equal rows, another one may be.
            return [UpdateRow(table, {**where, name: None}, {name: _time(event)})]
        case TruncateTable():
            return [TruncateTable(table, _time(event))]
    return [step]


def _removals(table: Table, row: Mapping[str, Any]) -> list[Step]:
    """Of the marked row with this row's key. Without a key, equal rows stay next to each other."""
    if not table.key or not set(table.key) <= row.keys():
        return []
    return [RemoveSoftDeleted(table, [{name: row[name] for name in table.key}])]


def _time(event: Event) -> str:
    time = event.payload["tx"]["ts"]
    if time is None:
        # Every change of a row has it; without it, the row would not be marked.
        raise DecodeError(f"a {event.operation} of {event.schema}.{event.table} without a time")
    return str(time)
