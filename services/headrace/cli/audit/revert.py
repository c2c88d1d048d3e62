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
    columns_of,
    exact_of,
    gap_between,
    is_unsure,
    key_columns,
    known_of,
    later_change,
    place_of,
    row_at,
    written_before,
)
from headrace.audit.ordering import Reference, ordered
from headrace.audit.revert import (
    IrreversibleError,
    RowImage,
    SourceColumn,
    SourceTable,
    Step,
    ValueForm,
    agree,
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
from headrace.audit.table_book import Names
from headrace.cli.audit.references import references_to
from headrace.contract import type_oids
from headrace.contract.values import (
    SESSION_SETTINGS,
    ArrayForm,
    JsonForm,
    TypeInfo,
    TypeKind,
    ValueOptions,
    converter,
)
from headrace.errors import SettingError
from headrace.postgres import catalog
from headrace.postgres.quoting import quote_name, quote_table
from headrace.terminal.text import plain

# HEADRACE_AUDIT_INSERT_AS decides which of them a trail contains.
INSERTED = frozenset({"CREATE", "INSERT"})
_COLUMNS = """
SELECT attrelid::int8 AS relation_id, attname AS name, attnum AS number, atttypid::int8 AS type_oid,
       attgenerated <> '' AS generated
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""
_BY_TRIGGER = (
    "A trigger, a rule or the columns' current types change what is written: exclude a column "
    "that a trigger sets with --leave, or undo the change manually."
)
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
    _tables: dict[Names, SourceTable] = field(default_factory=dict)
    # Each table's present relation and files.
    _files: dict[Names, tuple[int, frozenset[str]]] = field(default_factory=dict)
    _references: list[Reference] = field(default_factory=list)
    _left: set[str] = field(default_factory=set)

    async def script(self) -> str:
        """The statements, the latest change's first."""
        await self._prepare()
        statements = []
        for change in self.changes:
            step = await self._step(change)
            await self._check_imagined(step)
            statements.append(step.statement)
        self._require_left()
        return "\n".join(["BEGIN;", *statements, "COMMIT;"])

    async def apply(self) -> None:
        """Undo the changes in one transaction, or none of them."""
        ids = [str(change["id"]) for change in self.changes]
        async with self.source.transaction():
            await self._prepare()
            said = json.dumps(
                {
                    "revert_of": ids
                    if len(ids) <= 100
                    else [*ids[:100], f"and {len(ids) - 100} more"]
                }
            )
            # Becomes the context of these changes in the trail: a reader sees that they are a
            # revert, and of what.
            await self.source.execute("SELECT pg_logical_emit_message(true, '_bemi', $1)", said)
            for change in self.changes:
                await self._do(await self._step(change))
            self._require_left()

    async def _prepare(self) -> None:
        # Texts are compared with those of the stream, so they must be written with the same
        # settings.
        for name, value in SESSION_SETTINGS.items():
            await self.source.execute("SELECT set_config($1, $2, false)", name, value)
        here = await self.source.fetchval("SELECT current_database()")
        elsewhere = {change["database"] for change in self.changes} - {here}
        if elsewhere:
            raise IrreversibleError(
                (
                    f"these changes are of the database {', '.join(sorted(elsewhere))}, but "
                    f"this is {here}"
                ),
                remedy="Set DB_NAME (PG_DB) to it.",
            )
        tables = {(change["schema"], change["table"]) for change in self.changes}
        self._references = await references_to(self.source, tables)
        # Rows that refer to others are deleted before them, and inserted after them.
        self.changes = ordered(self.changes, self._references)

    def _require_left(self) -> None:
        """A column that no table has is a typing error."""
        if unknown := sorted({*self.leave} - self._left):
            raise SettingError(
                f"--leave {unknown[0]}: no table of these changes has this column",
                remedy="Write column, table.column or schema.table.column.",
            )

    async def _do(self, step: Step) -> None:
        found = await self._read(step.table, step.found_by)
        await self._hold(step, found, step.now)
        await self._hold_alone(step)
        if not step.idle:
            status = await self.source.execute(step.statement)
            # A trigger may suppress the statement, and a rule replace it; neither is an error to
            # PostgreSQL.
            if not status.endswith(" 1"):
                raise IrreversibleError(
                    (
                        f"nothing was undone: a statement wrote {status.split()[-1]} rows of "
                        f"{step.table.name}"
                    ),
                    remedy=(
                        "A trigger or a rule of the table prevents it: undo the change manually."
                    ),
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
        await self._hold_alone(step)
        self._imagined[place] = None
        if step.then is not None:
            self._imagined[step.table.quoted, located(step.table, step.then)] = step.then

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

    async def _hold_alone(self, step: Step) -> None:
        """A deleted row must not take along others that nobody asked to undo."""
        if step.then is not None:
            return
        for one in self._references:
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
            found = await self.source.fetchval(
                f"SELECT count(*) FROM {child} AS c JOIN {step.table.quoted} AS t ON "
                f"{' AND '.join(pairs)}{itself}"
                f" WHERE {located(step.table, step.found_by)}"
            )
            # In a script, those that its statements so far would remove; a partition's rows are
            # also its parent's.
            gone = [
                place
                for place, side in self._imagined.items()
                if side is None and (place[0] != step.table.quoted or one.child == one.parent)
            ]
            if found > len(gone):
                raise IrreversibleError(
                    f"nothing was undone: {found - len(gone)} rows of {'.'.join(one.child)} refer "
                    f"to {step.table.name}"
                    f" {step.change['primary_key']}, and would be deleted or changed with it",
                    remedy="Undo their changes first, or all of them together.",
                )

    async def _refuse(self, step: Step, why: str) -> None:
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
        table = await self._table(change["schema"], change["table"])
        if change["operation"] == "TRUNCATE":
            raise IrreversibleError(f"a TRUNCATE of {table.quoted} can't be undone from the trail")
        after = _side(change, "after")
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

    async def _was(self, change: Mapping[str, Any]) -> RowImage:
        """The row before a change: as PostgreSQL sent it, or as earlier changes left it."""
        was = _side(change, "before")
        after = parsed(change["after"])
        before = was.values
        if change["operation"] == "UPDATE":
            whole = set(before) >= set(after) | set(change["unchanged"] or ())
        else:
            whole = await self._is_whole(change, set(before))
        if whole and before:
            return was
        names = (change["schema"], change["table"])
        key = await key_columns(self.trail, self.audit, *names, change["source"])
        old_key = change["primary_key"]
        if change["operation"] == "UPDATE" and before:
            # The key changed: the earlier row is found under its old key.
            old_key = key_text({**json.loads(change["after"]), **json.loads(change["before"])}, key)
        place = place_of(change)
        database = change["database"]
        earlier = await row_at(
            self.trail, self.audit, names, old_key or "", place, parsed, database
        )
        if earlier.values is None or earlier.unknown or earlier.oldest is None:
            if earlier.unknown:
                unknown = f": {', '.join(earlier.unknown)}"
            else:
                unknown = ""
            raise IrreversibleError(
                f"the former values of a row of {change['table']} are not known{unknown}"
            )
        if gap := await gap_between(self.trail, self.audit, earlier.oldest, change):
            raise IrreversibleError(
                f"the former values of a row of {change['table']} are not known: changes of it "
                f"may be missing ({gap})"
            )
        await self._require_known(change, earlier.oldest)
        return RowImage(earlier.values, earlier.exact, earlier.unsure)

    async def _is_whole(self, change: Mapping[str, Any], sent: set[str]) -> bool:
        """Whether PostgreSQL sent all of a deleted row, as far as its columns are there still."""
        names = (change["database"], change["schema"], change["table"])
        columns = (await self._table(*names[1:])).columns
        last = await written_before(self.trail, self.audit, names, change)
        latest = last or await written_before(self.trail, self.audit, names)
        known = columns_of(latest) or set(columns)
        if not sent >= known & set(columns):
            return False
        key = await key_columns(self.trail, self.audit, *names[1:], change["source"])
        others = {one.name for one in columns.values() if not one.generated} - sent
        if last is not None and others and sent.issubset(key):
            # The key is a whole row only if the table had no other column by then.
            await self._require_known(change, last)
        return True

    async def _require_known(self, change: Mapping[str, Any], oldest: Mapping[str, Any]) -> None:
        """From an earlier change on the trail must have all that happened to the table's rows."""
        names = (change["schema"], change["table"])
        await self._table(*names)
        relation_id, files = self._files[names]
        known = await known_of(self.trail, self.audit, *names, change["source"] or "")
        if (
            known is not None
            and known.has(oldest, change["source"])
            and known.relation_id == relation_id
            and files.issuperset(known.files.split(","))
        ):
            return
        raise IrreversibleError(
            f"what a row of {change['table']} was before is not known: since the change "
            f"{oldest['id']}, which wrote it last, rows may have changed without the trail: the "
            "table was swapped, rewritten or given a column, was not audited for a while, or an "
            "earlier version wrote the trail"
        )

    async def _nothing_left_out(
        self,
        change: Mapping[str, Any],
        table: SourceTable,
        side: RowImage,
        unchanged: Sequence[str],
    ) -> None:
        """Columns that the trail lacks: only columns that were added later are no part of the
        change.
        """
        absent = [
            one
            for one in table.columns.values()
            if one.name not in side.values and one.name not in unchanged
        ]
        absent = [one for one in absent if not one.generated]
        if not absent:
            return
        # Existing columns have lower numbers; one that is in the trail by now is no longer
        # excluded, if it ever was.
        newest = max((table.columns[name].number for name in side.values), default=0)
        names = (change["database"], table.schema, table.name)
        delivered = columns_of(await written_before(self.trail, self.audit, names))
        then = columns_of(await written_before(self.trail, self.audit, names, change))
        hidden = [
            one.name
            for one in absent
            if one.number < newest or one.name in then or one.name not in delivered
        ]
        if hidden:
            raise IrreversibleError(
                f"the trail does not have these columns of {table.name}: {', '.join(hidden)}",
                remedy=(
                    "HEADRACE_EXCLUDE_COLUMNS or the publication excludes them, or they "
                    "were added after the last change in the trail: undo it manually."
                ),
            )

    async def _table(self, schema: str, name: str) -> SourceTable:
        names = (schema, name)
        if names not in self._tables:
            self._tables[names] = await self._described(schema, name)
        return self._tables[names]

    async def _described(self, schema: str, name: str) -> SourceTable:
        rows = await self.source.fetch(_COLUMNS, quote_table(schema, name))
        if not rows:
            raise IrreversibleError(
                f"the table {schema}.{name} no longer exists",
                remedy="Create it again, or undo it manually.",
            )
        own = {row["type_oid"] for row in rows if row["type_oid"] >= catalog.FIRST_USER_OID}
        types = await catalog.types(self.source, own)
        columns = {row["name"]: self._column(schema, name, row, types) for row in rows}
        relation_id = rows[0]["relation_id"]
        # Reading locks the table against a rewrite or a swap until the transaction ends.
        await self.source.execute(f"SELECT FROM {quote_name(schema)}.{quote_name(name)} LIMIT 0")
        found = await catalog.files(self.source, [relation_id])
        files = found[relation_id].text if relation_id in found else ""
        self._files[schema, name] = relation_id, frozenset(files.split(","))
        keys = await catalog.keys(self.source, [relation_id])
        return SourceTable(schema, name, columns, keys[relation_id].row)

    def _column(
        self, schema: str, table: str, row: Mapping[str, Any], types: Mapping[int, TypeInfo]
    ) -> SourceColumn:
        oid = row["type_oid"]
        while (info := types.get(oid)) is not None and info.kind is TypeKind.DOMAIN:
            oid = info.base_oid
        kind = {
            type_oids.JSON: ValueForm.DOCUMENT,
            type_oids.JSONB: ValueForm.DOCUMENT,
            type_oids.BYTEA: ValueForm.BINARY,
        }.get(oid)
        told = converter(oid, ValueOptions(), types.get)
        listed = converter(oid, ValueOptions(arrays=ArrayForm.LIST), types.get)
        left = {*self.leave} & {
            row["name"],
            f"{table}.{row['name']}",
            f"{schema}.{table}.{row['name']}",
        }
        self._left |= left
        as_text = self.json_values is JsonForm.TEXT
        return SourceColumn(
            row["name"],
            row["number"],
            kind or ValueForm.OTHER,
            row["generated"],
            told,
            listed,
            bool(left),
            as_text,
        )


def _side(change: Mapping[str, Any], side: str) -> RowImage:
    values = parsed(change[side])
    return RowImage(values, exact_of(change, side), values if is_unsure(change) else ())


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
