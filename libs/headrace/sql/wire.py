"""PostgreSQL's wire protocol, version 3: messages as bytes, and bytes as messages. Pure.

Only what the SQL server looks into has a type here; everything else passes as it came. A message
that doesn't have its protocol's form raises `WireError`; nothing is guessed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.errors import DecodeError

PROTOCOL_MAJOR: Final = 3
# 1234 in the upper half, which is no major version: a request instead of a start.
CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
# PostgreSQL's own limit.
STARTUP_BYTES_MAX: Final = 10_000
HEADER_BYTES: Final = 5

TEXT: Final = 0
BINARY: Final = 1

Status = Literal["I", "T", "E"]


class WireError(DecodeError):
    """A message that doesn't have the form that the protocol requires."""

    remedy = "Use a client of PostgreSQL's protocol, version 3."


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message's type, one byte, and its body without the length."""

    kind: bytes
    body: bytes

    def encode(self) -> bytes:
        """The message as it is sent."""
        return frame(self.kind, self.body)


def frame(kind: bytes, body: bytes = b"") -> bytes:
    """A message as it is sent: type, length, body."""
    return kind + struct.pack("!i", len(body) + 4) + body


def header(data: bytes, bytes_max: int) -> tuple[bytes, int]:
    """The type of a message and the length of the body that follows its five bytes."""
    (length,) = struct.unpack_from("!i", data, 1)
    # The length includes its own four bytes.
    if length < 4:
        raise WireError(f"a message of {length} bytes")
    # Before memory is taken: a client may claim two gigabytes.
    if length - 4 > bytes_max:
        raise WireError(f"a message of {length} bytes; at most {bytes_max} are accepted")
    return data[:1], length - 4


class Fields:
    """Reads a body from front to back."""

    def __init__(self, body: bytes, start: int = 0) -> None:
        self._body = body
        self._at = start

    def int16(self) -> int:
        """A signed number of two bytes."""
        return self._number("!h", 2)

    def int32(self) -> int:
        """A signed number of four bytes."""
        return self._number("!i", 4)

    def uint32(self) -> int:
        """An unsigned number of four bytes, such as an OID."""
        return self._number("!I", 4)

    def count(self) -> int:
        """A number of items that follow: PostgreSQL reads it without a sign."""
        return self._number("!H", 2)

    def text(self) -> bytes:
        """The bytes before the next zero."""
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise WireError("a text without its end")
        found = self._body[self._at : end]
        self._at = end + 1
        return found

    def value(self) -> bytes | None:
        """A value with its length before it; None for a null."""
        length = self.int32()
        # -1 is NULL; any other negative length is an error, and not a null.
        if length == -1:
            return None
        if length < 0:
            raise WireError(f"a value of {length} bytes")
        return self.take(length)

    def take(self, length: int) -> bytes:
        """The next bytes."""
        end = self._at + length
        if end > len(self._body):
            raise WireError("a message that is too short")
        found = self._body[self._at : end]
        self._at = end
        return found

    def end(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._body):
            raise WireError("a message that is too long")

    def _number(self, form: str, length: int) -> int:
        (found,) = struct.unpack(form, self.take(length))
        return int(found)


# The start of a connection


@dataclass(frozen=True, slots=True)
class Startup:
    """A client's first message: the protocol's version and its parameters."""

    version: int
    parameters: Mapping[str, str]

    def encode(self) -> bytes:
        """As the front sends it on."""
        items = b"".join(
            name.encode() + b"\0" + value.encode() + b"\0"
            for name, value in self.parameters.items()
        )
        body = struct.pack("!i", self.version) + items + b"\0"
        return struct.pack("!i", len(body) + 4) + body


def startup_of(body: bytes) -> Startup:
    """The body of a startup message, without its length."""
    fields = Fields(body)
    version = fields.int32()
    # Minor versions are negotiated; another major one has other messages.
    if version >> 16 != PROTOCOL_MAJOR:
        raise WireError(f"version {version >> 16}.{version & 0xFFFF} of the protocol")
    parameters: dict[str, str] = {}
    # An empty name ends the list.
    while name := fields.text():
        parameters[_utf8(name)] = _utf8(fields.text())
    return Startup(version, parameters)


def cancel_request(process: int, key: bytes) -> bytes:
    """A request to cancel what another connection does."""
    body = struct.pack("!iI", CANCEL_REQUEST, process) + key
    return struct.pack("!i", len(body) + 4) + body


@dataclass(frozen=True, slots=True)
class BackendKey:
    """The means to cancel a statement. Version 3.2 of the protocol has longer keys."""

    process: int
    key: bytes


def backend_key_of(body: bytes) -> BackendKey:
    """The body of BackendKeyData, or of a cancel request after its code."""
    fields = Fields(body)
    process = fields.uint32()
    return BackendKey(process, body[4:])


# The extended protocol, from the client


@dataclass(frozen=True, slots=True)
class Parse:
    """Prepare a statement."""

    name: bytes
    text: bytes
    types: tuple[int, ...]

    def encode(self) -> bytes:
        """As it is sent."""
        counted = struct.pack(f"!H{len(self.types)}I", len(self.types), *self.types)
        return frame(b"P", self.name + b"\0" + self.text + b"\0" + counted)


def parse_of(body: bytes) -> Parse:
    """The body of a Parse message."""
    fields = Fields(body)
    name, text = fields.text(), fields.text()
    types = tuple(fields.uint32() for _ in range(fields.count()))
    fields.end()
    return Parse(name, text, types)


@dataclass(frozen=True, slots=True)
class Bind:
    """Make a portal of a statement: its parameters' values, and the forms of results."""

    portal: bytes
    statement: bytes
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    results: tuple[int, ...]

    def encode(self) -> bytes:
        """As it is sent."""
        parts = [
            self.portal + b"\0" + self.statement + b"\0",
            struct.pack(f"!H{len(self.formats)}h", len(self.formats), *self.formats),
            struct.pack("!H", len(self.values)),
            *(counted(value) for value in self.values),
            struct.pack(f"!H{len(self.results)}h", len(self.results), *self.results),
        ]
        return frame(b"B", b"".join(parts))


def bind_of(body: bytes) -> Bind:
    """The body of a Bind message."""
    fields = Fields(body)
    portal, statement = fields.text(), fields.text()
    formats = tuple(fields.int16() for _ in range(fields.count()))
    values = tuple(fields.value() for _ in range(fields.count()))
    results = tuple(fields.int16() for _ in range(fields.count()))
    fields.end()
    return Bind(portal, statement, formats, values, results)


def counted(value: bytes | None) -> bytes:
    """A value with its length before it."""
    if value is None:
        return b"\xff\xff\xff\xff"
    return struct.pack("!i", len(value)) + value


@dataclass(frozen=True, slots=True)
class WireTarget:
    """The object of Describe and Close: a statement (`S`) or a portal (`P`)."""

    kind: bytes
    name: bytes


def target_of(body: bytes) -> WireTarget:
    """The body of a Describe or a Close message."""
    fields = Fields(body, 1)
    name = fields.text()
    fields.end()
    if body[:1] not in (b"S", b"P"):
        raise WireError("a Describe or Close of neither a statement nor a portal")
    return WireTarget(body[:1], name)


def describe(kind: bytes, name: bytes) -> bytes:
    """A Describe message."""
    return frame(b"D", kind + name + b"\0")


def close(kind: bytes, name: bytes) -> bytes:
    """A Close message."""
    return frame(b"C", kind + name + b"\0")


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a portal, up to a number of rows; 0 means all."""

    portal: bytes
    rows_max: int


def execute_of(body: bytes) -> Execute:
    """The body of an Execute message."""
    fields = Fields(body)
    portal, rows_max = fields.text(), fields.int32()
    fields.end()
    # As PostgreSQL: a negative number means all.
    return Execute(portal, max(0, rows_max))


def execute(portal: bytes, rows_max: int = 0) -> bytes:
    """An Execute message."""
    return frame(b"E", portal + b"\0" + struct.pack("!i", rows_max))


def query(text: bytes) -> bytes:
    """A Query message of the simple protocol."""
    return frame(b"Q", text + b"\0")


def query_of(body: bytes) -> bytes:
    """The text of a Query message."""
    fields = Fields(body)
    text = fields.text()
    fields.end()
    return text


SYNC: Final = frame(b"S")
FLUSH: Final = frame(b"H")
TERMINATE: Final = frame(b"X")

# From the server

PARSE_COMPLETE: Final = frame(b"1")
BIND_COMPLETE: Final = frame(b"2")
CLOSE_COMPLETE: Final = frame(b"3")
NO_DATA: Final = frame(b"n")
PORTAL_SUSPENDED: Final = frame(b"s")
COPY_DONE: Final = frame(b"c")


def command_complete(tag: str) -> bytes:
    """The end of a statement."""
    return frame(b"C", tag.encode() + b"\0")


def ready(status: Status) -> bytes:
    """The server waits for the next statement."""
    return frame(b"Z", status.encode())


@dataclass(frozen=True, slots=True)
class WireColumn:
    """A result's column as RowDescription has it."""

    name: bytes
    relid: int
    number: int
    type_oid: int
    size: int
    modifier: int
    form: int = TEXT


def columns_of(body: bytes) -> tuple[WireColumn, ...]:
    """The body of a RowDescription message."""
    fields = Fields(body)
    found = []
    for _ in range(fields.count()):
        name = fields.text()
        relid, number = fields.uint32(), fields.int16()
        type_oid, size = fields.uint32(), fields.int16()
        modifier, form = fields.int32(), fields.int16()
        found.append(WireColumn(name, relid, number, type_oid, size, modifier, form))
    fields.end()
    return tuple(found)


def row_description(columns: Sequence[WireColumn], forms: Sequence[int]) -> bytes:
    """A RowDescription message with a form for each column."""
    parts = [struct.pack("!H", len(columns))]
    for column, form in zip(columns, forms, strict=True):
        facts = (column.relid, column.number, column.type_oid, column.size, column.modifier, form)
        parts.append(column.name + b"\0" + struct.pack("!IhIhih", *facts))
    return frame(b"T", b"".join(parts))


def parameter_types_of(body: bytes) -> tuple[int, ...]:
    """The body of a ParameterDescription message."""
    fields = Fields(body)
    found = tuple(fields.uint32() for _ in range(fields.count()))
    fields.end()
    return found


def parameter_description(types: Sequence[int]) -> bytes:
    """A ParameterDescription message."""
    return frame(b"t", struct.pack(f"!H{len(types)}I", len(types), *types))


def values_of(body: bytes) -> tuple[bytes | None, ...]:
    """The body of a DataRow message."""
    fields = Fields(body)
    found = tuple(fields.value() for _ in range(fields.count()))
    fields.end()
    return found


def data_row(values: Iterable[bytes | None]) -> bytes:
    """A DataRow message."""
    parts = [counted(value) for value in values]
    return frame(b"D", struct.pack("!H", len(parts)) + b"".join(parts))


def parameter_status_of(body: bytes) -> tuple[bytes, bytes]:
    """The body of a ParameterStatus message: a setting's name and value."""
    fields = Fields(body)
    found = fields.text(), fields.text()
    fields.end()
    return found


def result_forms(formats: Sequence[int], columns: int) -> tuple[int, ...]:
    """A form for each column: none given means text, one is for all."""
    if any(form not in (TEXT, BINARY) for form in formats):
        raise WireError("a form that is neither text nor binary")
    if not formats:
        return (TEXT,) * columns
    if len(formats) == 1:
        return tuple(formats) * columns
    if len(formats) != columns:
        raise WireError(f"{len(formats)} result formats for {columns} columns")
    return tuple(formats)


# Errors and notices


@dataclass(frozen=True, slots=True)
class Notice:
    """The fields of an error or a notice, by their letters."""

    fields: Mapping[str, bytes]

    @property
    def severity(self) -> bytes:
        """ERROR, LOG, …: the form that isn't translated."""
        return self.fields.get("V", self.fields.get("S", b""))

    @property
    def code(self) -> bytes:
        """The SQLSTATE."""
        return self.fields.get("C", b"")

    @property
    def message(self) -> bytes:
        """The message."""
        return self.fields.get("M", b"")

    @property
    def detail(self) -> bytes:
        """The detail; empty if there is none."""
        return self.fields.get("D", b"")

    def encode(self, kind: bytes) -> bytes:
        """As an error (`E`) or a notice (`N`)."""
        items = b"".join(letter.encode() + value + b"\0" for letter, value in self.fields.items())
        return frame(kind, items + b"\0")


def notice_of(body: bytes) -> Notice:
    """The body of an ErrorResponse or a NoticeResponse message."""
    fields = Fields(body)
    found: dict[str, bytes] = {}
    while (letter := fields.take(1)) != b"\0":
        found[letter.decode("latin-1")] = fields.text()
    return Notice(found)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error that the front itself reports."""

    code: str
    message: str
    detail: str = ""
    hint: str = ""
    position: int = 0
    severity: str = "ERROR"
    more: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As an ErrorResponse message."""
        position = str(self.position) if self.position else ""
        items = {
            "S": self.severity,
            "V": self.severity,
            "C": self.code,
            "M": self.message,
            "D": self.detail,
            "H": self.hint,
            "P": position,
            **self.more,
        }
        # A zero would end the field.
        clean = {name: text.replace("\0", "").encode() for name, text in items.items() if text}
        return Notice(clean).encode(b"E")


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError("a startup parameter that is not UTF-8") from error
