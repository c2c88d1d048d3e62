"""The changes of one index that are not written yet: the last state of each row.

Promises: of each row there is one action, with the version of its last change, and it follows from
the events only, so a replay writes the same. A value that the events lack is taken from the
document that had it, or the document names its column as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.exact import old_row
from headrace.sinks.formats.json_values import dumps
from headrace.sinks.opensearch_mapping import fields_of
from headrace.sinks.opensearch_names import (
    EXACT,
    UNKNOWN,
    document_id,
    field_name,
    version_of,
)
from headrace.sinks.routing import Record

# The end of the ID of a delete that precedes a change of the row's key.
KEY_CHANGE = "-old"


@dataclass(slots=True)
class RowAction:
    """What becomes of one document."""

    record: Record
    version: int
    # None deletes it.
    fields: dict[str, Any] | None = None
    # PostgreSQL's text, by field, of values that JSON can't hold completely.
    exact: dict[str, str] = field(default_factory=dict)
    # Fields whose value is in the document `origin`, as it is before this action.
    missing: set[str] = field(default_factory=set)
    origin: str = ""
    unknown: set[str] = field(default_factory=set)

    def keep(self, names: Iterable[str], before: RowAction | None, origin: str) -> None:
        """Let fields have the value that they had."""
        assert self.fields is not None, "a delete keeps nothing"
        for name in names:
            if before is None:
                self.missing.add(name)
                self.origin = origin
            elif before.fields is not None and name in before.fields:
                self.fields[name] = before.fields[name]
                if name in before.exact:
                    self.exact[name] = before.exact[name]
            # Nobody has read it yet: it is still where the earlier change would have found it.
            elif name in before.missing:
                self.missing.add(name)
                self.origin = before.origin
            else:
                self.unknown.add(name)

    def fill(self, document: Mapping[str, Any] | None) -> None:
        """Take the missing fields from the document that has them, if there is one."""
        assert self.fields is not None, "a delete misses nothing"
        source = (document or {}).get("_source") or {}
        for name in self.missing:
            if name not in source:
                self.unknown.add(name)
                continue
            self.fields[name] = source[name]
            if text := (source.get(EXACT) or {}).get(name):
                self.exact[name] = text
        self.missing.clear()

    def body(self) -> bytes:
        """The document."""
        assert self.fields is not None, "a delete has no document"
        own: dict[str, Any] = {}
        if self.exact:
            own[EXACT] = self.exact
        if self.unknown:
            own[UNKNOWN] = sorted(self.unknown)
        return dumps(self.fields | own)


@dataclass(slots=True)
class Pending:
    """The actions of one index, by document."""

    actions: dict[str, RowAction] = field(default_factory=dict)
    # A delete whose update may follow, the document, and its former action.
    _leaving: tuple[Record, str, RowAction | None] | None = None

    def take(self, record: Record) -> None:
        """Add a change of a row."""
        event = record.event
        version = version_of(event.position, copied=bool(event.payload.get("snapshot")))
        document = document_id(record)
        origin, before = document, self.actions.get(document)
        if self._leaving is not None:
            left, left_document, left_before = self._leaving
            self._leaving = None
            if record.id == left.id.removesuffix(KEY_CHANGE):
                origin, before = left_document, left_before
        if event.operation == "DELETE":
            if record.id.endswith(KEY_CHANGE):
                self._leaving = record, document, before
            self.actions[document] = RowAction(record, version)
            return
        self.actions[document] = self._state(record, version, origin, before)

    def _state(
        self, record: Record, version: int, origin: str, before: RowAction | None
    ) -> RowAction:
        payload = record.event.payload
        fields = fields_of(payload.get("data") or {})
        exact = {field_name(name): text for name, text in (payload.get("exact") or {}).items()}
        action = RowAction(record, version, fields, exact)
        unchanged = {name: field_name(name) for name in payload.get("unchanged") or ()}
        # REPLICA IDENTITY FULL sends them with the old row.
        old = old_row(payload) or {}
        sent = {name: old[name] for name in unchanged if name in old}
        fields |= fields_of({name: (payload.get("old") or {})[name] for name in sent})
        texts = payload.get("exact_old") or {}
        exact |= {field_name(name): texts[name] for name in sent if name in texts}
        rest = [one for name, one in unchanged.items() if name not in sent]
        if record.event.operation == "INSERT":
            # The row has entered the sink's conditions, and no document of it has a value.
            action.unknown |= set(rest)
        else:
            action.keep(rest, before, origin)
        return action

    def clear(self) -> dict[str, RowAction]:
        """Hand over the actions."""
        found, self.actions, self._leaving = self.actions, {}, None
        return found
