"""The SQL that undoes changes, the latest first. Does no I/O.

Promises: what can't be undone from what the trail knows is said instead of guessed; values go through PostgreSQL's own
reading of JSON into the table's row type, so that each column gets its own type back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.audit.rows import REDACTED
from headrace.errors import HeadraceError
from headrace.plain import one_line
from headrace.postgres.replication import quote_name


class IrreversibleError(HeadraceError):
    """The trail doesn't hold what undoing this change takes."""

    remedy = "With ALTER TABLE … REPLICA IDENTITY FULL later changes can always be undone."


@dataclass(frozen=True, slots=True)
class Undo:
    """A change, what its row was before it, and its table's key and generated columns."""

    change: Mapping[str, Any]
    was: Mapping[str, Any] | None
    unknown: Sequence[str]
    key: Sequence[str]
    generated: frozenset[str] = frozenset()


def statement(undo: Undo) -> str:
    """The statement that undoes one change."""
    change = undo.change
    table = f"{quote_name(change['schema'])}.{quote_name(change['table'])}"
    operation = change["operation"]
    after = json.loads(change["after"])
    if operation in {"CREATE", "INSERT"}:
        return f"DELETE FROM {table} AS t WHERE {_same(undo, after)};"  # noqa: S608  # names and literals are quoted
    if operation == "DELETE":
        return _insert(undo, table)
    if operation == "UPDATE":
        return _update(undo, table, after)
    raise IrreversibleError(f"a TRUNCATE of {table} can't be undone from the trail")


def _insert(undo: Undo, table: str) -> str:
    was = undo.was
    if was is None or undo.unknown:
        raise IrreversibleError(f"the deleted row of {table} is not known{_named(undo.unknown)}")
    values = _written(undo, was)
    columns = ", ".join(quote_name(name) for name in values)
    return (
        f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} "  # noqa: S608  # quoted
        f"FROM jsonb_populate_record(NULL::{table}, {_json(values)});"
    )


def _update(undo: Undo, table: str, after: Mapping[str, Any]) -> str:
    was = undo.was
    if was is None:
        raise IrreversibleError(f"what a row of {table} was before is not known")
    same = object()
    changed = {name: value for name, value in was.items() if after.get(name, same) != value and name in after}
    unknown = [name for name in after if name not in was]
    if unknown:
        raise IrreversibleError(f"what a row of {table} was before is not known{_named(unknown)}")
    values = _written(undo, changed)
    if not values:
        # A name may have several lines, and a comment ends with the first.
        return f"-- nothing to undo in {one_line(table)}: the row was written as it was"
    sets = ", ".join(f"{quote_name(name)} = r.{quote_name(name)}" for name in values)
    return (
        f"UPDATE {table} AS t SET {sets} FROM jsonb_populate_record(NULL::{table}, {_json(values)}) AS r "  # noqa: S608  # quoted
        f"WHERE {_same(undo, after)};"
    )


def _written(undo: Undo, values: Mapping[str, Any]) -> dict[str, Any]:
    if any(value == REDACTED for value in values.values()):
        raise IrreversibleError("a redacted value is not in the trail", remedy="Undo it by hand.")
    return {name: value for name, value in values.items() if name not in undo.generated}


def _same(undo: Undo, row: Mapping[str, Any]) -> str:
    """The condition that finds the row as it is now."""
    if not undo.key or any(row.get(name) in {None, REDACTED} for name in undo.key):
        raise IrreversibleError(
            f"a row of {undo.change['table']} can't be found again without a key", remedy="Undo it by hand."
        )
    return " AND ".join(f"t.{quote_name(name)} = {_literal(_text(row[name]))}" for name in undo.key)


def _literal(text: str) -> str:
    """Read the same whatever standard_conforming_strings says to whoever runs it."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'" if "\\" not in text else " E'" + escaped.replace("\\", "\\\\") + "'"


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)


def _json(values: Mapping[str, Any]) -> str:
    return f"{_literal(json.dumps(values, ensure_ascii=False))}::jsonb"


def _named(names: Sequence[str]) -> str:
    return f": {', '.join(names)}" if names else ""
