"""Plans an event's effect on a mirror's table: steps, or another bootstrap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.consumer import Event
from headrace.contract import exact
from headrace.contract.exact import ExactText
from headrace.mirror import history
from headrace.mirror.rules import RuleError
from headrace.mirror.soft_deletes import softly
from headrace.mirror.table import Column, Table
from headrace.mirror.target import (
    AlterTable,
    DeleteRow,
    Filled,
    InsertRows,
    RemoveSoftDeleted,
    Step,
    TruncateTable,
    UpdateRow,
)
from headrace.mirror.value_kinds import ValueKind, kind_of


@dataclass(frozen=True, slots=True)
class Resync:
    """The table must be bootstrapped again."""

    why: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The source no longer has the table; `now` is its new name, if it was renamed."""

    now: tuple[str, str] | None


def shape(payload: Mapping[str, Any]) -> Table:
    """The table as described by a schema event, or by a value of the schemas bucket."""
    columns = tuple(
        # A domain's values have its base type's form; the source checks the domain's constraints.
        Column(column["name"], column.get("base_type") or column["data_type"])
        for column in payload["columns"]
    )
    schema = str(payload["schema"]).removesuffix(f".{payload['table']}")
    primary_key = tuple(payload["primary_key"])
    whole = tuple(column.name for column in columns)
    identity = tuple(
        payload.get("identity") or (primary_key if payload["replica_identity"] != "f" else whole)
    )
    return Table(schema, payload["table"], columns, primary_key, identity)


def gone(payload: Mapping[str, Any]) -> Gone | None:
    """Whether a schema event says that the table no longer exists."""
    if payload["columns"]:
        return None
    for change in payload["changes"]:
        if change["change"] == "table_renamed" and change.get("to"):
            schema, _, name = str(change["to"]).partition(".")
            # An older publisher only sends the full name, where a dot may belong to either name.
            return Gone((str(change.get("to_schema", schema)), str(change.get("to_table", name))))
    return Gone(None)


def reshaped(table: Table, payload: Mapping[str, Any]) -> AlterTable | Resync | None:
    """From the table as it is to the one that a schema event describes; None where they are the
    same.
    """
    if payload["resync"]:
        return Resync(
            ", ".join(sorted({str(change["change"]) for change in payload["changes"]}))
            or "schema event"
        )
    try:
        wanted = shape(payload).ruled(table.rules)
    except RuleError as error:
        # Another copy refuses it, and parks the table.
        return Resync(str(error))
    renamed = _renames(table, wanted, payload["changes"])
    if renamed is None:
        return Resync("columns exchanged their names")
    if _brings_in(table, wanted, payload["changes"]):
        return Resync("a column that was left out has a name of `columns` now")
    old_names = {old: new for new, old in renamed.items()}
    types = {column.name: column for column in wanted.columns}
    # In the mirror's order: databases add columns at the end.
    kept = [old_names.get(column.name, column.name) for column in table.columns]
    kept = [name for name in kept if name in types]
    columns = tuple(types[name] for name in [*kept, *(name for name in types if name not in kept)])
    after = replace(wanted, columns=columns, staging=table.staging)
    if any(
        _is_newly_known(column, types.get(old_names.get(column.name, column.name)))
        for column in table.columns
    ):
        return Resync("the type of a column's values was not known before")
    # In a history, rows stay as they were.
    given = () if table.rules.history else payload["changes"]
    filled = {
        str(change["column"]): _filled(types[change["column"]], change)
        for change in given
        if "filled" in change and change["column"] in types and change["column"] not in kept
    }
    if after == table:
        return None
    return AlterTable(table, after, renamed, filled)


def _is_newly_known(before: Column, after: Column | None) -> bool:
    """Whether text in the contract's form would have to become another type, or the reverse."""
    if after is not None:
        kinds = {kind_of(before.data_type), kind_of(after.data_type)}
    else:
        kinds = set()
    return ValueKind.UNKNOWN in kinds and len(kinds) > 1


def _filled(column: Column, change: Mapping[str, Any]) -> Filled:
    text = str(change["filled_text"])
    # A document's native form may lose information, as in a row.
    if kind_of(column.data_type) is ValueKind.JSON:
        return Filled(ExactText(text), text)
    return Filled(change["filled"], text)


def _renames(
    table: Table, wanted: Table, changes: Iterable[Mapping[str, Any]]
) -> dict[str, str] | None:
    """New name → old name. Renames that the mirror already has (after a later snapshot) are not
    repeated.
    """
    there = {column.name for column in table.columns}
    wanted_names = {column.name for column in wanted.columns}
    renamed = {}
    for change in changes:
        if change["change"] == "column_renamed" and change["from"] in there - wanted_names:
            if change["column"] in there:
                return None
            renamed[str(change["column"])] = str(change["from"])
        elif (
            change["change"] == "column_renamed"
            and {change["from"], change["column"]} <= there & wanted_names
        ):
            return None
    return renamed


def _brings_in(table: Table, wanted: Table, changes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a renamed column is wanted whose values the mirror does not have."""
    there = {column.name for column in table.columns}
    new = {column.name for column in wanted.columns} - there
    return any(
        change["change"] == "column_renamed"
        and change["column"] in new
        and change["from"] not in there
        for change in changes
    )


def row_steps(event: Event, table: Table) -> list[Step] | Resync:
    """The steps of a change; Resync if the table lacks one of its columns."""
    step = _row_step(event, table)
    if isinstance(step, Resync):
        return step
    if table.rules.soft_delete:
        return softly(step, event)
    return [step]


def _row_step(event: Event, table: Table) -> Step | Resync:
    if event.operation == "TRUNCATE" and not table.rules.history:
        return TruncateTable(table)
    known = table.source_names
    row = _kept(table, exact.row(event.payload))
    before = exact.old_row(event.payload)
    old = None if before is None else _kept(table, before)
    if not known.issuperset(row) or not known.issuperset(old or ()):
        return Resync("a row of another shape")
    if table.rules.history:
        return InsertRows(table, (history.changed(table, event, row, old),))
    if event.operation == "INSERT":
        # An UPDATE that moved the row into the publication's row filter.
        if event.unchanged and _kept(table, dict.fromkeys(event.unchanged)):
            return Resync("a row entered the row filter without large values that did not change")
        return InsertRows(table, (row,))
    where = _identified(table, row, old)
    if where is None:
        return Resync("a row that names no key")
    if event.operation == "DELETE":
        return DeleteRow(table, where)
    return UpdateRow(table, where, row)


def _kept(table: Table, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a row that the table has."""
    if table.rules.columns is None:
        return row
    return {name: value for name, value in row.items() if table.rules.keeps(name)}


def _identified(
    table: Table, row: Mapping[str, Any], old: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The values that identify the row as it was before.

    Never takes the primary key out of a whole old row: a deferrable key may belong to two rows
    within a transaction.
    """
    if old is not None:
        return dict(old) or None
    # Columns whose old values PostgreSQL doesn't send did not change: the replica identity, which
    # isn't always the primary key.
    for names in (table.identity, table.primary_key):
        if names and row.keys() >= set(names):
            return {name: row[name] for name in names}
    return None


def coalesced(steps: Iterable[Step]) -> list[Step]:
    """The same steps, with consecutive inserts merged, and the removals of marked rows before
    them.
    """
    merged: list[Step] = []
    rows: list[Mapping[str, Any]] = []
    for step in steps:
        # Only neighbors are merged: a step in between may depend on the rows before it.
        last = merged[-1] if merged else None
        if (
            isinstance(step, InsertRows)
            and isinstance(last, InsertRows)
            and last.table == step.table
        ):
            rows.extend(step.rows)
        elif (
            isinstance(step, RemoveSoftDeleted)
            and isinstance(last, InsertRows)
            and len(merged) > 1
            and isinstance(merged[-2], RemoveSoftDeleted)
            and merged[-2].table == last.table == step.table
        ):
            # No inserted row is marked, so it may as well come before the inserts.
            merged[-2] = RemoveSoftDeleted(step.table, [*merged[-2].rows, *step.rows])
        elif isinstance(step, InsertRows):
            rows = list(step.rows)
            merged.append(InsertRows(step.table, rows))
        else:
            merged.append(step)
    return merged
