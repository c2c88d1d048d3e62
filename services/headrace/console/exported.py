"""Lists as files: CSV for spreadsheets, NDJSON for programs. Pure.

Promises: a text that a spreadsheet would run as a formula is a text there; what a caller may not
see is marked as hidden, and never left empty as if there was nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from headrace.console.cells import Cell

_MARKS = {"hidden": "[hidden]", "redacted": "[redacted]", "unchanged": "[unchanged]"}
# Spreadsheets take a cell that begins so for a formula, some also with the wide forms of the signs.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
FORMATS = {"csv": "text/csv; charset=utf-8", "ndjson": "application/x-ndjson"}


def plain(cell: Cell | None) -> str | None:
    """A cell's text; a mark for what is not shown."""
    if cell is None:
        return None
    return _MARKS.get(cell["kind"], cell["text"])


def event_line(document: Mapping[str, Any]) -> dict[str, Any]:
    """An event, or a change of the trail, as a line of a file."""
    columns = document["columns"]
    return {
        "position": document["position"],
        "at": document.get("at"),
        "operation": document["operation"],
        "schema": document["schema"],
        "table": document["table"],
        "xid": document.get("xid"),
        "key": document["key"],
        "before": {one["name"]: plain(one["before"]) for one in columns if one["before"]} or None,
        "after": {one["name"]: plain(one["after"]) for one in columns if one["after"]} or None,
    }


EVENT_COLUMNS = tuple(
    event_line(dict.fromkeys(("position", "operation", "schema", "table", "key")) | {"columns": ()})
)


def file_of(kind: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes | bytearray:
    """The file of these rows. `names` may repeat: the columns of a statement do."""
    if kind == "csv":
        return _csv(names, rows)
    return _ndjson(names, rows)


def _csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([_safe(name) for name in names])
    writer.writerows([_safe(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _safe(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return orjson.dumps(value).decode()
    text = str(value)
    if not text.lstrip(" ").startswith(_FORMULA) or _is_number(text):
        return text
    # Spreadsheets show what follows the apostrophe as it is.
    return f"'{text}"


def _is_number(text: str) -> bool:
    """Whether it is a number that a spreadsheet computes nothing with."""
    rest = text.removeprefix("-")
    return rest.isascii() and rest.replace(".", "", 1).isdigit()


def _ndjson(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytearray:
    unique: list[str] = []
    for place, name in enumerate(names):
        # A key that repeats would be lost.
        unique.append(f"{name}_{place + 1}" if name in unique else name)
    text = bytearray()
    # Line by line: the file is in memory once.
    for row in rows:
        text += orjson.dumps(dict(zip(unique, row, strict=True))) + b"\n"
    return text
