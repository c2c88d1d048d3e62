"""Rows as they were, from the trail: what a key's row held at a time, or right before a change.

Promises: what the trail doesn't know (a value that PostgreSQL did not send and no earlier row has) is named, never
guessed. Follows a key that changed, and a TRUNCATE.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg

from headrace.audit.query import SHOWN
from headrace.audit.table import TABLES, AuditTable

DEPTH_MAX = 1000


@dataclass(slots=True)
class Row:
    """A row as it was; None for `values` where there was none."""

    values: dict[str, Any] | None
    unknown: list[str] = field(default_factory=list)
    change: Mapping[str, Any] | None = None


async def key_columns(connection: asyncpg.Connection, table: AuditTable, schema: str, name: str) -> tuple[str, ...]:
    """A table's key, as far as the trail was told."""
    found = await connection.fetchval(
        f'SELECT key FROM {table.beside(TABLES)} WHERE schema = $1 AND "table" = $2 LIMIT 1',  # noqa: S608  # checked names
        schema,
        name,
    )
    return tuple(found or ())


async def row_at(
    connection: asyncpg.Connection,
    table: AuditTable,
    names: tuple[str, str],
    key: str,
    at: datetime | tuple[int, int],
) -> Row:
    """The row of this key at a time, or right before the change at this place."""
    columns = await key_columns(connection, table, *names)
    values: dict[str, Any] = {}
    unknown: set[str] = set()
    latest: Mapping[str, Any] | None = None
    for change in await _changes(connection, table, names, key, at, columns):
        if latest is None:
            latest = change
            if change["operation"] in {"DELETE", "TRUNCATE"} or change["primary_key"] != key:
                return Row(None, change=change)
        elif change["operation"] in {"DELETE", "TRUNCATE"} or change["primary_key"] != key:
            break
        _fill(values, unknown, change, first=change is latest)
        if not unknown:
            break
    return Row(values if latest is not None else None, sorted(unknown), latest)


def _fill(values: dict[str, Any], unknown: set[str], change: Mapping[str, Any], *, first: bool) -> None:
    """Take from an older change what the later ones did not have."""
    after = json.loads(change["after"])
    if first:
        values.update(after)
        unknown.update(change["unchanged"] or ())
        return
    for name in unknown & after.keys():
        values[name] = after[name]
        unknown.discard(name)


async def _changes(
    connection: asyncpg.Connection,
    table: AuditTable,
    names: tuple[str, str],
    key: str,
    at: datetime | tuple[int, int],
    columns: tuple[str, ...],
) -> list[Any]:
    """What happened to the key, the latest first; also that it moved to another, or that the table was emptied."""
    arguments: list[object] = [*names, key]
    moved = "false"
    if columns:
        parts = []
        for column in columns:
            arguments.append(column)
            parts.append(f"before ->> ${len(arguments)}")
        moved = (
            f"{parts[0]} = $3" if len(parts) == 1 else f"jsonb_build_array({', '.join(parts)})::text = $3::jsonb::text"
        )
    if isinstance(at, datetime):
        arguments.append(at)
        until = f"committed_at <= ${len(arguments)}"
    else:
        arguments += at
        until = f"(position, ordinal) < (${len(arguments) - 1}, ${len(arguments)})"
    return list(
        await connection.fetch(
            f'SELECT {SHOWN} FROM {table.quoted} WHERE schema = $1 AND "table" = $2 AND {until}'  # noqa: S608  # checked names
            f" AND (primary_key = $3 OR operation = 'TRUNCATE' OR (operation = 'UPDATE' AND {moved}))"
            f" ORDER BY position DESC, ordinal DESC LIMIT {DEPTH_MAX}",
            *arguments,
        )
    )
