"""From events to rows of the audit table, as lines of COPY's text format. Pure.

Owns the columns, their order and every value but the context, which is known only when a transaction ends and so
comes last. Promises one line for each change, the same on every replay but for `queued_at`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from headrace.audit.values import EMPTY, escaped, row_json
from headrace.consumer.event import Event
from headrace.contract.selection import Selection

COLUMNS = (
    "id",
    "database",
    "schema",
    "table",
    "operation",
    "before",
    "after",
    "primary_key",
    "committed_at",
    "position",
    "ordinal",
    "transaction_id",
    "queued_at",
    "unchanged",
    "context",
)
REDACTED = "[redacted]"
# A B-tree's entry has at most 2,704 bytes.
KEY_BYTES_MAX, _KEY_CHARACTERS = 1000, 200
_NULL = b"\\N"

Names = tuple[str, str]


@dataclass(slots=True)
class KeyBook:
    """Which columns are a table's key: its primary key, or else its replica identity."""

    keys: dict[Names, tuple[str, ...]] = field(default_factory=dict)

    def learn(self, payload: Mapping[str, Any]) -> Names:
        """Take it from a schema event."""
        names = (str(payload["schema"]), str(payload["table"]))
        key = tuple(payload.get("primary_key") or ())
        if not key and payload.get("replica_identity") == "i":
            key = tuple(payload.get("identity") or ())
        self.keys[names] = key
        return names

    def missing(self, events: Iterable[Event]) -> set[Names]:
        """Tables of these events that nothing is known of yet."""
        keys = self.keys
        found = {(one.schema, one.table) for one in events if one.table and (one.schema, one.table) not in keys}
        for one in events:
            if one.operation == "SCHEMA":
                found.discard((one.schema, one.table))
        return found


@dataclass(slots=True)
class RowMaker:
    """Writes lines without their context and their end: `line + context + b"\\n"`."""

    database: str
    source: str
    book: KeyBook
    insert_as: str = "CREATE"
    redact: Selection = field(default_factory=Selection)
    _heads: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    _hidden: dict[Names, frozenset[str]] = field(default_factory=dict)
    _mark: int = 0

    def __post_init__(self) -> None:
        # Of the id: 26 bits that tell this source's changes from another's at the same place.
        self._mark = int.from_bytes(hashlib.sha256(self.source.encode()).digest()[:4], "big") & 0x3FFFFFF

    def line(self, event: Event, queued_at: bytes) -> bytes:
        """A change's fields up to its context."""
        names = (event.schema, event.table)
        data, old = dict(event.data), event.old
        key = self.book.keys.get(names, ())
        before, after, unchanged = _sides(event.operation, data, old, event.unchanged)
        hidden = self._hidden_of(names)
        if hidden:
            before, after = _redacted(before, hidden), _redacted(after, hidden)
        values = before if event.operation == "DELETE" else after
        tx = event.payload["tx"]
        return b"\t".join(
            (
                self._id(event.position.lsn, event.position.seq),
                self._head(event),
                escaped(row_json(before)) if before else EMPTY,
                escaped(row_json(after)) if after else EMPTY,
                _key_text(values, before, key),
                f"{tx['ts']}\t{event.position.lsn}\t{event.position.seq}\t{tx['xid']}".encode(),
                queued_at,
                _array(unchanged) if unchanged else _NULL,
                b"",
            )
        )

    def _head(self, event: Event) -> bytes:
        names = (event.schema, event.table, event.operation)
        head = self._heads.get(names)
        if head is None:
            operation = self.insert_as if event.operation == "INSERT" else event.operation
            fields = (self.database, event.schema, event.table, operation)
            head = self._heads[names] = b"\t".join(escaped(one.encode()) for one in fields)
        return head

    def _hidden_of(self, names: Names) -> frozenset[str]:
        hidden = self._hidden.get(names)
        if hidden is None:
            hidden = self._hidden[names] = self.redact.hidden_columns(*names)
        return hidden

    def _id(self, lsn: int, seq: int) -> bytes:
        """A UUID (version 8) of the place: the same on every replay, and in the order of the trail."""
        high = lsn >> 16
        low = ((lsn & 0xFFFF) << 46) | ((seq & 0xFFFFFFFF) << 14) | (self._mark & 0x3FFF)
        text = f"{high:012x}8{self._mark >> 14:03x}{low | 1 << 63:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()


def _sides(
    operation: str, data: dict[str, Any], old: Mapping[str, Any] | None, unchanged: list[str]
) -> tuple[Mapping[str, Any], Mapping[str, Any], list[str]]:
    """What was before, what is after, and which columns of the latter nobody knows."""
    if operation == "INSERT":
        return {}, data, unchanged
    if operation == "UPDATE":
        before = old or {}
        for name in [name for name in unchanged if name in before]:
            data[name] = before[name]
        return before, data, [name for name in unchanged if name not in before]
    if operation == "DELETE":
        return old or {name: value for name, value in data.items() if value is not None}, {}, []
    return {}, {}, []


def _redacted(values: Mapping[str, Any], hidden: frozenset[str]) -> Mapping[str, Any]:
    if hidden.isdisjoint(values):
        return values
    return {name: REDACTED if name in hidden and value is not None else value for name, value in values.items()}


def _key_text(values: Mapping[str, Any], before: Mapping[str, Any], key: tuple[str, ...]) -> bytes:
    """The key's value; of several columns, their JSON array."""
    if not key or not values:
        return _NULL
    found = [values[name] if name in values else before.get(name) for name in key]
    text = _one(found[0]) if len(found) == 1 else orjson.dumps([_one(one) for one in found]).decode()
    raw = text.encode(errors="replace")
    if len(raw) > KEY_BYTES_MAX:
        raw = f"{text[:_KEY_CHARACTERS]}…#{hashlib.sha256(raw).hexdigest()}".encode(errors="replace")
    return escaped(raw)


def _one(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value) if isinstance(value, int | float) else orjson.dumps(value).decode()


def _array(names: list[str]) -> bytes:
    quoted = ('"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in names)
    return escaped(("{" + ",".join(quoted) + "}").encode())
