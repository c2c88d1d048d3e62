"""Earlier versions of rows, from the trail: at a time, or right before a change.

Promises: anything the trail doesn't know (a value that PostgreSQL did not send and no earlier row
contains) is named, never guessed. Follows changed keys and TRUNCATEs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg

from headrace.audit.query import SHOWN, Arguments, TrailPosition, earlier
from headrace.audit.rows import KEY_BYTES_MAX, KEY_CHARACTERS, key_text
from headrace.audit.table import GAPS, TABLES, AuditTable
from headrace.lsn import Position

# Changes of one row to look at: what none of them contains stays unknown.
DEPTH_MAX = 1000


@dataclass(slots=True)
class TrailRow:
    """A row as it was; None for `values` where there was none."""

    values: dict[str, Any] | None
    unknown: list[str] = field(default_factory=list)
    change: Mapping[str, Any] | None = None
    # PostgreSQL's text of documents whose value loses information.
    exact: dict[str, str] = field(default_factory=dict)
    # Columns for which it is unknown whether they lose information.
    unsure: set[str] = field(default_factory=set)
    # The earliest change that contributed to it.
    oldest: Mapping[str, Any] | None = None


async def key_columns(
    connection: asyncpg.Connection,
    table: AuditTable,
    schema: str,
    name: str,
    source: str | None = None,
) -> tuple[str, ...]:
    """A table's key, as known to the trail; with several sources, this one's first."""
    found = await connection.fetchval(
        f'SELECT key FROM {table.beside(TABLES)} WHERE schema = $1 AND "table" = $2'
        " ORDER BY source = $3 DESC LIMIT 1",
        schema,
        name,
        source or "",
    )
    return tuple(found or ())


@dataclass(frozen=True, slots=True)
class Known:
    """Since when the trail has every change of a table's rows, while the table is this relation and
    has these files.
    """

    relation_id: int
    since: Position
    files: str

    def has(self, change: Mapping[str, Any], source: str) -> bool:
        """Whether the trail has all changes from this one on."""
        # Positions of two sources can't be compared.
        if change["ordinal"] is None or change["source"] != source:
            return False
        return Position(change["position"], change["ordinal"]) >= self.since


async def known_of(
    connection: asyncpg.Connection, table: AuditTable, schema: str, name: str, source: str
) -> Known | None:
    """None where nothing is certain, as in a trail that no writer of this version has continued."""
    found = await connection.fetchval(
        # As a document: a table of an earlier version lacks some of the columns.
        f"SELECT to_jsonb(t)::text FROM {table.beside(TABLES)} AS t"
        ' WHERE source = $1 AND schema = $2 AND "table" = $3',
        source,
        schema,
        name,
    )
    row = json.loads(found or "{}")
    # Without its files, nobody knows whether a rewrite has changed rows silently.
    if row.get("since_position") is None or not row["files"]:
        return None
    since = Position(row["since_position"], row["since_ordinal"])
    return Known(row["relation_id"], since, row["files"])


async def row_at(
    connection: asyncpg.Connection,
    table: AuditTable,
    names: tuple[str, str],
    key: str,
    at: datetime | TrailPosition,
    parse: Callable[[str], dict[str, Any]] = json.loads,
    database: str | None = None,
) -> TrailRow:
    """The row of this key at a time, or right before the change at this place.

    `database`: selects one if the trail contains several.
    """
    columns = await key_columns(connection, table, *names)
    values: dict[str, Any] = {}
    exact: dict[str, str] = {}
    unsure: set[str] = set()
    unknown: set[str] = set()
    latest: Mapping[str, Any] | None = None
    oldest: Mapping[str, Any] | None = None
    for change in await _changes(connection, table, names, key, at, columns, database):
        over = change["operation"] in {"DELETE", "TRUNCATE"} or change["primary_key"] != key
        # The row did not exist at that time: the change that ended it is the answer.
        if latest is None and over:
            return TrailRow(None, change=change)
        # Earlier changes of this key value belong to another row.
        if over or _is_anothers(json.loads(change["after"]), columns, key):
            break
        after = parse(change["after"])
        # The latest change says most; older ones only fill in the columns that PostgreSQL didn't
        # send because their large values were unchanged.
        new = set(after)
        if latest is not None:
            new &= unknown
        if latest is not None:
            unknown = unknown - new
        else:
            unknown = set(change["unchanged"] or ())
        values.update({name: after[name] for name in new})
        exact.update(
            {name: text for name, text in exact_of(change, "after").items() if name in new}
        )
        unsure.update(new if is_unsure(change) else ())
        latest = latest or change
        # Everything since this one has to be in the trail (`gap_between`, `Known`).
        oldest = change if new else oldest
        # All columns are known; older changes would only cost reading.
        if not unknown:
            break
    return TrailRow(
        values if latest is not None else None, sorted(unknown), latest, exact, unsure, oldest
    )


async def gap_between(
    connection: asyncpg.Connection,
    table: AuditTable,
    one: Mapping[str, Any],
    other: Mapping[str, Any],
) -> str | None:
    """Why changes between these two may be missing, if they may: a gap is recorded before the rows
    after it.
    """
    found: str | None = await connection.fetchval(
        f"SELECT reason FROM {table.beside(GAPS)} WHERE noticed_at BETWEEN $1 AND $2 LIMIT 1",
        one["created_at"],
        other["created_at"],
    )
    return found


def _is_anothers(after: Mapping[str, Any], columns: tuple[str, ...], key: str) -> bool:
    """Whether the key had this value with other columns: then this was another row."""
    # None: the change lacks a part of the key, so it proves nothing.
    named = key_text(after, columns)
    return named is not None and named != key


def exact_of(change: Mapping[str, Any], side: str) -> dict[str, str]:
    """PostgreSQL's text of a change's documents, `before` or `after`, whose value loses
    information.
    """
    sides: dict[str, dict[str, str]] = json.loads(change["exact"] or "{}") or {}
    return sides.get(side, {})


def is_unsure(change: Mapping[str, Any]) -> bool:
    """Whether a change was written by an earlier version (or another auditor), which did not store
    those texts.
    """
    return bool(change["exact"] == "null")


async def written_before(
    connection: asyncpg.Connection,
    table: AuditTable,
    names: tuple[str, str, str],
    change: Mapping[str, Any] | None = None,
) -> Mapping[str, Any] | None:
    """The last row that was written of a table (database, schema, name) before a change (None: to
    this day).
    """
    argument = Arguments(names)
    if change is None:
        by = ""
    else:
        by = f" AND ({earlier(place_of(change), argument)})"
    row = await connection.fetchrow(
        f"SELECT {SHOWN} FROM {table.quoted}"
        f' WHERE database = $1 AND schema = $2 AND "table" = $3{by}'
        " AND operation IN ('CREATE', 'INSERT', 'UPDATE') ORDER BY position DESC, ordinal DESC, "
        "id DESC LIMIT 1",
        *argument,
    )
    found: Mapping[str, Any] | None = row
    return found


def columns_of(row: Mapping[str, Any] | None) -> set[str]:
    """The columns that the trail had of a table when this row was written."""
    if row is None:
        return set()
    return set(json.loads(row["after"])) | set(row["unchanged"] or ())


async def later_change(
    connection: asyncpg.Connection, table: AuditTable, change: Mapping[str, Any], but: list[Any]
) -> Mapping[str, Any] | None:
    """The first later change of the same row, except for those."""
    columns = await key_columns(
        connection, table, change["schema"], change["table"], change["source"]
    )
    argument = Arguments(
        [change["schema"], change["table"], change["primary_key"], but, change["database"]]
    )
    of_the_row = _of_the_row(columns, argument)
    since = argument(change["position"])
    until = earlier(place_of(change), argument)
    found: Mapping[str, Any] | None = await connection.fetchrow(
        f'SELECT {SHOWN} FROM {table.quoted} WHERE schema = $1 AND "table" = $2 AND position '
        f">= {since}"
        f" AND NOT ({until}) AND id <> ALL($4::uuid[]) AND database = $5"
        f" AND {of_the_row} ORDER BY position, ordinal, id LIMIT 1",
        *argument,
    )
    return found


def place_of(change: Mapping[str, Any]) -> TrailPosition:
    return TrailPosition(change["position"], change["ordinal"], str(change["id"]))


async def _changes(
    connection: asyncpg.Connection,
    table: AuditTable,
    names: tuple[str, str],
    key: str,
    at: datetime | TrailPosition,
    columns: tuple[str, ...],
    database: str | None,
) -> list[Any]:
    """The changes of the key, the latest first, including those that moved it to another key or
    emptied the table.
    """
    argument = Arguments([*names, key])
    of_the_row = _of_the_row(columns, argument)
    if isinstance(at, datetime):
        until = f"committed_at <= {argument(at)}"
    else:
        until = earlier(at, argument)
    if database is not None:
        until += f" AND database = {argument(database)}"
    return list(
        await connection.fetch(
            f'SELECT {SHOWN} FROM {table.quoted} WHERE schema = $1 AND "table" = $2 AND {until}'
            f" AND {of_the_row} ORDER BY position DESC, ordinal DESC, id DESC LIMIT {DEPTH_MAX}",
            *argument,
        )
    )


def _of_the_row(columns: tuple[str, ...], argument: Arguments) -> str:
    """The condition of changes of the row with key $3: those that moved it to another key or
    emptied the table are among them.
    """
    # An update that moved the row to another key has this key only in its old row.
    if columns:
        moved = f"{_old_key([argument(column) for column in columns])} = $3"
    else:
        moved = "false"
    return f"(primary_key = $3 OR operation = 'TRUNCATE' OR (operation = 'UPDATE' AND {moved}))"


def _old_key(columns: list[str]) -> str:
    """The result of `key_text` for the old row's key, in SQL."""
    values = [f"before ->> {column}" for column in columns]
    if len(values) == 1:
        text = values[0]
    else:
        text = f"array_to_json(ARRAY[{', '.join(values)}])::text"
    # As in `key_text`: a long key is compared by its digest.
    short = f"left(t, {KEY_CHARACTERS}) || '…#' || encode(sha256(convert_to(t, 'UTF8')), 'hex')"
    bounded = f"CASE WHEN octet_length(t) > {KEY_BYTES_MAX} THEN {short} ELSE t END"
    return f"(SELECT {bounded} FROM (SELECT {text}) AS k(t))"
