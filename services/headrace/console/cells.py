"""Events and values as the console's answers show them. Pure.

The one place that decides which values are shown, for every answer with values: nothing of a table
that the caller has no right to, and nothing of a redacted column to anyone.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headrace.console.access import Caller
from headrace.consumer.event import Event
from headrace.contract import exact
from headrace.contract.subjects_and_ids import table_token
from headrace.contract.table_patterns import column_named
from headrace.lsn import format_lsn

TEXT_CHARACTERS_MAX = 2_000
# A column in an answer, besides its texts.
_COLUMN_BYTES = 120
_ABSENT = object()
Cell = dict[str, Any]
HIDDEN: Cell = {"kind": "hidden", "text": None}
REDACTED: Cell = {"kind": "redacted", "text": None}


@dataclass(frozen=True, slots=True)
class Redaction:
    """Columns that are shown to nobody: patterns `table.column`."""

    patterns: Sequence[str] = ()

    def columns(self, schema: str, table: str) -> frozenset[str]:
        found = (column_named(pattern, schema, table) for pattern in self.patterns)
        return frozenset(column for column in found if column is not None)


@dataclass(frozen=True, slots=True)
class Eyes:
    """One caller's view of one table."""

    sees: bool
    redacted: Collection[str]
    # A page that shows a hundred rows must not load a hundred long documents.
    # Longer texts are cut; None: nothing is.
    characters_max: int | None = TEXT_CHARACTERS_MAX

    def cell(self, column: str, value: object) -> Cell:
        """A value as it may be shown. Redaction comes first: it holds for everyone."""
        # Before the right, so that an admin's answer and anyone's are alike.
        if column in self.redacted:
            return dict(REDACTED)
        if not self.sees:
            return dict(HIDDEN)
        return shown(value, self.characters_max)

    def key(self, names: Sequence[str], row: Mapping[str, Any]) -> dict[str, str | None] | None:
        """The key's columns as text; None if a part of it may not be shown."""
        cells = {name: self.cell(name, row.get(name)) for name in names}
        if not cells or any(cell["kind"] in {"hidden", "redacted"} for cell in cells.values()):
            return None
        return {name: cell["text"] for name, cell in cells.items()}


def eyes_of(
    caller: Caller,
    redaction: Redaction,
    names: tuple[str, str],
    characters_max: int | None = TEXT_CHARACTERS_MAX,
) -> Eyes:
    """The caller's view of the table with this schema and name."""
    return Eyes(caller.sees(*names), redaction.columns(*names), characters_max)


def shown(value: object, characters_max: int | None = TEXT_CHARACTERS_MAX) -> Cell:
    """A value as text: 64-bit integers and documents lose nothing in a browser."""
    kind, text = _text(value)
    if text is None or characters_max is None or len(text) <= characters_max:
        return {"kind": kind, "text": text}
    return {"kind": kind, "text": text[:characters_max], "size": len(text)}


def _text(value: object) -> tuple[str, str | None]:
    if value is None:
        return "null", None
    # Before int, of which bool is a kind.
    if isinstance(value, bool):
        return "boolean", str(value).lower()
    if isinstance(value, int | Decimal):
        return "number", str(value)
    if isinstance(value, float):
        return "number", _number(value)
    if isinstance(value, bytes):
        return "bytes", base64.b64encode(value).decode()
    if isinstance(value, exact.ExactText):
        return "json", str(value)
    if isinstance(value, str):
        return "text", value
    return "json", json.dumps(value, ensure_ascii=False, default=_bytes)


def _number(value: float) -> str:
    """A double precision as PostgreSQL writes it: a search for its text has to find it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, _ = Decimal(repr(value)).normalize().as_tuple()
    exponent = Decimal(repr(value)).adjusted()
    if -4 <= exponent < 15:
        text = f"{Decimal(repr(value)).normalize():f}"
    else:
        written = "".join(map(str, digits))
        fraction = f".{written[1:]}" if written[1:] else ""
        text = f"{'-' * sign}{written[0]}{fraction}e{exponent:+03d}"
    # Decimal has no way to keep the sign of zero through `normalize`.
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    return text


def _bytes(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def event_document(
    event: Event,
    caller: Caller,
    redaction: Redaction,
    characters_max: int | None = TEXT_CHARACTERS_MAX,
) -> dict[str, Any]:
    """An event with what this caller may see of it."""
    eyes = eyes_of(caller, redaction, (event.schema, event.table), characters_max)
    payload = event.payload
    # Gaps and messages have no table, and a table never has an empty name.
    tx = payload.get("tx") or {}
    has_table = bool(event.table)
    return {
        "position": str(event.position),
        "lsn": format_lsn(int(payload.get("lsn") or 0)),
        "xid": _xid(tx),
        "last": bool(tx.get("last")),
        "at": tx.get("ts"),
        "operation": event.operation,
        "schema": event.schema if has_table else None,
        "table": event.table if has_table else None,
        "token": table_token(event.schema, event.table) if has_table else None,
        "msg_id": str(payload.get("msg_id", "")),
        "sequence": str(event.stream_seq),
        "source": event.source,
        "key": _key(event, eyes),
        "columns": _columns(event, eyes, caller),
        "note": _note(payload),
    }


def weight(document: Mapping[str, Any]) -> int:
    """About how many bytes an event takes in an answer: a table may have 1,600 columns."""
    texts = 0
    for column in document["columns"]:
        texts += len(column["name"]) + _COLUMN_BYTES
        for side in (column["before"], column["after"]):
            texts += len((side or HIDDEN)["text"] or "")
    return texts


def _xid(tx: Mapping[str, Any]) -> str | None:
    # 0 stands for a reading of the catalog, or a message outside a transaction.
    if tx.get("xid"):
        return str(tx["xid"])
    return None


def _key(event: Event, eyes: Eyes) -> dict[str, str | None] | None:
    names = event.payload.get("key") or ()
    # The data of a DELETE has the key columns of the replica identity only.
    if event.operation == "DELETE":
        return eyes.key(names, event.old or event.data)
    return eyes.key(names, event.data)


def _columns(event: Event, eyes: Eyes, caller: Caller) -> list[dict[str, Any]]:
    if event.operation == "MESSAGE":
        # It belongs to no table: only the right to all of them covers it.
        whole = Eyes(caller.sees_everything, (), eyes.characters_max)
        content = whole.cell("content", event.payload.get("content"))
        return [_column("content", key=False, changed=True, sides=(None, content))]
    if event.operation not in {"INSERT", "UPDATE", "DELETE"}:
        return []
    before = exact.old_row(event.payload) or {}
    after: Mapping[str, Any] = {}
    if event.operation != "DELETE":
        after = exact.row(event.payload)
    keys = set(event.payload.get("key") or ())
    # In the order of the row; columns that only the old row has come last.
    names = dict.fromkeys([*after, *event.unchanged, *before])
    return [
        changed_column(
            eyes,
            name,
            before.get(name, _ABSENT),
            _after(event, after, name),
            key=name in keys,
            operation=event.operation,
        )
        for name in names
    ]


def changed_row(
    eyes: Eyes,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    unchanged: Collection[str],
    operation: str,
) -> list[dict[str, Any]]:
    """The columns of a change in the audit trail, which has both rows."""
    return [
        changed_column(
            eyes,
            name,
            before.get(name, _ABSENT),
            _UNCHANGED if name in unchanged else after.get(name, _ABSENT),
            key=False,
            operation=operation,
        )
        for name in dict.fromkeys([*after, *unchanged, *before])
    ]


def _after(event: Event, after: Mapping[str, Any], name: str) -> object:
    if name in event.unchanged:
        return _UNCHANGED
    return after.get(name, _ABSENT)


_UNCHANGED = object()


def changed_column(  # what a line of a comparison consists of
    eyes: Eyes, name: str, before: object, after: object, *, key: bool, operation: str
) -> dict[str, Any]:
    """A column of a change, with both sides as far as they are known and may be shown."""
    sides = (_side(eyes, name, before), _side(eyes, name, after))
    changed: bool | None = before != after
    if after is _UNCHANGED:
        changed = False
    elif operation == "UPDATE" and before is _ABSENT:
        # PostgreSQL sends the old row only under REPLICA IDENTITY FULL.
        changed = None
    # Whether a value changed is a fact about the value.
    if changed is not None and any(one and one["kind"] == "redacted" for one in sides):
        changed = None
    return _column(name, key=key, changed=changed, sides=sides)


def _side(eyes: Eyes, name: str, value: object) -> Cell | None:
    if value is _ABSENT:
        return None
    if value is _UNCHANGED:
        return {"kind": "unchanged", "text": None}
    return eyes.cell(name, value)


def _column(
    name: str, *, key: bool, changed: bool | None, sides: tuple[Cell | None, Cell | None]
) -> dict[str, Any]:
    return {"name": name, "key": key, "changed": changed, "before": sides[0], "after": sides[1]}


def _note(payload: Mapping[str, Any]) -> str | None:
    operation = payload.get("operation")
    if operation == "SCHEMA":
        return "; ".join(change_sentences(payload)) or "The structure is as before."
    if operation == "GAP":
        after, up_to = payload.get("after"), payload.get("up_to")
        return f"Changes from {after} to {up_to} may be missing ({payload.get('reason')})."
    if operation == "MESSAGE":
        return f"Message with the prefix {payload.get('prefix')}."
    if operation == "TRUNCATE":
        return "All rows were removed."
    if "reference" in payload:
        return "The event is larger than a message; open it to see all of it."
    return None


def change_sentences(payload: Mapping[str, Any]) -> list[str]:
    """What a schema event changed. A filled value is a value of rows, and is left out."""
    found = []
    for change in payload.get("changes") or ():
        text = str(change.get("change", "")).replace("_", " ")
        if "column" in change:
            text += f": {change['column']}"
        if change.get("data_type"):
            text += f" ({change['data_type']})"
        if "from" in change:
            text += f", from {change['from']}"
        if "to" in change:
            text += f" to {change['to']}"
        found.append(text)
    return found
