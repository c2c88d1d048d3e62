"""Decodes one pgoutput message (protocol version 1, text values).

Stateless and pure. Promises that for any bytes, the result is either the message they denote, to
the last byte, or a `DecodeError`: never another exception, never a row built from bytes that don't
exist. It doesn't look inside values.

The hot path stays within bounds without a test per value: sizes are read as unsigned, so the
offset only grows; a slice beyond the end is short, which leaves the offset past the end, where the
next read raises `IndexError` or `struct.error`; and `decode` compares the last offset with the
length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct

from headrace.errors import DecodeError
from headrace.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    PgoutputMessage,
    Relation,
    RelationColumn,
    Row,
    Truncate,
    TypeMessage,
    Update,
    Value,
)

# Bound methods of compiled formats: decoding runs for every value of every change.
_uint16 = Struct(">H").unpack_from
_uint32 = Struct(">I").unpack_from
_uint64 = Struct(">Q").unpack_from
_begin = Struct(">QqI").unpack_from
_commit = Struct(">BQQq").unpack_from
_column_type = Struct(">Ii").unpack_from
_message_head = Struct(">BQ").unpack_from
_insert_head = Struct(">xIBH").unpack_from
_value_size = Struct(">xI").unpack_from

# The kind of a value: NULL, an unchanged TOASTed value that PostgreSQL doesn't send, or text. The
# kind of a row: the key of the old row, the whole old row, the new row.
_NULL, _TOAST, _TEXT = b"nut"
_KEY, _OLD, _NEW = b"KON"
_REPLICA_IDENTITIES = frozenset("dnfi")


def decode(data: bytes) -> PgoutputMessage:
    """The message that `data` contains, all of it; raises `DecodeError` for anything else."""
    try:
        read = _READERS[data[0]]
    except IndexError:
        raise DecodeError("an empty pgoutput message") from None
    except KeyError:
        raise DecodeError(f"pgoutput message of unknown kind {data[:1]!r}") from None
    try:
        message, end = read(data)
    except (IndexError, struct.error) as error:
        raise DecodeError(
            f"pgoutput message {data[:1]!r} of {len(data)} bytes ends too early"
        ) from error
    # A message that is longer or shorter than its content was misread, so its values can't be
    # trusted.
    if end != len(data):
        if end > len(data):
            fault = "ends too early"
        else:
            fault = f"has {len(data) - end} bytes after its end"
        raise DecodeError(f"pgoutput message {data[:1]!r} of {len(data)} bytes {fault}")
    return message


def _read_row(data: bytes, at: int) -> tuple[Row, int]:
    return _read_values(data, at + 2, _uint16(data, at)[0])


def _read_values(data: bytes, at: int, count: int) -> tuple[Row, int]:
    values: list[Value] = []
    add = values.append
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + _value_size(data, at)[0]
            add(data[start:at])
        elif kind == _NULL:
            add(None)
            at += 1
        elif kind == _TOAST:
            add(UNCHANGED)
            at += 1
        else:
            raise _bad_value_kind(data, at)
    return tuple(values), at


def _bad_value_kind(data: bytes, at: int) -> DecodeError:
    kind = data[at : at + 1]
    if kind == b"b":
        return DecodeError(
            "a value came in binary form, which was not requested",
            remedy="Start replication without the option binary",
        )
    return DecodeError(f"value of unknown kind {kind!r} at byte {at} of a row")


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise DecodeError(
            f"pgoutput message {data[:1]!r} ends too early: a name at byte {at} has no end"
        )
    try:
        return data[at:end].decode(), end + 1
    except UnicodeDecodeError as error:
        name = data[at:end].decode(errors="backslashreplace")
        raise DecodeError(
            f'the name "{name}" at byte {at} of pgoutput message {data[:1]!r} is not UTF-8',
            remedy=(
                "A SQL_ASCII database has names in any encoding, and names can't be parked: "
                "rename it, and drop the slot (pg_drop_replication_slot), which still has its "
                "changes. Elsewhere, set the replication connection's client_encoding to UTF8"
            ),
        ) from error


def _read_bytes_as_text(data: bytes, at: int) -> tuple[str, int]:
    """A text that may contain any bytes in a SQL_ASCII database; callers that need valid text have
    to check it.
    """
    end = data.find(b"\0", at)
    if end < 0:
        raise DecodeError(
            f"pgoutput message {data[:1]!r} ends too early: a text at byte {at} has no end"
        )
    return data[at:end].decode(errors="surrogateescape"), end + 1


def _read_schema(data: bytes, at: int) -> tuple[str, int]:
    """A schema's name; the protocol writes pg_catalog as the empty string."""
    schema, at = _read_string(data, at)
    return schema or "pg_catalog", at


def _read_begin(data: bytes) -> tuple[Begin, int]:
    return Begin(*_begin(data, 1)), 21


def _read_commit(data: bytes) -> tuple[Commit, int]:
    return Commit(*_commit(data, 1)), 26


def _read_origin(data: bytes) -> tuple[Origin, int]:
    (lsn,) = _uint64(data, 1)
    name, at = _read_string(data, 9)
    return Origin(lsn, name), at


def _read_relation(data: bytes) -> tuple[Relation, int]:
    (relation_id,) = _uint32(data, 1)
    schema, at = _read_schema(data, 5)
    name, at = _read_string(data, at)
    identity = chr(data[at])
    if identity not in _REPLICA_IDENTITIES:
        raise DecodeError(f"relation {schema}.{name} has the unknown replica identity {identity!r}")
    (count,) = _uint16(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _read_column(data, at)
        columns.append(column)
    return Relation(relation_id, schema, name, identity, tuple(columns)), at


def _read_column(data: bytes, at: int) -> tuple[RelationColumn, int]:
    # Protocol version 1 defines only this bit of the flags.
    is_key = bool(data[at] & 1)
    name, at = _read_string(data, at + 1)
    type_oid, type_modifier = _column_type(data, at)
    return RelationColumn(is_key, name, type_oid, type_modifier), at + 8


def _read_type(data: bytes) -> tuple[TypeMessage, int]:
    (type_oid,) = _uint32(data, 1)
    schema, at = _read_schema(data, 5)
    name, at = _read_string(data, at)
    return TypeMessage(type_oid, schema, name), at


def _read_insert(data: bytes) -> tuple[Insert, int]:
    relation_id, kind, count = _insert_head(data)
    if kind != _NEW:
        raise _bad_row_kind(data, 5)
    new, at = _read_values(data, 8, count)
    return Insert(relation_id, new), at


def _read_update(data: bytes) -> tuple[Update, int]:
    # The old key comes only if the key has changed, and the whole old row only with REPLICA
    # IDENTITY FULL; without either, the message starts with the new row.
    key: Row | None = None
    old: Row | None = None
    at = 5
    if data[5] == _KEY:
        key, at = _read_row(data, 6)
    elif data[5] == _OLD:
        old, at = _read_row(data, 6)
    if data[at] != _NEW:
        raise _bad_row_kind(data, at)
    new, at = _read_row(data, at + 1)
    return Update(_uint32(data, 1)[0], key, old, new), at


def _read_delete(data: bytes) -> tuple[Delete, int]:
    kind = data[5]
    # One of them always comes: PostgreSQL refuses a DELETE without a replica identity.
    if kind not in (_KEY, _OLD):
        raise _bad_row_kind(data, 5)
    row, at = _read_row(data, 6)
    (relation_id,) = _uint32(data, 1)
    if kind == _KEY:
        return Delete(relation_id, row, None), at
    return Delete(relation_id, None, row), at


def _bad_row_kind(data: bytes, at: int) -> DecodeError:
    return DecodeError(
        f"pgoutput message {data[:1]!r} has a row of unknown kind {data[at : at + 1]!r} at byte "
        f"{at}"
    )


def _read_truncate(data: bytes) -> tuple[Truncate, int]:
    (count,) = _uint32(data, 1)
    options = data[5]
    end = 6 + 4 * count
    # Checked before reading: a damaged count could demand billions of OIDs.
    if end > len(data):
        raise DecodeError(
            f"pgoutput message {data[:1]!r} of {len(data)} bytes ends too early for {count} tables"
        )
    relation_ids = tuple(_uint32(data, at)[0] for at in range(6, end, 4))
    return Truncate(relation_ids, bool(options & 1), bool(options & 2)), end


def _read_message(data: bytes) -> tuple[LogicalMessage, int]:
    flags, lsn = _message_head(data, 1)
    prefix, at = _read_bytes_as_text(data, 10)
    start = at + 4
    end = start + _uint32(data, at)[0]
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[start:end]), end


_Reader = Callable[[bytes], tuple[PgoutputMessage, int]]

# Protocol version 1: streamed and two-phase transactions are not requested.
_READERS: dict[int, _Reader] = {
    ord("B"): _read_begin,
    ord("C"): _read_commit,
    ord("O"): _read_origin,
    ord("R"): _read_relation,
    ord("Y"): _read_type,
    ord("I"): _read_insert,
    ord("U"): _read_update,
    ord("D"): _read_delete,
    ord("T"): _read_truncate,
    ord("M"): _read_message,
}
