"""Rows of one relation read by code made for it: its columns one after the other, with no loop and
no object between.

Reads an Insert or Update message, by far the most frequent, and writes its row, in less than half
the time of `decode`, `Shape.row` and the encoder. Those are the meaning, and the oracle of the
tests: whatever is not a plain whole row of text values and NULLs, and whatever is wrong with it, is
left to them. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from headrace.contract import scalars
from headrace.contract.exact import Inexact
from headrace.contract.values import may_be_inexact
from headrace.errors import DecodeError

Convert = Callable[[bytes], object]
Write = Callable[[object], bytes]
# From a whole message to its new row, written, and what ends the event: the old row where there is
# one. None: the plain way must read it.
QuickRow = Callable[[bytes], tuple[bytes, bytes] | None]

# Compiling takes some 0.1 ms a column, which wide tables with few rows would not win back.
COLUMNS_MAX = 100
_HEAD = """
def read(data):
    try:
        if data[6:8] != count:
            return None
        at = 8"""
_SECOND = """
        if data[at:at + 3] != second:
            return None
        at += 3"""
_VALUE = """
        if data[at] == 116:
            start = at + 5
            at = start + size(data, at)[0]
            {name} = {convert}{check}
        elif data[at] == 110:
            {name} = None
            at += 1
        else:
            return None"""
# What has an exact text beside it is written the plain way.
_CHECK = """
            if type({name}) is Inexact:
                return None"""
_HIDDEN = """
        at += 5 + size(data, at)[0] if data[at] == 116 else 1"""
_END = """
        if at != len(data):
            return None
        return write({{{items}}}), {end}
    except errors:
        return None
"""
_INLINE: dict[Convert, str] = {
    scalars.text: "data[start:at].decode()",
    scalars.integer: "int(data[start:at])",
    # The usual form; any other goes to the converter.
    scalars.timestamp_utc: (
        'f"{{t[:10]}}T{{t[11:-3]}}Z" if (t := data[start:at].decode())[10:11] == " " and t[-3:] == "+00"'
        " else c{index}(data[start:at])"
    ),
}


def compiled(
    columns: Sequence[tuple[str, Convert | None]],
    write: Write,
    *,
    old_head: bytes | None = None,
    end: bytes = b"",
) -> QuickRow | None:
    """A reader for rows of these columns; without a converter a column is left out.

    With `old_head` the whole old row comes before the new one, and is written behind that head,
    before `end`.
    """
    if len(columns) > COLUMNS_MAX:
        return None
    count = struct.pack(">H", len(columns))
    names: dict[str, object] = {
        "count": count,
        "second": b"N" + count,
        "size": struct.Struct(">xI").unpack_from,
        "errors": (IndexError, ValueError, OverflowError, TypeError, struct.error, DecodeError),
        "write": write,
        "Inexact": Inexact,
        "old_head": old_head,
        "end": end,
        **{f"c{index}": convert for index, (_, convert) in enumerate(columns)},
    }
    if old_head is None:
        rows, ending = _row(columns, "v"), "end"
    else:
        rows = _row(columns, "o") + _SECOND + _row(columns, "v")
        ending = f"old_head + write({{{_items(columns, 'o')}}}) + end"
    source = _HEAD + rows + _END.format(items=_items(columns, "v"), end=ending)
    return _made(source, names)


def _row(columns: Sequence[tuple[str, Convert | None]], letter: str) -> str:
    parts = []
    for index, (_, convert) in enumerate(columns):
        if convert is None:
            parts.append(_HIDDEN)
            continue
        how = _INLINE.get(convert, "c{index}(data[start:at])").format(index=index)
        name = f"{letter}{index}"
        check = _CHECK.format(name=name) if may_be_inexact(convert) else ""
        parts.append(_VALUE.format(name=name, convert=how, check=check))
    return "".join(parts)


def _items(columns: Sequence[tuple[str, Convert | None]], letter: str) -> str:
    shown = [(index, name) for index, (name, convert) in enumerate(columns) if convert is not None]
    return ", ".join(f"{name!r}: {letter}{index}" for index, name in shown)


def _made(source: str, names: dict[str, object]) -> QuickRow:
    exec(compile(source, "<rows of a relation>", "exec"), names)  # noqa: S102  # of columns' names, as literals
    read: QuickRow = names["read"]  # type: ignore[assignment]  # it was defined just now
    return read
