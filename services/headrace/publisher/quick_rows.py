"""Rows of one relation read by code made for it: its columns one after the other, with no loop and no object between.

Reads an Insert message, by far the most frequent, in less than half the time of `decode` and `Shape.row`. Those are the
meaning, and the oracle of the test: whatever is not a plain whole row of text values and NULLs, and whatever is wrong
with it, is left to them. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from headrace.contract import scalars
from headrace.errors import DecodeError

Convert = Callable[[bytes], object]
# The values of an Insert message's row by column name; None: the plain way must read it.
QuickRow = Callable[[bytes], dict[str, object] | None]

# Compiling takes some 0.1 ms a column, which wide tables with few rows would not win back.
COLUMNS_MAX = 100
_HEAD = """
def read(data):
    try:
        if head(data) != expected:
            return None
        at = 8"""
_VALUE = """
        if data[at] == 116:
            start = at + 5
            at = start + size(data, at)[0]
            v{index} = {convert}
        elif data[at] == 110:
            v{index} = None
            at += 1
        else:
            return None"""
_HIDDEN = """
        at += 5 + size(data, at)[0] if data[at] == 116 else 1"""
_END = """
        if at != len(data):
            return None
    except errors:
        return None
    return {{{items}}}
"""
_INLINE: dict[Convert, str] = {scalars.text: "data[start:at].decode()", scalars.integer: "int(data[start:at])"}


def compiled(relation_id: int, columns: Sequence[tuple[str, Convert | None]]) -> QuickRow | None:
    """A reader for rows of these columns; without a converter a column is left out."""
    if len(columns) > COLUMNS_MAX:
        return None
    body, items = [_HEAD], []
    names: dict[str, object] = {
        "head": struct.Struct(">xIBH").unpack_from,
        "expected": (relation_id, ord("N"), len(columns)),
        "size": struct.Struct(">xI").unpack_from,
        "errors": (IndexError, ValueError, struct.error, DecodeError),
    }
    for index, (name, convert) in enumerate(columns):
        if convert is None:
            body.append(_HIDDEN)
            continue
        names[f"c{index}"] = convert
        body.append(_VALUE.format(index=index, convert=_INLINE.get(convert, f"c{index}(data[start:at])")))
        items.append(f"{name!r}: v{index}")
    source = "".join(body) + _END.format(items=", ".join(items))
    exec(compile(source, f"<rows of relation {relation_id}>", "exec"), names)  # noqa: S102  # only names, as literals
    read: QuickRow = names["read"]  # type: ignore[assignment]  # it was defined just now
    return read
