"""`headrace audit revert`: undoes changes, and checks the source's rows before and after.

Promises: reads only, unless it is applied. Then each row is locked and must match its change, is
written, and is read back: the transaction commits only if the row is what it was before the change.
A refused revert undoes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

import asyncpg

from headrace.audit.history import (
    later_change,
)
from headrace.audit.ordering import Reference, ordered
from headrace.audit.revert import (
    IrreversibleError,
    RowImage,
    SourceTable,
    Step,
    agree,
    differing,
    gone,
    located,
    undo_delete,
    undo_insert,
    undo_update,
)
from headrace.audit.table import AuditTable
from headrace.cli.audit.former_rows import FormerRows, image
from headrace.cli.audit.relations import references_to
from headrace.cli.audit.source_tables import SourceTables
from headrace.contract.values import (
    SESSION_SETTINGS,
    JsonForm,
)
from headrace.postgres.quoting import quote_name
from headrace.terminal.text import plain

# HEADRACE_AUDIT_INSERT_AS decides which of them a trail contains.
INSERTED = frozenset({"CREATE", "INSERT"})
_BY_TRIGGER = (
    "A trigger, a rule or the columns' current types change what is written: exclude a column "
    "that a trigger sets with --leave, or undo the change manually."
)
# Identifies a row of the source, also as a row of a partition's parent.
_ROW = "concat({0}.tableoid, {0}.ctid)"
_LATER = "Undo the later changes first, or all of them together."


@dataclass(slots=True)
class Reverting:
    """One run of the command; `trail` and `source` are its connections."""

    trail: asyncpg.Connection
    source: asyncpg.Connection
    audit: AuditTable
    json_values: JsonForm
    changes: Sequence[Mapping[str, Any]]
    # Columns that stay as they are: column, table.column or schema.table.column.
    leave: Collection[str] = ()
    # Rows as they would be by now, if nothing is written: None for a deleted one.
    _imagined: dict[tuple[str, str], RowImage | None] = field(default_factory=dict)
    # By the place of such a row: where it is at the source, None if it is not there.
    _origins: dict[tuple[str, str], tuple[str, str] | None] = field(default_factory=dict)
    # The rows of the source that would be gone.
    _removed: list[str] = field(default_factory=list)
    _references: list[Reference] = field(default_factory=list)
    _tables: SourceTables = field(init=False)
    _former: FormerRows = field(init=False)

    def __post_init__(self) -> None:
        self._tables = SourceTables(self.source, self.json_values, self.leave)
        self._former = FormerRows(self.trail, self.audit, self._tables)

    async def script(self) -> str:
        """The statements, the latest change's first."""
        await self._prepare()
        statements = []
        # Each step sees in `_imagined` what the steps before it would leave.
        for change in self.changes:
            step = await self._step(change)
            await self._check_imagined(step)
            statements.append(step.statement)
        self._tables.require_left()
        return "\n".join(["BEGIN;", *statements, "COMMIT;"])

    async def apply(self) -> None:
        """Undo the changes in one transaction, or none of them."""
        # Every row that the revert writes has this context: a thousand ids would be too many.
        ids = [str(change["id"]) for change in self.changes]
        if len(ids) > 100:
            ids = [*ids[:100], f"and {len(ids) - 100} more"]
        # Checks and statements together: what was checked can't change before it is written.
        async with self.source.transaction():
            await self._prepare()
            said = json.dumps({"revert_of": ids})
            # Becomes the context of these changes in the trail: a reader sees that they are a
            # revert, and of what.
            await self.source.execute("SELECT pg_logical_emit_message(true, '_bemi', $1)", said)
            for change in self.changes:
                await self._do(await self._step(change))
            self._tables.require_left()

    async def _prepare(self) -> None:
        # Texts are compared with those of the stream, so they must be written with the same
        # settings.
        for name, value in SESSION_SETTINGS.items():
            await self.source.execute("SELECT set_config($1, $2, false)", name, value)
        here = await self.source.fetchval("SELECT current_database()")
        # A trail may contain several databases with tables of the same names.
        elsewhere = {change["database"] for change in self.changes} - {here}
        if elsewhere:
            raise IrreversibleError(
                f"these changes are of the database {', '.join(sorted(elsewhere))}, but this is "
                f"{here}",
                remedy="Set DB_NAME (PG_DB) to it.",
            )
        tables = {(change["schema"], change["table"]) for change in self.changes}
        self._references = await references_to(self.source, tables)
        # Rows that refer to others are deleted before them, and inserted after them.
        self.changes = ordered(self.changes, self._references)

    async def _do(self, step: Step) -> None:
        # Locked by the reading, so that what is checked is what is written.
        found = await self._read(step.table, step.found_by)
        await self._hold(step, found, step.now)
        if step.then is None:
            await self._hold_alone(step, located(step.table, step.found_by))
        if not step.idle:
            status = await self.source.execute(step.statement)
            # A trigger may suppress the statement, and a rule replace it; neither is an error to
            # PostgreSQL.
            if not status.endswith(" 1"):
                raise IrreversibleError(
                    f"nothing was undone: a statement wrote {status.split()[-1]} rows of "
                    f"{step.table.name}",
                    remedy="A trigger or rule of the table prevents it: undo the change manually.",
                )
        await self._prove(step)

    async def _prove(self, step: Step) -> None:
        """The row is read back, and must be what the trail says."""
        if step.then is None:
            assert step.now is not None, "a change has at least one side"
            if await self._read(step.table, step.now) is None:
                return
            wrong = "the row still exists"
        else:
            found = await self._read(step.table, step.then)
            if found is None:
                names = None
            else:
                names = differing(step.table, found, step.then)
            if names == []:
                return
            if names is None:
                wrong = "the row is not there"
            else:
                wrong = f"{', '.join(names)} would not be what it was"
        raise IrreversibleError(
            f"nothing was undone: read back from {step.table.name}, {wrong}",
            remedy=_BY_TRIGGER,
        )

    async def _check_imagined(self, step: Step) -> None:
        """Find the row as `_do` would, if the steps before were done."""
        place = (step.table.quoted, located(step.table, step.found_by))
        # Each row is read once; after that, the script's own earlier statements decide what it
        # looks like.
        if place not in self._imagined:
            await self._hold(
                step, await self._read(step.table, step.found_by, lock=False), step.now
            )
        elif not agree(step.table, self._imagined[place], step.now):
            await self._refuse(step, "another change of the row is in between")
        # A row that the script brings back is not at the source yet.
        origin = None if step.now is None else self._origins.pop(place, place)
        self._imagined[place] = None
        if step.then is not None:
            now_at = (step.table.quoted, located(step.table, step.then))
            self._imagined[now_at] = step.then
            self._origins[now_at] = origin
        elif origin is not None:
            await self._hold_alone(step, origin[1])
            await self._note_removed(*origin)

    async def _note_removed(self, quoted: str, where: str) -> None:
        """Remember which row of the source the script removes: it may refer to others."""
        if self._references:
            query = f"SELECT {_ROW.format('t')} FROM {quoted} AS t WHERE {where}"
            found = await self.source.fetchval(query)
            self._removed += [found] if found is not None else []

    async def _hold(
        self, step: Step, found: Mapping[str, str | None] | None, now: RowImage | None
    ) -> None:
        """The row must match what the change left."""
        if now is None:
            if found is not None:
                await self._refuse(step, "the row exists again")
        elif found is None:
            await self._refuse(step, "the row no longer exists")
        elif names := differing(step.table, found, now):
            await self._refuse(step, f"{', '.join(names)} changed since")

    async def _hold_alone(self, step: Step, where: str) -> None:
        """A deleted row, which is at `where`, must not take along others that nobody asked to
        undo.
        """
        for one in self._references:
            # Other foreign keys refuse the delete themselves.
            if one.parent != (step.table.schema, step.table.name) or not one.takes_along:
                continue
            child = ".".join(quote_name(name) for name in one.child)
            pairs = [
                f"c.{quote_name(a)} = t.{quote_name(b)}"
                for a, b in zip(one.columns, one.keys, strict=True)
            ]
            if one.child == one.parent:
                itself = " AND (c.tableoid, c.ctid) <> (t.tableoid, t.ctid)"
            else:
                itself = ""
            # More than those that this script removes before.
            found = await self.source.fetchval(
                f"SELECT count(*) FROM {child} AS c JOIN {step.table.quoted} AS t ON "
                f"{' AND '.join(pairs)}{itself}"
                f" WHERE {where} AND {_ROW.format('c')} <> ALL ($1::text[])",
                self._removed,
            )
            if found:
                raise IrreversibleError(
                    f"nothing was undone: {found} rows of {'.'.join(one.child)} refer "
                    f"to {step.table.name}"
                    f" {step.change['primary_key']}, and would be deleted or changed with it",
                    remedy="Undo their changes first, or all of them together.",
                )

    async def _refuse(self, step: Step, why: str) -> None:
        # That change has to be undone first.
        later = await later_change(
            self.trail, self.audit, step.change, [one["id"] for one in self.changes]
        )
        named = "the trail has no later change of it"
        if later is not None:
            at = later["committed_at"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
            named = (
                f"{later['operation']} {later['id']} at {at} UTC, transaction "
                f"{later['transaction_id']}"
            )
        change = step.change
        table = step.table
        raise IrreversibleError(
            f"nothing was undone: {table.name} {change['primary_key']} is not what the change "
            f"{change['id']} left:"
            f" {why} ({named})",
            remedy=_LATER,
        )

    async def _read(
        self, table: SourceTable, side: RowImage, *, lock: bool = True
    ) -> dict[str, str | None] | None:
        """The source's row as texts, as in the replication stream; None if there is none."""
        # format() uses the type's output function, as the stream does. A cast to text may differ,
        # as with boolean and character(n).
        texts = ", ".join(
            (
                f"CASE WHEN t.{quote_name(name)} IS NULL THEN NULL ELSE format('%s', "
                f"t.{quote_name(name)}) END"
            )
            for name in table.columns
        )
        where = f"WHERE {located(table, side)}" + (" FOR UPDATE OF t" if lock else "")
        rows = await self.source.fetch(f"SELECT {texts} FROM {table.quoted} AS t {where}")
        # The key has no unique index (any more): a statement would change all of these rows.
        if len(rows) > 1:
            raise IrreversibleError(
                f"{len(rows)} rows of {table.name} have the key of one", remedy="Undo it manually."
            )
        if rows:
            return dict(zip(table.columns, rows[0].values(), strict=True))
        return None

    async def _step(self, change: Mapping[str, Any]) -> Step:
        table = await self._tables.table(change["schema"], change["table"])
        if change["operation"] == "TRUNCATE":
            raise IrreversibleError(f"a TRUNCATE of {table.quoted} can't be undone from the trail")
        after = image(change, "after")
        if change["operation"] in INSERTED:
            _all_there(table, after)
            return undo_insert(change, table, after)
        was = await self._former.before(change)
        for side in (was, after):
            _all_there(table, side)
        if change["operation"] == "DELETE":
            await self._former.require_all_columns(change, table, was, ())
            return undo_delete(change, table, was)
        await self._former.require_all_columns(change, table, after, change["unchanged"] or ())
        return undo_update(change, table, was, after)


def _all_there(table: SourceTable, side: RowImage) -> None:
    if missing := gone(table, side):
        raise IrreversibleError(
            (
                f"{table.name} no longer has the column {', '.join(missing)}: it was renamed or "
                "dropped since the change"
            ),
            remedy="Undo it manually; `headrace audit diff` shows the values.",
        )


def show(script: str) -> None:
    """Text for psql must not be altered."""
    print(plain(script) if sys.stdout.isatty() else script)
