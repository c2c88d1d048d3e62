"""The forms of COPY … TO STDOUT: which one a statement asks for, and rows in it. Pure.

PostgreSQL itself checks the options and writes the header; what is read here is only how values
are written. Options that change values in another way are refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from headrace.sql import wire
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.statements import Token, tokens
from headrace.sql.value_forms.arrow import Array, filled, joined, pc

BINARY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
BINARY_TRAILER: Final = struct.pack("!h", -1)
# All that PostgreSQL writes with a backslash, besides the delimiter: other control characters stand
# as they are.
_ESCAPES: Final = {
    ord("\\"): b"\\\\",
    0x08: b"\\b",
    0x0C: b"\\f",
    ord("\n"): b"\\n",
    ord("\r"): b"\\r",
    ord("\t"): b"\\t",
    0x0B: b"\\v",
}
# Others, such as FORCE_QUOTE, are refused: they change what is written.
_VALUED: Final = frozenset({"DELIMITER", "NULL", "QUOTE", "ESCAPE"})
_LITERAL: Final = re.compile(rb"(?P<escaped>[eE])?'(?P<value>.*)'", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\([t\\])")


@dataclass(frozen=True, slots=True)
class CopyForm:
    """The form of COPY's rows: `text`, `csv` or `binary`, and its characters."""

    form: str = "text"
    delimiter: bytes = b""
    null: bytes | None = None
    quote: bytes = b'"'
    escape: bytes = b""

    def having(self, option: str, value: bytes) -> CopyForm:
        """With another character."""
        match option:
            case "DELIMITER":
                return replace(self, delimiter=value)
            case "NULL":
                return replace(self, null=value)
            case "QUOTE":
                return replace(self, quote=value)
            case _:
                return replace(self, escape=value)

    def completed(self) -> CopyForm:
        """With the defaults of its form."""
        if self.form == "csv":
            delimiter, null = b",", b""
        else:
            delimiter, null = b"\t", b"\\N"
        if self.null is not None:
            null = self.null
        return replace(
            self,
            delimiter=self.delimiter or delimiter,
            null=null,
            # PostgreSQL's default for ESCAPE is QUOTE, also if the statement names another quote.
            escape=self.escape or self.quote,
        )

    def line(self, values: Sequence[bytes | None]) -> bytes:
        """A row of values' texts, with the end of the line."""
        null = self.null or b""
        if self.form == "csv":
            fields = [null if v is None else self._csv(v, alone=len(values) == 1) for v in values]
        else:
            escapes = {self.delimiter[0]: b"\\" + self.delimiter, **_ESCAPES}
            fields = [null if v is None else _escaped(v, escapes) for v in values]
        return self.delimiter.join(fields) + b"\n"

    def _csv(self, value: bytes, *, alone: bool) -> bytes:
        special = (self.delimiter, self.quote, b"\n", b"\r")
        # NULL itself is never quoted, so a text that looks like it has to be.
        plain = value != self.null and not any(each in value for each in special)
        # A line with nothing but `\.` would end the data for some readers, so PostgreSQL quotes it.
        if plain and not (alone and value == b"\\."):
            return value
        escapes = {self.quote[0]: self.escape + self.quote}
        escapes.setdefault(self.escape[0], self.escape * 2)
        return self.quote + _escaped(value, escapes) + self.quote


def copy_form(options: bytes, *, standard_strings: bool = True) -> CopyForm:
    """The form that the text after TO STDOUT asks for."""
    found = list(tokens(options, standard_strings=standard_strings))
    form = CopyForm()
    place = 0
    while place < len(found):
        word = found[place].word
        # Both of PostgreSQL's syntaxes: options in brackets, and the older words without them.
        if word in ("(", ")", ",", "WITH", "AS"):
            place += 1
        elif word in ("CSV", "BINARY"):
            form, place = replace(form, form=word.lower()), place + 1
        elif word == "FORMAT":
            form, place = replace(form, form=_format(options, found, place + 1)), place + 2
        elif word == "HEADER":
            # PostgreSQL writes the header; its value may follow.
            place += 1
            if place < len(found) and found[place].word in ("TRUE", "FALSE", "ON", "OFF", "0", "1"):
                place += 1
        elif word in _VALUED:
            place += 1
            if place < len(found) and found[place].word == "AS":
                place += 1
            token = found[place] if place < len(found) else None
            value = _literal(options, token, standard_strings=standard_strings)
            form = form.having(word, value)
            place += 1
        else:
            raise NotProvenEqualError(f"the option {word or 'in quotes'} of COPY")
    if form.form not in ("text", "csv", "binary"):
        raise NotProvenEqualError(f"the format {form.form} of COPY")
    return form.completed()


def _format(options: bytes, found: Sequence[Token], place: int) -> str:
    if place >= len(found):
        return ""
    token = found[place]
    return options[token.start : token.end].decode("utf-8", "replace").strip("'\"").lower()


def _literal(options: bytes, token: Token | None, *, standard_strings: bool) -> bytes:
    """The value of a literal, if its only escapes are of a tab and of a backslash."""
    text = b"" if token is None else options[token.start : token.end]
    found = _LITERAL.fullmatch(text)
    # Such a quote ends one part of a literal that continues on another line.
    if found is None or b"'" in found["value"].replace(b"''", b""):
        raise _unsupported_value()
    value = found["value"].replace(b"''", b"'")
    if not found["escaped"] and standard_strings:
        return value
    if b"\\" in _ESCAPE.sub(b"", value):
        raise _unsupported_value()
    return _ESCAPE.sub(lambda escape: b"\t" if escape[1] == b"t" else b"\\", value)


def _unsupported_value() -> NotProvenEqualError:
    return NotProvenEqualError("this value of an option of COPY", "Use a plain literal.")


def _escaped(value: bytes, escapes: dict[int, bytes]) -> bytes:
    if not any(byte in value for byte in escapes):
        return value
    return b"".join(escapes.get(byte, bytes((byte,))) for byte in value)


def copy_lines(form: CopyForm, cells: Sequence[Array], rows: int) -> Array:
    """As `CopyForm.line`, of whole columns: a line for each row, from the bytes of its values."""
    null = form.null or b""
    alone = len(cells) == 1
    written = _csv_column if form.form == "csv" else _text_column
    fields = [filled(written(form, cell, alone=alone), null) for cell in cells]
    # Rows without columns are empty lines, one for each.
    if not fields:
        return pa.array([b"\n"] * rows, pa.binary())
    lines = pc.binary_join_element_wise(*fields, pa.scalar(form.delimiter, pa.binary()))
    return joined([lines, pa.scalar(b"\n", pa.binary())])


def _text_column(form: CopyForm, cell: Array, *, alone: bool) -> Array:  # noqa: ARG001  # as of CSV
    escapes = {form.delimiter[0]: b"\\" + form.delimiter, **_ESCAPES}
    # The backslash comes first: what replaces the others begins with one.
    order = sorted(escapes, key=lambda byte: byte != ord("\\"))
    return _replaced(cell, [(bytes((byte,)), escapes[byte]) for byte in order])


def _csv_column(form: CopyForm, cell: Array, *, alone: bool) -> Array:
    marks: Array = pc.equal(cell, pa.scalar(form.null or b"", pa.binary()))
    for each in (form.delimiter, form.quote, b"\n", b"\r"):
        if _contains(cell, each):
            marks = pc.or_(marks, pc.match_substring(cell, each))
    if alone:
        marks = pc.or_(marks, pc.equal(cell, pa.scalar(b"\\.", pa.binary())))
    if not pc.any(marks).as_py():
        return cell
    # The escape character is doubled before quotes get one: otherwise theirs would be doubled, too.
    pairs = [(form.quote, form.escape + form.quote)]
    if form.escape != form.quote:
        pairs.insert(0, (form.escape, form.escape * 2))
    quote = pa.scalar(form.quote, pa.binary())
    return pc.if_else(marks, joined([quote, _replaced(cell, pairs), quote]), cell)


def _replaced(cell: Array, pairs: Sequence[tuple[bytes, bytes]]) -> Array:
    for found, other in pairs:
        if _contains(cell, found):
            cell = pc.replace_substring(cell, pattern=found, replacement=other)
    return cell


def _contains(cell: Array, part: bytes) -> bool:
    """Whether some value may contain it: a look at the bytes of all values is much faster than one
    at each value.
    """
    # The buffer also has the bytes of other slices, and a part may span two values: such a hit only
    # costs time.
    data = cell.buffers()[2]
    return data is not None and part in memoryview(data).tobytes()


def data_row_bodies(messages: bytes) -> Iterator[bytes]:
    """The bodies of DataRow messages that follow each other."""
    at = 0
    while at < len(messages):
        kind, length = wire.header(messages[at : at + wire.HEADER_BYTES], len(messages))
        if kind != b"D":
            raise wire.WireError("a message that is not a row")
        at += wire.HEADER_BYTES
        yield messages[at : at + length]
        at += length


def copy_data(form: CopyForm, messages: bytes) -> bytes:
    """DataRow messages as CopyData messages."""
    rows = []
    for body in data_row_bodies(messages):
        if form.form == "binary":
            row = body
        else:
            row = form.line(wire.values_of(body))
        rows.append(wire.frame(b"d", row))
    return b"".join(rows)


def begun_with(head: bytes, messages: bytes) -> bytes:
    """CopyData messages, the first of which begins with `head`."""
    if not head:
        return messages
    _, length = wire.header(messages[: wire.HEADER_BYTES], len(messages))
    end = wire.HEADER_BYTES + length
    return wire.frame(b"d", head + messages[wire.HEADER_BYTES : end]) + messages[end:]
