"""Rows of one relation read in C, as `row_compiler.compiled` does: see `headrace.accelerator`."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from headrace.accelerator import native
from headrace.confirming.row_compiler import COLUMNS_MAX, Columns, QuickRow
from headrace.contract import events, scalars
from headrace.contract.exact import Inexact
from headrace.contract.values import Converter, Encoding
from headrace.errors import DecodeError

# Values that C converts; for any other it calls the converter.
_KINDS: Mapping[Converter | None, bytes] = {
    None: b"h",
    scalars.text: b"t",
    scalars.integer: b"i",
    scalars.boolean: b"b",
    scalars.timestamp_utc: b"m",
}
_ERRORS = (IndexError, ValueError, OverflowError, TypeError, struct.error, DecodeError)


def native_rows(
    columns: Columns, encoding: Encoding, *, old_head: bytes | None = None, end: bytes = b""
) -> QuickRow | None:
    """A reader in C for rows of these columns; None without the accelerator."""
    # A dict has a name once.
    is_plain = len(columns) <= COLUMNS_MAX and len(columns) == len({name for name, _ in columns})
    if native is None or not is_plain:
        return None
    write = events.writer(encoding)
    json = encoding is Encoding.JSON
    names = []
    shown = 0
    for name, convert in columns:
        before = b"," if json and shown else b""
        names.append(before + write(name) + (b":" if json else b""))
        shown += convert is not None
    kinds = b"".join(_KINDS.get(convert, b"o") for _, convert in columns)
    converters = tuple(convert for _, convert in columns)
    rows: QuickRow = native.Rows(
        kinds, tuple(names), converters, write, Inexact, _ERRORS, old_head, end, json
    )
    return rows
