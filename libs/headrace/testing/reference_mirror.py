"""A mirror written only from the contract: applies the stream to an empty PostgreSQL database, for
comparison.

It shares no code with the publisher. A table whose schema event says `resync` is copied again from
the source, and events before that copy are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from headrace.contract.values import SESSION_SETTINGS
from headrace.testing.line import Delivered

_GONE = {"table_dropped", "table_removed"}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(slots=True)
class _Table:
    schema: str
    name: str
    columns: dict[str, str]
    identity: list[str]
    skip_before: int = 0
    # Not in the source any more when it was to be copied: what the stream still tells of it is
    # history.
    gone: bool = False

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"


@dataclass(slots=True)
class PostgresMirror:
    """Applies events to a database; `source` only serves copies."""

    source: Any
    target: Any
    tables: dict[tuple[str, str], _Table] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    copies: int = 0
    changes: int = 0

    async def prepare(self) -> None:
        for connection in (self.source, self.target):
            for name, value in SESSION_SETTINGS.items():
                await connection.execute(f"SET {name} TO '{value}'")

    async def apply(self, messages: list[Delivered]) -> None:
        for message in messages:
            payload = message.payload
            key = (payload["schema"], payload["table"])
            if key[0] in self.forgotten:
                continue
            if payload["operation"] == "SCHEMA":
                await self._schema(key, payload)
            else:
                table = self.tables.get(key)
                assert table is not None, f"a row of {key} before its schema event: {payload}"
                if payload["tx"]["lsn"] >= table.skip_before and not table.gone:
                    await self._row(table, payload)
                    self.changes += 1

    async def _schema(self, key: tuple[str, str], payload: Mapping[str, Any]) -> None:
        known = self.tables.get(key)
        if known is not None and payload["tx"]["lsn"] < known.skip_before:
            return
        changes = {change["change"] for change in payload["changes"]}
        moved = any(
            change.get("to") for change in payload["changes"] if change["change"] == "table_renamed"
        )
        if changes & _GONE or moved:
            await self._drop(key)
        elif payload["resync"]:
            await self._copy(key, payload)
        elif known is None or known.gone:
            await self._create(key, payload)
        else:
            await self._alter(known, payload)

    async def _drop(self, key: tuple[str, str]) -> None:
        table = self.tables.pop(key, None)
        if table is not None and not table.gone:
            await self.target.execute(f"DROP TABLE {table.sql}")

    async def _create(self, key: tuple[str, str], payload: Mapping[str, Any]) -> None:
        columns = {column["name"]: column["data_type"] for column in payload["columns"]}
        table = self.tables[key] = _Table(key[0], key[1], columns, list(payload["identity"]))
        body = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        await self.target.execute(f"CREATE TABLE {table.sql} ({body})")

    async def _copy(self, key: tuple[str, str], payload: Mapping[str, Any]) -> None:
        """Bootstrap again: copy the current shape and rows from the source, and the position from
        which events count again.
        """
        self.copies += 1
        await self._drop(key)
        await self._create(key, payload)
        table = self.tables[key]
        rows = await self.source.fetch(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) AS data_type FROM pg_attribute "
            "a "
            "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'r' AND a.attnum > 0 AND NOT "
            "a.attisdropped "
            "AND a.attgenerated = '' ORDER BY a.attnum",
            *key,
        )
        table.skip_before = await self.source.fetchval(
            "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
        )
        await self._drop(key)
        self.tables[key] = table
        if not rows:
            table.gone = True
            return
        table.columns = {row["attname"]: row["data_type"] for row in rows}
        body = ", ".join(f"{quoted(name)} {kind}" for name, kind in table.columns.items())
        await self.target.execute(f"CREATE TABLE {table.sql} ({body})")
        names = ", ".join(f"{quoted(name)}::text" for name in table.columns)
        for row in await self.source.fetch(f"SELECT {names} FROM ONLY {table.sql}"):  # noqa: S608  # quoted names
            await self._insert(
                table, dict(zip(table.columns, row.values(), strict=True)), is_text=True
            )

    async def _alter(self, table: _Table, payload: Mapping[str, Any]) -> None:
        # A copy may have this shape already: schema events are idempotent.
        names = set(table.columns)
        for change in payload["changes"]:
            column = change.get("column", "")
            match change["change"]:
                case "column_added" if column not in names:
                    body = f"ADD COLUMN {quoted(column)} {change['data_type']}"
                    if "filled_text" in change:
                        await self._add_filled(table, body, column, change["filled_text"])
                        continue
                case "column_dropped" if column in names:
                    body = f"DROP COLUMN {quoted(column)}"
                case "column_renamed" if change["from"] in names and column not in names:
                    body = f"RENAME COLUMN {quoted(change['from'])} TO {quoted(column)}"
                case "column_retyped" if column in names:
                    body = f"ALTER COLUMN {quoted(column)} TYPE {change['to']}"
                case _:
                    continue
            await self.target.execute(f"ALTER TABLE {table.sql} {body}")
            names = (names - {change.get("from")}) | {column}
        table.columns = {column["name"]: column["data_type"] for column in payload["columns"]}
        table.identity = list(payload["identity"])

    async def _add_filled(self, table: _Table, body: str, column: str, text: str) -> None:
        """Add a column whose value in existing rows is a default that later rows don't get."""
        value = "'" + text.replace("'", "''") + "'"
        await self.target.execute(f"ALTER TABLE {table.sql} {body} DEFAULT {value}")
        await self.target.execute(
            f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column)} DROP DEFAULT"
        )

    async def _row(self, table: _Table, payload: Mapping[str, Any]) -> None:
        match payload["operation"]:
            case "INSERT":
                await self._insert(table, payload["data"])
            case "UPDATE":
                await self._update(table, payload)
            case "DELETE":
                where, values = self._which(table, payload.get("old") or payload["data"], 1)
                done = await self.target.execute(f"DELETE FROM {table.sql} WHERE {where}", *values)  # noqa: S608
                assert done == "DELETE 1", (done, payload)
            case "TRUNCATE":
                await self.target.execute(f"TRUNCATE {table.sql}")

    async def _insert(
        self, table: _Table, data: Mapping[str, Any], *, is_text: bool = False
    ) -> None:
        if not data:
            await self.target.execute(f"INSERT INTO {table.sql} DEFAULT VALUES")
            return
        names = ", ".join(quoted(name) for name in data)
        marks = ", ".join(f"${i}::text::{table.columns[name]}" for i, name in enumerate(data, 1))
        await self.target.execute(
            f"INSERT INTO {table.sql} ({names}) VALUES ({marks})",  # noqa: S608  # quoted names
            *(
                value if is_text else as_text(value, table.columns[name])
                for name, value in data.items()
            ),
        )

    async def _update(self, table: _Table, payload: Mapping[str, Any]) -> None:
        data = payload["data"]
        sets = ", ".join(
            f"{quoted(name)} = ${i}::text::{table.columns[name]}" for i, name in enumerate(data, 1)
        )
        values = [as_text(value, table.columns[name]) for name, value in data.items()]
        identity = payload.get("old") or {name: data[name] for name in table.identity}
        where, more = self._which(table, identity, len(data) + 1)
        done = await self.target.execute(
            f"UPDATE {table.sql} SET {sets} WHERE {where}",  # noqa: S608  # quoted
            *values,
            *more,
        )
        assert done == "UPDATE 1", (done, payload)

    def _which(
        self, table: _Table, identity: Mapping[str, Any], start: int
    ) -> tuple[str, list[str | None]]:
        """The condition for one row with these values: without a key, equal rows are
        interchangeable.
        """
        given = {
            name: value for name, value in identity.items() if name in (table.identity or identity)
        }
        tests = " AND ".join(
            f"{quoted(name)}::text IS NOT DISTINCT FROM (${i}::text::{table.columns[name]})::text"
            for i, name in enumerate(given, start)
        )
        where = f"ctid = (SELECT ctid FROM {table.sql} WHERE {tests} LIMIT 1)"  # noqa: S608  # quoted names
        return where, [as_text(value, table.columns[name]) for name, value in given.items()]

    async def differences(self, schema: str) -> list[str]:
        """Compare every table of the source's schema with the mirror's, as sorted texts of rows."""
        found = []
        tables = await self.source.fetch(
            "SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = "
            "c.relnamespace "
            "WHERE n.nspname = $1 AND c.relkind = 'r'",
            schema,
        )
        there = {row["name"] for row in tables}
        mirrored = {
            name
            for (owner, name), table in self.tables.items()
            if owner == schema and not table.gone
        }
        if there != mirrored:
            found.append(f"tables {sorted(there)} in the source, {sorted(mirrored)} in the mirror")
        for name in sorted(there & mirrored):
            table = self.tables[schema, name]
            try:
                ours, theirs = (
                    await self._texts(self.target, table),
                    await self._texts(self.source, table),
                )
            except asyncpg.UndefinedColumnError as error:
                found.append(f"{name}: the mirror's columns are not the source's: {error}")
                continue
            if ours != theirs:
                found.append(
                    f"{name}: source {sorted(theirs - ours)[:5]}, mirror "
                    f"{sorted(ours - theirs)[:5]}"
                )
        return found

    async def _texts(self, connection: Any, table: _Table) -> set[tuple[str, int]]:
        names = (
            ", ".join(self._comparable(name, kind) for name, kind in table.columns.items()) or "1"
        )
        rows = await connection.fetch(
            f"SELECT row_text, count(*) AS n FROM (SELECT ROW({names})::text AS row_text "  # noqa: S608
            f"FROM ONLY {table.sql}) AS rows GROUP BY 1"
        )
        return {(row["row_text"], row["n"]) for row in rows}

    def _comparable(self, name: str, kind: str) -> str:
        # The native form keeps json's meaning, not its spelling.
        return f"{quoted(name)}::jsonb" if kind == "json" else quoted(name)


def as_text(value: Any, kind: str) -> str | None:
    """A value of an event as text that PostgreSQL reads."""
    if value is None:
        return None
    if kind in ("json", "jsonb"):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value) if not isinstance(value, float) else repr(value)
