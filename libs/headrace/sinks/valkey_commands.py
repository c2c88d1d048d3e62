"""Records as commands of a Valkey sink's script.

The state of `public.users` with the prefix `shop`: `{shop}:public.users` is a set of keys, and
`{shop}:public.users:7` a hash with the columns of the row whose key is 7. A NULL has no field.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from headrace.contract import exact
from headrace.contract.json_bytes import compact_json
from headrace.sinks.port import COPIES_FOLLOW, RefusedError, SinkError
from headrace.sinks.routing import Record

Command = list[Any]
# The end of the ID of a delete that precedes a change of the row's key.
KEY_CHANGE = "-old"
_RESET = "Run `headrace sinks reset {} --to snapshot`, which copies the tables again."
# Changes of a table's shape that leave its rows as they are.
_HARMLESS = frozenset(
    {
        "column_constraints_changed",
        "column_retyped",
        "publication_changed",
        "replica_identity_changed",
        "table_first_seen",
        "table_removed",
    }
)


class StreamEntries:
    """Each record as an entry of its destination's stream."""

    def __init__(self, prefix: str, length_max: int) -> None:
        self._prefix = prefix
        self._limit: list[str] = []
        if length_max:
            # About: an exact limit would cost the server much more.
            self._limit = ["MAXLEN", "~", str(length_max)]

    def commands(self, records: Iterable[Record]) -> Iterator[Command]:
        """The commands of one transaction."""
        for record in records:
            fields: Command = ["value", record.value, "key", record.key or b""]
            for name, value in record.headers.items():
                fields += (name, value)
            yield ["XADD", f"{self._prefix}:{record.destination}", *self._limit, "*", *fields]


class RowHashes:
    """Each row as a hash."""

    def __init__(self, prefix: str, sink: str) -> None:
        self._prefix = prefix
        self._reset = _RESET.format(sink)

    def commands(self, records: Iterable[Record]) -> Iterator[Command]:
        """The commands of one transaction."""
        # The delete of an old key waits for its update, which may need the row's other columns.
        leaving: Record | None = None
        for record in records:
            if leaving is not None:
                yield from self._leave(leaving, record)
                leaving = None
            if record.event.operation == "DELETE" and record.id.endswith(KEY_CHANGE):
                leaving = record
            else:
                yield from self._apply(record)
        if leaving is not None:
            yield from self._apply(leaving)

    def _leave(self, leaving: Record, record: Record) -> Iterator[Command]:
        if record.id != leaving.id.removesuffix(KEY_CHANGE):
            # Its update is parked.
            yield from self._apply(leaving)
            return
        before, after = self._index(leaving), self._index(record)
        key = self._key(leaving)
        yield ["MOVE", f"{before}:{key}", f"{after}:{self._key(record)}"]
        yield ["SREM", before, key]

    def _index(self, record: Record) -> str:
        return f"{self._prefix}:{record.destination}"

    def _apply(self, record: Record) -> Iterator[Command]:
        index = self._index(record)
        match record.event.operation:
            case "INSERT" | "UPDATE":
                yield from self._put(index, record)
            case "DELETE":
                key = self._key(record)
                yield ["UNLINK", f"{index}:{key}"]
                yield ["SREM", index, key]
            case "TRUNCATE":
                yield ["CLEAR", index]
            case "SCHEMA":
                yield self._schema(index, record)
            case "GAP":
                if record.event.payload.get("reason") != COPIES_FOLLOW:
                    raise SinkError(
                        "Changes were lost before they reached the sink", remedy=self._reset
                    )

    def _put(self, index: str, record: Record) -> Iterator[Command]:
        key = self._key(record)
        row = f"{index}:{key}"
        event = record.event
        values = exact.row(event.payload)
        fields: Command = []
        nulls: Command = []
        for name, value in values.items():
            if value is None:
                nulls.append(name)
            else:
                fields += (name, text(value))
        if event.operation == "INSERT":
            # Nothing of a former row with this key may remain.
            yield ["UNLINK", row]
        elif nulls:
            yield ["HDEL", row, *nulls]
        yield ["HSET", row, *fields]
        yield ["SADD", index, key]

    def _key(self, record: Record) -> str:
        if record.key is None:
            raise RefusedError(
                record, "its table has no key; add one, set `key`, or use the form streams"
            )
        parts = orjson.loads(record.key)
        if len(parts) == 1:
            return _plain(text(parts[0]))
        return record.key.decode()

    def _schema(self, index: str, record: Record) -> Command:
        payload = record.event.payload
        if payload.get("resync"):
            raise SinkError(
                f"{record.destination} has changed in a way that its events do not describe",
                remedy=self._reset,
            )
        changes = [self._change(index, one) for one in payload.get("changes", ())]
        applied = [change for change in changes if change]
        return ["SCHEMA", record.destination, str(payload.get("version", 0)), applied]

    def _change(self, index: str, change: Mapping[str, Any]) -> Command:
        match change["change"]:
            case "column_renamed":
                return ["RENAME", index, change["from"], change["column"]]
            case "column_dropped":
                return ["DROP", index, change["column"]]
            case "column_added":
                if "filled" not in change:
                    return []
                return ["FILL", index, change["column"], change["filled_text"]]
            case "table_dropped":
                return ["CLEAR", index]
            case kind if kind in _HARMLESS:
                return []
            case kind:
                raise SinkError(f"The sink can't apply {kind} of {index}", remedy=self._reset)


def text(value: object) -> str | bytes:
    """A value as a field's text: PostgreSQL's if the event has it, JSON for documents and lists."""
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    return compact_json(value, _in_document)


def _float(value: float) -> str:
    if value != value:  # noqa: PLR0124  # NaN is the only value that differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        # PostgreSQL's names.
        return f"{value}".replace("inf", "Infinity")
    return repr(value)


def _plain(value: str | bytes) -> str:
    if isinstance(value, bytes):
        # From JSON: a number, a list or a document.
        return value.decode()
    return value


def _in_document(value: object) -> object:
    """Bytes inside a list, as in the contract's JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError
