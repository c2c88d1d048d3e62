"""Converts events to rows of the audit table, as lines of COPY's text format. Pure.

Owns the columns, their order and every value but the context, which is known only when a
transaction ends and therefore comes last. Promises one line for each change, the same on every
replay except for `queued_at`.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from headrace.audit.table_book import UNKNOWN, Names, TableBook
from headrace.audit.values import EMPTY, escaped, escaped_row, not_in_jsonb
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
    "exact",
    "source",
    "context",
)
REDACTED = "[redacted]"
# A B-tree's entry has at most 2,704 bytes.
KEY_BYTES_MAX = 1000
KEY_CHARACTERS = 200
_NULL = b"\\N"
_LITERAL = frozenset("{[")
_NOTHING: Mapping[str, Any] = MappingProxyType({})

Texts = Mapping[str, str]
_NO_TEXTS: tuple[Texts, Texts] = ({}, {})


@dataclass(slots=True)
class RowMaker:
    """Writes lines without their context and their end: `line + context + b"\\n"`."""

    database: str
    source: str
    book: TableBook
    insert_as: str = "CREATE"
    redact: Selection = field(default_factory=Selection)
    # Cached by table and operation, and the columns to redact by table: rows come by the million.
    _heads: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    _hidden: dict[Names, frozenset[str]] = field(default_factory=dict)
    _mark: int = 0
    # Of the current transaction.
    _lsn: int = -1
    _id_head: bytes = b""
    _low: int = 0
    _committed: bytes = b""
    _xid: bytes = b""
    _source: bytes = b""
    _plain_end: bytes = b""

    def __post_init__(self) -> None:
        self._mark = _mark(self.source)
        self._source = b"\t" + escaped(self.source.encode()) + b"\t"
        # Most rows have neither unchanged columns nor exact texts.
        self._plain_end = b"\t\\N\t\\N" + self._source

    def line(self, event: Event, queued_at: bytes) -> bytes:
        """A change's fields up to its context."""
        payload = event.payload
        (lsn, seq) = event.position
        operation = event.operation
        if lsn != self._lsn:
            self._begin(lsn, payload["tx"])
        names = (event.schema, event.table)
        # A TRUNCATE has none.
        data = payload.get("data") or _NOTHING
        if operation == "INSERT":
            before = _NOTHING
            after = data
            unchanged = payload.get("unchanged")
        else:
            before, after, unchanged = _sides(
                operation, data, payload.get("old"), payload.get("unchanged")
            )
        noted = self.book.tables.get(names, UNKNOWN)
        if noted.binary:
            before = _hexed(before, noted.binary)
            after = _hexed(after, noted.binary)
        hidden = self._hidden.get(names)
        if hidden is None:
            hidden = self.redact.hidden_columns(*names)
            self._hidden[names] = hidden
        # Before any of it becomes text: keys and exact texts are made of what is left.
        if hidden:
            before = _redacted(before, hidden)
            after = _redacted(after, hidden)
        was, now = _NO_TEXTS
        if "exact" in payload or "exact_old" in payload:
            was, now = _exact_sides(payload, before, after, hidden)
        before_text = escaped_row(before, was) if before else EMPTY
        after_text = escaped_row(after, now) if after else EMPTY
        # jsonb refuses U+0000, which JSON writes as an escape: without any escape there is nothing
        # to look for.
        if b"\\u" in before_text or b"\\u" in after_text:
            was = {**not_in_jsonb(before), **was}
            now = {**not_in_jsonb(after), **now}
        key = payload.get("key")
        # The ordinal lies between the LSN and the source, so that ids sort like positions.
        low = b"%016x" % (self._low | seq << 14)
        return b"%b%b-%b%b%b\t%b\t%b%b%d%b%b%b" % (
            self._id_head,
            low[:4],
            low[4:],
            self._heads.get((event.schema, event.table, operation)) or self._head(event),
            before_text,
            after_text,
            _key_text(after or before, before, noted.key if key is None else key),
            self._committed,
            seq,
            self._xid,
            queued_at,
            self._end(unchanged, was, now) if unchanged or was or now else self._plain_end,
        )

    def _end(self, unchanged: list[str] | None, was: Texts, now: Texts) -> bytes:
        sides = {name: texts for name, texts in (("before", was), ("after", now)) if texts}
        exact = escaped(orjson.dumps(sides)) if sides else _NULL
        return b"\t%b\t%b%b" % (_array(unchanged) if unchanged else _NULL, exact, self._source)

    def _begin(self, lsn: int, tx: Mapping[str, Any]) -> None:
        """The common fields of all changes of a transaction.

        The id is a UUID (version 8) of the position: the same on every replay, and in the order of
        the trail.
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
            if event.operation == "INSERT":
                operation = self.insert_as
            else:
                operation = event.operation
            fields = (self.database, event.schema, event.table, operation)
            head = b"\t" + b"\t".join(escaped(one.encode()) for one in fields) + b"\t"
            self._heads[names] = head
        return head


def _mark(source: str) -> int:
    """Part of the id: 26 bits that distinguish this source's changes from another's at the same
    position.
    """
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:4], "big") & 0x3FFFFFF


def change_id(source: str, lsn: int, seq: int) -> uuid.UUID:
    """The id of the change at this position, as `RowMaker` writes it."""
    mark = _mark(source)
    low = 1 << 63 | (lsn & 0xFFFF) << 46 | seq << 14 | mark & 0x3FFF
    return uuid.UUID(int=(lsn >> 16) << 80 | (0x8000 | mark >> 14) << 64 | low)


def _exact_sides(
    payload: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    hidden: frozenset[str],
) -> tuple[Texts, Texts]:
    """PostgreSQL's text of documents whose JSON form loses information, before and after."""
    was = {
        name: text for name, text in (payload.get("exact_old") or {}).items() if name not in hidden
    }
    now = {name: text for name, text in (payload.get("exact") or {}).items() if name not in hidden}
    # A value that was not sent again equals the old row's.
    kept = {name: was[name] for name in payload.get("unchanged") or () if name in was}
    return {name: was[name] for name in was if name in before}, {
        name: text for name, text in {**now, **kept}.items() if name in after
    }


def _hexed(values: Mapping[str, Any], binary: Sequence[str]) -> Mapping[str, Any]:
    """bytea as PostgreSQL writes it, from base64 in JSON events or from bytes in MessagePack."""
    return {name: _hex(value) if name in binary else value for name, value in values.items()}


def _hex(value: Any) -> Any:
    if isinstance(value, list):
        return [_hex(one) for one in value]
    # An array literal starts with a character that base64 lacks.
    if isinstance(value, str) and value[:1] not in _LITERAL:
        return "\\x" + base64.b64decode(value).hex()
    return value


def _sides(
    operation: str,
    data: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    unchanged: list[str] | None,
) -> tuple[Mapping[str, Any], Mapping[str, Any], list[str] | None]:
    """The row before, the row after, and the columns of the latter that are unknown."""
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
    return {
        name: REDACTED if name in hidden and value is not None else value
        for name, value in values.items()
    }


def _key_text(values: Mapping[str, Any], before: Mapping[str, Any], key: Sequence[str]) -> bytes:
    """The key's value; for several columns, their JSON array."""
    if not key or not values:
        return _NULL
    # By far the most frequent key. `type` and not `isinstance`, which would accept a boolean.
    if len(key) == 1 and type(only := values.get(key[0])) is int:
        return b"%d" % only
    found = {name: values[name] if name in values else before.get(name) for name in key}
    text = key_text(found, key)
    if text is None:
        return _NULL
    return escaped(text.encode(errors="replace"))


def key_text(values: Mapping[str, Any], key: Sequence[str]) -> str | None:
    """The `primary_key` of a row; None if PostgreSQL sent another identity than the key."""
    found = [values.get(name) for name in key]
    if not key or None in found:
        return None
    if len(found) == 1:
        text = _one(found[0])
    else:
        text = orjson.dumps([_one(one) for one in found]).decode()
    raw = text.encode(errors="replace")
    # The digest keeps different long keys different.
    if len(raw) > KEY_BYTES_MAX:
        return f"{text[:KEY_CHARACTERS]}…#{hashlib.sha256(raw).hexdigest()}"
    return text


def _one(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, int | float):
        return str(value)
    return orjson.dumps(value).decode()


def _array(names: list[str]) -> bytes:
    quoted = ('"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in names)
    return escaped(("{" + ",".join(quoted) + "}").encode())
