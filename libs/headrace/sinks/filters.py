"""Which events a sink receives, and which part of them.

Promises for a `where`: the sink's rows are those that fulfill it. An update that leaves it becomes
a delete, and one that enters it an insert. If the old row is unknown (without REPLICA IDENTITY
FULL), a row that does not fulfill it is deleted, which does nothing to a row that was never there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.consumer.event import Event
from headrace.contract.events import GAP, SCHEMA
from headrace.contract.table_patterns import names_table
from headrace.sinks.conditions import ConditionError, Where
from headrace.sinks.routing import Filter

_ROWS = frozenset({"INSERT", "UPDATE", "DELETE"})
# Concerns every sink: changes of any table may be missing.
_ALWAYS = frozenset({GAP})


def by_table(patterns: tuple[str, ...]) -> Filter:
    """Events of the tables that a pattern matches, and those of no table."""
    known: dict[tuple[str, str], bool] = {}

    def wants(event: Event) -> Iterable[Event]:
        if not event.table:
            return (event,)
        names = (event.schema, event.table)
        wanted = known.get(names)
        if wanted is None:
            wanted = any(names_table(pattern, *names) for pattern in patterns)
            known[names] = wanted
        return (event,) if wanted else ()

    return wants


def by_operation(operations: frozenset[str]) -> Filter:
    """Events with these operations, and gaps."""
    kept = operations | _ALWAYS
    return lambda event: (event,) if event.operation in kept else ()


def of_tables(filters: Mapping[str, Filter]) -> Filter:
    """The filter of the first pattern that matches an event's table; none for other tables."""

    def chosen(event: Event) -> Iterable[Event]:
        if not event.table:
            return (event,)
        for pattern, one in filters.items():
            if names_table(pattern, event.schema, event.table):
                return one(event)
        return (event,)

    return chosen


def by_row(columns: frozenset[str], where: Where) -> Filter:
    """Events of the rows that fulfill `where`, whose columns are named."""

    def kept(event: Event) -> Iterable[Event]:
        if event.operation not in _ROWS:
            return (event,)
        before = _before(event, columns, where)
        if event.operation == "DELETE":
            return () if before is False else (event,)
        after = _after(event, where)
        if event.operation == "INSERT":
            return (event,) if after else ()
        if after:
            return (_as(event, "INSERT") if before is False else event,)
        return () if before is False else (_leaving(event),)

    return kept


def _before(event: Event, columns: frozenset[str], where: Where) -> bool | None:
    """Whether the old row fulfilled the conditions; None if that is unknown."""
    if event.operation == "INSERT":
        return False
    old = event.old
    if old is not None and columns <= old.keys():
        return where(old)
    key = frozenset(event.payload.get("key") or ())
    if columns <= key:
        # Without an old row the key has not changed.
        return where(event.data)
    return None


def _after(event: Event, where: Where) -> bool:
    row = event.data
    if event.unchanged and event.old is not None:
        # A large value that did not change: REPLICA IDENTITY FULL sends it with the old row.
        row = {**event.old, **row}
    found = where(row)
    if found is None:
        raise ConditionError(
            f"an {event.operation} of {event.schema}.{event.table} lacks a column of `where` that "
            "PostgreSQL did not send",
            remedy="ALTER TABLE … REPLICA IDENTITY FULL.",
        )
    return found


def _as(event: Event, operation: str) -> Event:
    payload = {**event.payload, "operation": operation}
    return event._replace(operation=operation, payload=payload)


def _leaving(event: Event) -> Event:
    """The delete of a row that no longer fulfills the conditions, by its old key."""
    key = event.payload.get("key") or ()
    source = {**event.data, **(event.old or {})}
    data = {name: source[name] if name in key else None for name in event.data}
    payload = {**event.payload, "operation": "DELETE", "data": data}
    for part in ("unchanged", "exact"):
        payload.pop(part, None)
    return event._replace(operation="DELETE", payload=payload)


def with_columns(names: tuple[str, ...]) -> Filter:
    """Rows with these columns, and those of the key."""
    chosen = frozenset(names)

    def cut(event: Event) -> Iterable[Event]:
        keep = chosen | frozenset(event.payload.get("key") or ())
        payload = dict(event.payload)
        for part in ("data", "old", "exact", "exact_old"):
            row = payload.get(part)
            if row:
                payload[part] = {name: value for name, value in row.items() if name in keep}
        if unchanged := payload.get("unchanged"):
            payload["unchanged"] = [name for name in unchanged if name in keep]
        if event.operation == SCHEMA:
            payload["columns"] = [one for one in payload["columns"] if one["name"] in keep]
        return (event._replace(payload=payload),)

    return cut


def by_function(function: Callable[[Event], Any]) -> Filter:
    """A program's own function: it returns an event, several, or None to leave it out."""

    def called(event: Event) -> Iterable[Event]:
        found = function(event)
        if found is None:
            return ()
        # An event is a tuple itself.
        return (found,) if isinstance(found, Event) else tuple(found)

    return called
