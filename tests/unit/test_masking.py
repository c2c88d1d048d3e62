"""Raw messages are kept without the values of columns that are left out, whatever else is in them."""

from __future__ import annotations

import struct

import pytest

from headrace.pgoutput.decoder import decode
from headrace.pgoutput.masking import masked
from headrace.pgoutput.messages import UNCHANGED, Delete, Insert, Update

SECRET = b"top secret"


def row(*values: bytes | str | None) -> bytes:
    """A tuple as PostgreSQL sends it; "u" is an unchanged value."""
    out = struct.pack(">H", len(values))
    for value in values:
        if isinstance(value, bytes):
            out += b"t" + struct.pack(">I", len(value)) + value
        else:
            out += b"n" if value is None else b"u"
    return out


HEAD = struct.pack(">I", 16384)
INSERT = b"I" + HEAD + b"N" + row(b"1", SECRET, None, "u", b"\xff")
UPDATE = b"U" + HEAD + b"O" + row(b"1", SECRET, b"x") + b"N" + row(b"2", SECRET, b"y")
DELETE = b"D" + HEAD + b"K" + row(b"1", SECRET, None)


def test_a_hidden_column_is_null_and_the_others_are_as_they_were() -> None:
    inserted, updated, deleted = (decode(masked(message, {1})) for message in (INSERT, UPDATE, DELETE))
    assert isinstance(inserted, Insert)
    assert inserted.new == (b"1", None, None, UNCHANGED, b"\xff")
    assert isinstance(updated, Update)
    assert (updated.old, updated.new) == ((b"1", None, b"x"), (b"2", None, b"y"))
    assert isinstance(deleted, Delete)
    assert deleted.key == (b"1", None, None)
    assert masked(INSERT, ()) == INSERT


@pytest.mark.parametrize("message", [INSERT, UPDATE, DELETE])
def test_of_a_message_that_was_cut_off_nothing_hidden_is_left(message: bytes) -> None:
    for end in range(5, len(message)):
        kept = masked(message[:end], {1})
        assert not any(SECRET[:length] in kept for length in range(3, len(SECRET)))
