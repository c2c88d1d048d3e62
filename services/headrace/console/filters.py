"""The filter of events: typed fields, never code. Pure.

Fields about values look at what the caller may see: a value that is hidden or redacted is never
found, so that a search can't ask for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.console.access import Caller
from headrace.console.cells import Redaction, event_document
from headrace.console.problem import invalid
from headrace.consumer.event import Event
from headrace.contract.subjects_and_ids import table_token

OPERATIONS = frozenset({"INSERT", "UPDATE", "DELETE", "TRUNCATE", "SCHEMA", "MESSAGE", "GAP"})
TABLES_MAX = 100


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The conditions on an event; an empty field accepts any."""

    tables: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()
    key: Mapping[str, str] | str | None = None
    where: tuple[str, str] | None = None
    text: str = ""
    xid: str = ""
    msg_id: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> EventFilter:
        """The filter of a request."""
        operations = frozenset(part.upper() for part in _parts(query.get("op", "")))
        if operations - OPERATIONS:
            raise invalid(
                f"op: {', '.join(sorted(operations - OPERATIONS))} is no operation",
                f"Use {', '.join(sorted(OPERATIONS))}.",
            )
        tables = frozenset(_parts(query.get("table", "")))
        if len(tables) > TABLES_MAX:
            raise invalid(f"table: more than {TABLES_MAX} tables")
        xid = query.get("xid", "")
        if xid and not xid.isdigit():
            raise invalid("xid is a number")
        return cls(
            tables,
            operations,
            _key(query.get("key", "")),
            _where(query.get("where", "")),
            query.get("text", "").casefold(),
            xid,
            query.get("msg_id", ""),
        )

    @property
    def needs_values(self) -> bool:
        """Whether an event has to be rendered to be judged."""
        return bool(self.key or self.where or self.text)

    @property
    def compares_values(self) -> bool:
        """Whether it compares more than the key, which is in every message."""
        return bool(self.where or self.text)

    def accepts(self, event: Event) -> bool:
        """The conditions that need no values."""
        # The cheap conditions first: most events fail one of them.
        if self.operations and event.operation not in self.operations:
            return False
        if self.tables and table_token(event.schema, event.table) not in self.tables:
            return False
        payload = event.payload
        if self.xid and str((payload.get("tx") or {}).get("xid")) != self.xid:
            return False
        return not self.msg_id or payload.get("msg_id") == self.msg_id

    def fits(self, event: Event, caller: Caller, redaction: Redaction) -> bool:
        """The other conditions, on the event as the caller may see it, with whole values: a page
        shows the beginning of a long one.
        """
        return self.accepts_values(event_document(event, caller, redaction, None))

    def accepts_values(self, document: Mapping[str, Any]) -> bool:
        """The conditions on values."""
        if self.key is not None and not self._has_key(document["key"]):
            return False
        if self.where is not None and not self._has_value(document["columns"], *self.where):
            return False
        return not self.text or any(
            self.text in text.casefold()
            for column in document["columns"]
            for text in _texts(column)
        )

    # As text: JSON numbers would lose digits of large keys.
    def _has_key(self, key: Mapping[str, str | None] | None) -> bool:
        if not key:
            return False
        if isinstance(self.key, str):
            return list(key.values()) == [self.key]
        assert self.key is not None, "the caller has checked"
        return all(key.get(name) == text for name, text in self.key.items())

    @staticmethod
    def _has_value(columns: list[Mapping[str, Any]], name: str, text: str) -> bool:
        return any(column["name"] == name and text in _texts(column) for column in columns)


def _texts(column: Mapping[str, Any]) -> list[str]:
    """The texts of both sides that may be shown."""
    sides = (column["before"], column["after"])
    return [side["text"] for side in sides if side is not None and side["text"] is not None]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _key(text: str) -> Mapping[str, str] | str | None:
    if not text:
        return None
    # The value of a key with one column, which needs no quotes in an address.
    if not text.startswith("{"):
        return text
    try:
        key = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"key is not JSON: {error}", 'Write 7, or {"a": "1", "b": "2"}.') from error
    return {str(name): str(value) for name, value in key.items()}


def _where(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise invalid("where is not column=value", "Write status=open.")
    return name.strip(), value
