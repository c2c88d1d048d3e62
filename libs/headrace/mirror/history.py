"""The rows of a history: each change of a table is one, with its position.

Promises: a position has at most one row, because rows and the mirror's position are committed
together. A value that PostgreSQL did not send is named, and not mistaken for NULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.consumer import Event
from headrace.mirror.table import Table
from headrace.mirror.value_kinds import as_list

COPIED = "SNAPSHOT"
Row = Mapping[str, Any]


def changed(table: Table, event: Event, row: Row, old: Row | None) -> Row:
    """The row of one change; `row` and `old` have the columns that the table has."""
    unchanged = [name for name in event.unchanged if table.rules.keeps(name)]
    made = dict(row)
    before: Row = {}
    if event.operation == "DELETE":
        # As much as the replica identity contains; `row` is then without values.
        made = dict(old or row)
    elif event.operation == "TRUNCATE":
        made = {}
    elif old is not None:
        # With REPLICA IDENTITY FULL, the old row has the value that was not sent again.
        made |= {name: old[name] for name in unchanged if name in old}
        before = {name: value for name, value in old.items() if made.get(name) != value}
    lost = [name for name in unchanged if name not in made]
    notes: dict[str, str] = {}
    if lost:
        notes["headrace_unchanged"] = json.dumps(lost, ensure_ascii=False)
    if before:
        notes["headrace_old"] = _document(before)
    # Absent notes are NULL, like columns that the change did not bring.
    return {
        **made,
        **notes,
        "headrace_operation": event.operation,
        "headrace_lsn": event.position.lsn,
        "headrace_seq": event.position.seq,
        "headrace_committed_at": event.payload["tx"]["ts"],
    }


def copied(table: Table, rows: Sequence[Row], lsn: int) -> Sequence[Row]:
    """The rows of a copy: in a history, they are marked as such."""
    if not table.rules.history:
        return rows
    about = {"headrace_operation": COPIED, "headrace_lsn": lsn}
    return [{**row, **about} for row in rows]


def _document(values: Row) -> str:
    parts: Iterable[str] = (
        f"{json.dumps(name, ensure_ascii=False)}: {as_list([value])[1:-1]}"
        for name, value in values.items()
    )
    return "{" + ", ".join(parts) + "}"
