"""From events to rows of the audit table, as lines of COPY's text format. Pure.

Owns the columns, their order and every value but the context, which is known only when a transaction ends and so
comes last. Promises one line for each change, the same on every replay but for `queued_at`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from headrace.audit.values import EMPTY, escaped, escaped_row
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
_NOTHING: Mapping[str, Any] = MappingProxyType({})

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
    # Of the transaction at hand.
    _lsn: int = -1
    _id_head: bytes = b""
    _low: int = 0
    _committed: bytes = b""
    _xid: bytes = b""

    def __post_init__(self) -> None:
        # Of the id: 26 bits that tell this source's changes from another's at the same place.
        self._mark = int.from_bytes(hashlib.sha256(self.source.encode()).digest()[:4], "big") & 0x3FFFFFF

    def line(self, event: Event, queued_at: bytes) -> bytes:
        """A change's fields up to its context."""
        payload, (lsn, seq), operation = event.payload, event.position, event.operation
        if lsn != self._lsn:
            self._begin(lsn, payload["tx"])
        names = (event.schema, event.table)
        data = payload.get("data") or _NOTHING
        if operation == "INSERT":
            before, after, unchanged = _NOTHING, data, payload.get("unchanged")
        else:
            before, after, unchanged = _sides(operation, data, payload.get("old"), payload.get("unchanged"))
        hidden = self._hidden.get(names)
        if hidden is None:
            hidden = self._hidden[names] = self.redact.hidden_columns(*names)
        if hidden:
            before, after = _redacted(before, hidden), _redacted(after, hidden)
        low = b"%016x" % (self._low | seq << 14)
        return b"%b%b-%b%b%b\t%b\t%b%b%d%b%b%b" % (
            self._id_head,
            low[:4],
            low[4:],
            self._heads.get((event.schema, event.table, operation)) or self._head(event),
            escaped_row(before) if before else EMPTY,
            escaped_row(after) if after else EMPTY,
            _key_text(after or before, before, self.book.keys.get(names, ())),
            self._committed,
            seq,
            self._xid,
            queued_at,
            b"\t" + _array(unchanged) + b"\t" if unchanged else b"\t\\N\t",
        )

    def _begin(self, lsn: int, tx: Mapping[str, Any]) -> None:
        """What all changes of a transaction have in common.

        The id is a UUID (version 8) of the place: the same on every replay, and in the order of the trail.
        """
        self._lsn = lsn
        high = f"{lsn >> 16:012x}"
        self._id_head = f"{high[:8]}-{high[8:]}-8{self._mark >> 14:03x}-".encode()
        self._low = 1 << 63 | (lsn & 0xFFFF) << 46 | self._mark & 0x3FFF
        self._committed = f"\t{tx['ts']}\t{lsn}\t".encode()
        self._xid = f"\t{tx['xid']}\t".encode()

    def _head(self, event: Event) -> bytes:
        names = (event.schema, event.table, event.operation)
        head = self._heads.get(names)
        if head is None:
            operation = self.insert_as if event.operation == "INSERT" else event.operation
            fields = (self.database, event.schema, event.table, operation)
            head = self._heads[names] = b"\t" + b"\t".join(escaped(one.encode()) for one in fields) + b"\t"
        return head


def _sides(
    operation: str, data: Mapping[str, Any], old: Mapping[str, Any] | None, unchanged: list[str] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any], list[str] | None]:
    """What was before, what is after, and which columns of the latter nobody knows."""
    if operation == "UPDATE":
        before = old or {}
        if not unchanged:
            return before, data, None
        filled = {name: before[name] for name in unchanged if name in before}
        return before, {**data, **filled}, [name for name in unchanged if name not in before]
    if operation == "DELETE":
        return old or {name: value for name, value in data.items() if value is not None}, {}, None
    return {}, {}, None


def _redacted(values: Mapping[str, Any], hidden: frozenset[str]) -> Mapping[str, Any]:
    if hidden.isdisjoint(values):
        return values
    return {name: REDACTED if name in hidden and value is not None else value for name, value in values.items()}


def _key_text(values: Mapping[str, Any], before: Mapping[str, Any], key: tuple[str, ...]) -> bytes:
    """The key's value; of several columns, their JSON array."""
    if not key or not values:
        return _NULL
    if len(key) == 1 and type(only := values.get(key[0])) is int:
        return b"%d" % only
    found = {name: values[name] if name in values else before.get(name) for name in key}
    text = key_text(found, key)
    return _NULL if text is None else escaped(text.encode(errors="replace"))


def key_text(values: Mapping[str, Any], key: Sequence[str]) -> str | None:
    """What `primary_key` says of a row; None where PostgreSQL sent another identity than the key."""
    found = [values.get(name) for name in key]
    if not key or None in found:
        return None
    text = _one(found[0]) if len(found) == 1 else orjson.dumps([_one(one) for one in found]).decode()
    raw = text.encode(errors="replace")
    if len(raw) > KEY_BYTES_MAX:
        return f"{text[:_KEY_CHARACTERS]}…#{hashlib.sha256(raw).hexdigest()}"
    return text


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
