"""`headrace audit revert`: the changes' undoing, held to the rows of the source before and after.

Promises: reads only, unless it is applied. Then each row is locked and must be what its change left, is written, and is
read back: only where it is what it was before the change does the transaction commit. What is refused undoes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

import asyncpg

from headrace.audit.history import columns_by, exact_of, gap_between, key_columns, later_change, place_of, row_at
from headrace.audit.revert import (
    Column,
    IrreversibleError,
    Kind,
    Side,
    Step,
    Table,
    differing,
    gone,
    located,
    parsed,
    undo_delete,
    undo_insert,
    undo_update,
)
from headrace.audit.rows import key_text
from headrace.audit.table import AuditTable
from headrace.contract import type_oids
from headrace.contract.values import SESSION_SETTINGS, ArrayForm, JsonForm, TypeInfo, TypeKind, ValueOptions, converter
from headrace.plain import plain
from headrace.postgres import catalog
from headrace.postgres.replication import quote_name

# HEADRACE_AUDIT_INSERT_AS decides which of them a trail has.
INSERTED = frozenset({"CREATE", "INSERT"})
_COLUMNS = """
SELECT attrelid::int8 AS relation_id, attname AS name, attnum AS number, atttypid::int8 AS type_oid,
       attgenerated <> '' AS generated
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""
_LATER = "Undo the later changes first, or all of them together."


@dataclass(slots=True)
class Reverting:
    """One run of the command; `trail` and `source` are its connections."""

    trail: asyncpg.Connection
    source: asyncpg.Connection
    audit: AuditTable
    json_values: JsonForm
    changes: Sequence[Mapping[str, Any]]
    # Rows as they would be by now, where nothing is written: None for one that would be gone.
    _imagined: dict[tuple[str, str], Side | None] = field(default_factory=dict)
    _tables: dict[tuple[str, str], Table] = field(default_factory=dict)

    async def script(self) -> str:
        """The statements, the latest change's first."""
        await self._prepare()
        statements = []
        for change in self.changes:
            step = await self._step(change)
            await self._check_imagined(step)
            statements.append(step.statement)
        return "\n".join(["BEGIN;", *statements, "COMMIT;"])

    async def apply(self) -> None:
        """Undo them in one transaction, or nothing."""
        ids = [str(change["id"]) for change in self.changes]
        async with self.source.transaction():
            await self._prepare()
            said = json.dumps({"revert_of": ids if len(ids) <= 100 else [*ids[:100], f"and {len(ids) - 100} more"]})
            await self.source.execute("SELECT pg_logical_emit_message(true, '_bemi', $1)", said)
            for change in self.changes:
                await self._do(await self._step(change))

    async def _prepare(self) -> None:
        for name, value in SESSION_SETTINGS.items():
            await self.source.execute("SELECT set_config($1, $2, false)", name, value)
        here = await self.source.fetchval("SELECT current_database()")
        elsewhere = {change["database"] for change in self.changes} - {here}
        if elsewhere:
            raise IrreversibleError(
                f"these changes are of the database {', '.join(sorted(elsewhere))}, and this is {here}",
                remedy="Set DB_NAME (PG_DB) to it.",
            )

    async def _do(self, step: Step) -> None:
        found = await self._read(step.table, step.found_by)
        await self._hold(step, found, step.now)
        if not step.idle:
            status = await self.source.execute(step.statement)
            if not status.endswith(" 1"):
                raise IrreversibleError(
                    f"nothing was undone: a statement wrote {status.split()[-1]} rows of {step.table.name}",
                    remedy="A trigger or a rule of the table is in the way: undo it by hand.",
                )
        await self._prove(step)

    async def _prove(self, step: Step) -> None:
        """The row is read back, and is what the trail says."""
        if step.then is None:
            assert step.now is not None, "a change has one side at least"
            if await self._read(step.table, step.now) is None:
                return
            wrong = "the row is still there"
        else:
            found = await self._read(step.table, step.then)
            names = None if found is None else differing(step.table, found, step.then)
            if names == []:
                return
            wrong = "the row is not there" if names is None else f"{', '.join(names)} would not be what it was"
        raise IrreversibleError(
            f"nothing was undone: read back from {step.table.name}, {wrong}",
            remedy="A trigger, a rule or the columns' present types change what is written: undo it by hand.",
        )

    async def _check_imagined(self, step: Step) -> None:
        """As `_do` would find the row, were the steps before it done."""
        place = (step.table.quoted, located(step.table, step.found_by))
        if place not in self._imagined:
            await self._hold(step, await self._read(step.table, step.found_by, lock=False), step.now)
        elif not _agree(self._imagined[place], step.now):
            await self._refuse(step, "another change of the row lies between")
        self._imagined[place] = None
        if step.then is not None:
            self._imagined[step.table.quoted, located(step.table, step.then)] = step.then

    async def _hold(self, step: Step, found: Mapping[str, str | None] | None, now: Side | None) -> None:
        """The row must be what the change left."""
        if now is None:
            if found is not None:
                await self._refuse(step, "the row is there again")
        elif found is None:
            await self._refuse(step, "the row is gone")
        elif names := differing(step.table, found, now):
            await self._refuse(step, f"{', '.join(names)} changed since")

    async def _refuse(self, step: Step, why: str) -> None:
        later = await later_change(self.trail, self.audit, step.change, [one["id"] for one in self.changes])
        named = "the trail has no later change of it"
        if later is not None:
            at = later["committed_at"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
            named = f"{later['operation']} {later['id']} at {at} UTC, transaction {later['transaction_id']}"
        change, table = step.change, step.table
        raise IrreversibleError(
            f"nothing was undone: {table.name} {change['primary_key']} is not what the change {change['id']} left:"
            f" {why} ({named})",
            remedy=_LATER,
        )

    async def _read(self, table: Table, side: Side, *, lock: bool = True) -> dict[str, str | None] | None:
        """The source's row as texts, as the replication stream has them; None where there is none."""
        texts = ", ".join(
            f"CASE WHEN t.{quote_name(name)} IS NULL THEN NULL ELSE format('%s', t.{quote_name(name)}) END"
            for name in table.columns
        )
        where = f"WHERE {located(table, side)}" + (" FOR UPDATE OF t" if lock else "")
        rows = await self.source.fetch(f"SELECT {texts} FROM {table.quoted} AS t {where}")  # noqa: S608  # quoted
        if len(rows) > 1:
            raise IrreversibleError(f"{len(rows)} rows of {table.name} have the key of one", remedy="Undo it by hand.")
        return dict(zip(table.columns, rows[0].values(), strict=True)) if rows else None

    async def _step(self, change: Mapping[str, Any]) -> Step:
        table = await self._table(change["schema"], change["table"])
        if change["operation"] == "TRUNCATE":
            raise IrreversibleError(f"a TRUNCATE of {table.quoted} can't be undone from the trail")
        after = Side(parsed(change["after"]), exact_of(change, "after"))
        if change["operation"] in INSERTED:
            _all_there(table, after)
            return undo_insert(change, table, after)
        was = await self._was(change)
        for side in (was, after):
            _all_there(table, side)
        if change["operation"] == "DELETE":
            await self._nothing_left_out(change, table, was, ())
            return undo_delete(change, table, was)
        await self._nothing_left_out(change, table, after, change["unchanged"] or ())
        return undo_update(change, table, was, after)

    async def _was(self, change: Mapping[str, Any]) -> Side:
        """The row before a change: as PostgreSQL sent it, or as earlier changes left it."""
        before, after = parsed(change["before"]), parsed(change["after"])
        if change["operation"] == "UPDATE":
            whole = set(before) >= set(after) | set(change["unchanged"] or ())
        else:
            whole = set(before) >= await self._columns_at(change)
        if whole and before:
            return Side(before, exact_of(change, "before"))
        names = (change["schema"], change["table"])
        key = await key_columns(self.trail, self.audit, *names, change["source"])
        old_key = change["primary_key"]
        if change["operation"] == "UPDATE" and before:
            # The key changed: the earlier row is found under the one it had.
            old_key = key_text({**json.loads(change["after"]), **json.loads(change["before"])}, key)
        place, database = place_of(change), change["database"]
        earlier = await row_at(self.trail, self.audit, names, old_key or "", place, parsed, database)
        if earlier.values is None or earlier.unknown or earlier.oldest is None:
            unknown = f": {', '.join(earlier.unknown)}" if earlier.unknown else ""
            raise IrreversibleError(f"what a row of {change['table']} was before is not known{unknown}")
        if gap := await gap_between(self.trail, self.audit, earlier.oldest, change):
            raise IrreversibleError(
                f"what a row of {change['table']} was before is not known: changes of it may be missing ({gap})"
            )
        return Side(earlier.values, earlier.exact)

    async def _columns_at(self, change: Mapping[str, Any]) -> set[str]:
        """What a whole row had when it was deleted, of the columns that are there still."""
        names = (change["database"], change["schema"], change["table"])
        present = set((await self._table(*names[1:])).columns)
        known = await columns_by(self.trail, self.audit, names, change)
        known = known or await columns_by(self.trail, self.audit, names) or present
        return known & present

    async def _nothing_left_out(
        self, change: Mapping[str, Any], table: Table, side: Side, unchanged: Sequence[str]
    ) -> None:
        """Columns that the trail has not: only those that were added since are no part of the change."""
        absent = [one for one in table.columns.values() if one.name not in side.values and one.name not in unchanged]
        absent = [one for one in absent if not one.generated]
        if not absent:
            return
        # Those that were there have lower numbers; one that the trail has by now is no longer left out, if it ever was.
        newest = max((table.columns[name].number for name in side.values), default=0)
        names = (change["database"], table.schema, table.name)
        delivered = await columns_by(self.trail, self.audit, names)
        then = await columns_by(self.trail, self.audit, names, change)
        hidden = [one.name for one in absent if one.number < newest or one.name in then or one.name not in delivered]
        if hidden:
            raise IrreversibleError(
                f"the trail does not have these columns of {table.name}: {', '.join(hidden)}",
                remedy="HEADRACE_EXCLUDE_COLUMNS or the publication leaves them out, or they were added after the last"
                " change that it has: undo it by hand.",
            )

    async def _table(self, schema: str, name: str) -> Table:
        names = (schema, name)
        if names not in self._tables:
            self._tables[names] = await self._described(schema, name)
        return self._tables[names]

    async def _described(self, schema: str, name: str) -> Table:
        rows = await self.source.fetch(_COLUMNS, f"{quote_name(schema)}.{quote_name(name)}")
        if not rows:
            raise IrreversibleError(
                f"the table {schema}.{name} is not there any more", remedy="Make it again, or undo it by hand."
            )
        own = {row["type_oid"] for row in rows if row["type_oid"] >= catalog.FIRST_USER_OID}
        types = await catalog.types(self.source, own)
        columns = {row["name"]: self._column(row, types) for row in rows}
        relation_id = rows[0]["relation_id"]
        keys = await catalog.keys(self.source, [relation_id])
        return Table(schema, name, columns, keys[relation_id].row)

    def _column(self, row: Mapping[str, Any], types: Mapping[int, TypeInfo]) -> Column:
        oid = row["type_oid"]
        while (info := types.get(oid)) is not None and info.kind is TypeKind.DOMAIN:
            oid = info.base_oid
        kind = {type_oids.JSON: Kind.DOCUMENT, type_oids.JSONB: Kind.DOCUMENT, type_oids.BYTEA: Kind.BINARY}.get(oid)
        told = converter(oid, ValueOptions(), types.get)
        listed = converter(oid, ValueOptions(arrays=ArrayForm.LIST), types.get)
        as_text = self.json_values is JsonForm.TEXT
        return Column(row["name"], row["number"], kind or Kind.OTHER, row["generated"], told, listed, as_text)


def _all_there(table: Table, side: Side) -> None:
    if missing := gone(table, side):
        raise IrreversibleError(
            f"{table.name} has no column {', '.join(missing)} any more: it was renamed or dropped since the change",
            remedy="Undo it by hand; `headrace audit diff` shows the values.",
        )


def _agree(imagined: Side | None, now: Side | None) -> bool:
    if imagined is None or now is None:
        return imagined is now
    return all(imagined.of(name) == now.of(name) for name in imagined.values if name in now.values)


def show(script: str) -> None:
    """What goes to psql has to be what it is."""
    print(plain(script) if sys.stdout.isatty() else script)
