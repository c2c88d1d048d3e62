"""Searches of the audit table as SQL with arguments, for the command line and the page. Pure."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from headrace.audit.table import AuditTable
from headrace.contract.table_patterns import schema_and_name
from headrace.errors import SettingError

LIMIT_MAX = 1000
# Documents as text: their numbers keep every digit.
SHOWN = (
    'id, database, schema, "table", operation, primary_key, committed_at, position, ordinal, '
    "transaction_id, queued_at,"
    " created_at, unchanged, source, before::text AS before, after::text AS after, "
    "context::text "
    "AS context,"
    " exact::text AS exact"
)


class TrailPosition(NamedTuple):
    """A row's place in the trail. Rows of an older auditor have no ordinal; those of two sources
    may share theirs.
    """

    position: int
    ordinal: int | None
    id: str


class Arguments(list[object]):
    """The arguments of a query: a call adds one, and returns its place in the SQL."""

    def __call__(self, value: object) -> str:
        self.append(value)
        return f"${len(self)}"


@dataclass(frozen=True, slots=True)
class Search:
    """Search criteria; None matches anything. `context` is `name=value` or a JSON object."""

    table: str | None = None
    key: str | None = None
    operation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    context: str | None = None
    id: str | None = None
    position: int | None = None
    # Only rows before this position.
    below: TrailPosition | None = None
    limit: int = 50
    oldest_first: bool = False


def rows(search: Search, table: AuditTable) -> tuple[str, list[object]]:
    """The rows of a search, latest first by default."""
    where, arguments = conditions(search)
    order = "ASC" if search.oldest_first else "DESC"
    sql = (
        f"SELECT {SHOWN} FROM {table.quoted}{where}"
        f" ORDER BY position {order}, ordinal {order}, id {order} LIMIT "
        f"{min(max(search.limit, 1), LIMIT_MAX)}"
    )
    return sql, arguments


def conditions(search: Search) -> tuple[str, list[object]]:
    """The WHERE clause, empty for everything."""
    argument = Arguments()
    found: list[str] = []
    if search.table:
        schema, name = schema_and_name(search.table)
        found.append(f'"table" = {argument(name)}')
        if schema is not None:
            found.append(f"schema = {argument(schema)}")
    if search.key is not None:
        found.append(f"primary_key = ANY({argument(_keys(search.key))}::text[])")
    for start, value, cast in (
        ("operation = ", search.operation, ""),
        ("position = ", search.position, ""),
        ("committed_at >= ", search.since, ""),
        ("committed_at <= ", search.until, ""),
        ("id = ", search.id or None, "::text::uuid"),
    ):
        if value is not None:
            found.append(f"{start}{argument(value)}{cast}")
    if search.below is not None:
        found.append(earlier(search.below, argument))
    if search.context:
        # `@>` uses the GIN index, unlike a comparison of the extracted field.
        either = [f"context @> {argument(one)}::text::jsonb" for one in contexts(search.context)]
        found.append(f"({' OR '.join(either)})")
    if not found:
        return "", argument
    return f" WHERE {' AND '.join(found)}", argument


def earlier(place: TrailPosition, argument: Arguments) -> str:
    """The condition of what comes before a place; of one position, rows without an ordinal are the
    latest.
    """
    lsn = argument(place.position)
    change = f"{argument(place.id)}::text::uuid"
    if place.ordinal is None:
        # DESC puts NULLs first.
        here = f"ordinal IS NOT NULL OR id < {change}"
    else:
        ordinal = argument(place.ordinal)
        here = f"ordinal < {ordinal} OR (ordinal = {ordinal} AND id < {change})"
    return f"position <= {lsn} AND (position < {lsn} OR {here})"


def _keys(text: str) -> list[str]:
    """A key as given, and as the trail writes a key of several columns."""
    # The text as given comes first: a key of one column may start with a bracket as well.
    if text.startswith("["):
        with contextlib.suppress(ValueError):
            return [text, json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))]
    return [text]


def contexts(text: str) -> list[str]:
    """The JSON objects that a context search matches: `user_id=42` matches the number as well as
    the text.
    """
    name, equals, value = text.partition("=")
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            return [json.dumps(json.loads(text))]
    if not equals or not name:
        raise SettingError(
            f"the context {text!r} is not a valid search",
            remedy='Write name=value, or JSON such as {"user_id": 42}.',
        )
    # An application may have recorded the value as text or as a number.
    meant = [json.dumps({name.strip(): value})]
    with contextlib.suppress(ValueError):
        meant.append(json.dumps({name.strip(): json.loads(value)}))
    return meant


def statistics(table: AuditTable) -> str:
    """The number of changes of each kind for each table, and the earliest time."""
    return (
        'SELECT schema, "table", operation, count(*) AS changes, min(committed_at) AS first, '
        "max(committed_at) AS last,"
        f" count(*) FILTER (WHERE context <> '{{}}') AS with_context FROM {table.quoted}"
        " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )
