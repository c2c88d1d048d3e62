"""Rows of one relation read by code made for it: its columns one after the other, with no loop and
no object between.

Reads an Insert or Update message, by far the most frequent, and writes its row, in less than half
the time of `decode`, `RelationShape.row` and an encoder. Those are the meaning, and the oracle of
the tests: any message but a plain whole row of text values and NULLs, and any that is malformed,
is left to them. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from headrace.contract import scalars
from headrace.contract.exact import Inexact
from headrace.contract.values import Converter, may_be_inexact
from headrace.errors import DecodeError

Columns = Sequence[tuple[str, Converter | None]]
Write = Callable[[object], bytes]
# From a whole message to its new row, written, and the bytes that accompany it. None: the plain way
# must read it.
QuickRow = Callable[[bytes], tuple[bytes, bytes] | None]
QuickKeyedRow = Callable[[bytes], tuple[bytes, bytes | None] | None]

# Compiling takes about 0.1 ms per column, which wide tables with few rows would not win back.
COLUMNS_MAX = 100
_HEAD = """
def read(data):
    try:
        if data[5:8] != first:
            return None
        at = 8"""
_NEW_ROW = """
        if data[at:at + 3] != new_row:
            return None
        at += 3"""
_VALUE = """
        if data[at] == 116:
            start = at + 5
            at = start + size(data, at)[0]
            {name} = {read}
        elif data[at] == 110:
            {name} = {null}
            at += 1
        else:
            return None"""
# A value with an exact text is written the plain way.
_CHECK = """
            if type({name}) is Inexact:
                return None"""
_TEXT = """
            {name} = dumps({name})"""
_HIDDEN = """
        at += 5 + size(data, at)[0] if data[at] == 116 else 1"""
_END = """
        if at != len(data):
            return None
        return {row}, {second}
    except errors:
        return None
"""
_CONVERTED = "c{index}(data[start:at])"


class _Emitter(NamedTuple):
    """Writes the code of a value in one of two forms."""

    inline: Mapping[Converter, str]
    null: str
    # Code that follows a value that is not inline.
    then: str


_VALUES = _Emitter(
    {
        scalars.text: "data[start:at].decode()",
        scalars.integer: "int(data[start:at])",
        # The usual form; any other goes to the converter.
        scalars.timestamp_utc: (
            'f"{{t[:10]}}T{{t[11:-3]}}Z"'
            ' if (t := data[start:at].decode())[10:11] == " " and t[-3:] == "+00"'
            " else c{index}(data[start:at])"
        ),
    },
    "None",
    "",
)
# JSON, value by value: put together from these, a row takes less memory and time to keep than
# one that the encoder writes whole.
_TEXTS = _Emitter(
    {
        scalars.text: "dumps(data[start:at].decode())",
        scalars.integer: "data[start:at]",
        scalars.boolean: 'b"true" if data[start] == 116 else b"false"',
    },
    'b"null"',
    _TEXT,
)


def compiled(
    columns: Columns, write: Write, *, old_head: bytes | None = None, end: bytes = b""
) -> QuickRow | None:
    """A reader for rows of these columns, each accompanied by `end`.

    With `old_head` the whole old row comes before the new one, and is written behind that head,
    before `end`.
    """
    constants = {"write": write, "end": end, "old_head": old_head}
    new = f"write({_dict(columns, 'v')})"
    if old_head is None:
        return _made(_HEAD + _read(columns, "v", _VALUES), new, "end", columns, constants)
    body = _HEAD + _read(columns, "o", _VALUES) + _NEW_ROW + _read(columns, "v", _VALUES)
    return _made(body, new, f"old_head + write({_dict(columns, 'o')}) + end", columns, constants)


def compiled_texts(columns: Columns, key: Sequence[str]) -> QuickKeyedRow | None:
    """A reader for rows of these columns as JSON, each accompanied by its key, or by None without
    one.
    """
    places = {name: place for place, (name, _) in enumerate(columns)}
    row = _template([(name, place) for name, place in places.items() if columns[place][1]])
    if key:
        second = _template([(name, places[name]) for name in key])
    else:
        second = "None"
    constants = {"dumps": orjson.dumps, "old_head": None}
    return _made(_HEAD + _read(columns, "v", _TEXTS), row, second, columns, constants)


def _made(
    body: str, row: str, second: str, columns: Columns, constants: dict[str, Any]
) -> QuickRow | None:
    if len(columns) > COLUMNS_MAX:
        return None
    count = struct.pack(">H", len(columns))
    names: dict[str, object] = {
        "first": (b"N" if constants["old_head"] is None else b"O") + count,
        "new_row": b"N" + count,
        "size": struct.Struct(">xI").unpack_from,
        "errors": (IndexError, ValueError, OverflowError, TypeError, struct.error, DecodeError),
        "Inexact": Inexact,
        **constants,
        **{f"c{index}": convert for index, (_, convert) in enumerate(columns)},
    }
    source = body + _END.format(row=row, second=second)
    # The source contains columns' names, as literals.
    exec(compile(source, "<rows of a relation>", "exec"), names)  # noqa: S102
    read: QuickRow = names["read"]  # type: ignore[assignment]  # it was defined just now
    return read


def _read(columns: Columns, letter: str, emitter: _Emitter) -> str:
    """The code that reads a row into variables: this letter, and the column's place."""
    parts = []
    for index, (_, convert) in enumerate(columns):
        if convert is None:
            parts.append(_HIDDEN)
            continue
        name = f"{letter}{index}"
        read = emitter.inline.get(convert)
        if read is None:
            read = _CONVERTED + (_CHECK if may_be_inexact(convert) else "") + emitter.then
        read = read.format(name=name, index=index)
        parts.append(_VALUE.format(name=name, read=read, null=emitter.null))
    return "".join(parts)


def _dict(columns: Columns, letter: str) -> str:
    """The expression of a row that was read as values."""
    shown = [(index, name) for index, (name, convert) in enumerate(columns) if convert is not None]
    return f"{{{', '.join(f'{name!r}: {letter}{index}' for index, name in shown)}}}"


def _template(shown: Sequence[tuple[str, int]]) -> str:
    """The expression of a JSON object that was read as texts."""
    texts = [orjson.dumps(name).replace(b"%", b"%%") + b":%b" for name, _ in shown]
    values = "".join(f"v{place}, " for _, place in shown)
    return f"{b'{' + b','.join(texts) + b'}'!r} % ({values})"
