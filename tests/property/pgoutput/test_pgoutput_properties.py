"""The decoder against an encoder written from the protocol's tables, and against arbitrary bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DecodeError
from headrace.pgoutput import messages
from headrace.pgoutput.decoder import decode


def string(text: str) -> bytes:
    return text.encode() + b"\0"


def row(values: messages.Row) -> bytes:
    parts = [struct.pack("!h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is messages.UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack("!i", len(value)) + value)
    return b"".join(parts)


def column(one: messages.RelationColumn) -> bytes:
    return (
        bytes([one.is_key]) + string(one.name) + struct.pack("!Ii", one.type_oid, one.type_modifier)
    )


def encode(message: messages.PgoutputMessage) -> bytes:  # noqa: PLR0911 - one case per message of the protocol
    match message:
        case messages.Begin(lsn, ts, xid):
            return b"B" + struct.pack("!QqI", lsn, ts, xid)
        case messages.Commit(flags, lsn, end_lsn, ts):
            return b"C" + struct.pack("!BQQq", flags, lsn, end_lsn, ts)
        case messages.Origin(lsn, name):
            return b"O" + struct.pack("!Q", lsn) + string(name)
        case messages.Relation(relation_id, schema, name, identity, columns):
            head = (
                b"R"
                + struct.pack("!I", relation_id)
                + string(schema)
                + string(name)
                + identity.encode()
            )
            return head + struct.pack("!h", len(columns)) + b"".join(map(column, columns))
        case messages.TypeMessage(oid, schema, name):
            return b"Y" + struct.pack("!I", oid) + string(schema) + string(name)
        case messages.Insert(relation_id, new):
            return b"I" + struct.pack("!I", relation_id) + b"N" + row(new)
        case messages.Update(relation_id, key, old, new):
            before = (
                b"K" + row(key) if key is not None else b"O" + row(old) if old is not None else b""
            )
            return b"U" + struct.pack("!I", relation_id) + before + b"N" + row(new)
        case messages.Delete(relation_id, key, old):
            before = b"K" + row(key) if key is not None else b"O" + row(old or ())
            return b"D" + struct.pack("!I", relation_id) + before
        case messages.Truncate(relation_ids, cascade, restart):
            head = b"T" + struct.pack("!iB", len(relation_ids), cascade | restart << 1)
            return head + struct.pack(f"!{len(relation_ids)}I", *relation_ids)
        case messages.LogicalMessage(transactional, lsn, prefix, content):
            # Any bytes, in a SQL_ASCII database.
            named = prefix.encode(errors="surrogateescape") + b"\0"
            head = b"M" + struct.pack("!BQ", transactional, lsn) + named
            return head + struct.pack("!i", len(content)) + content


oids = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
schemas = names.filter(bool)
rows = st.lists(st.none() | st.just(messages.UNCHANGED) | st.binary(max_size=40), max_size=8).map(
    tuple
)
columns = st.builds(
    messages.RelationColumn, st.booleans(), names, oids, st.integers(-(2**31), 2**31 - 1)
)
any_message = st.one_of(
    st.builds(messages.Begin, lsns, times, oids),
    st.builds(messages.Commit, st.integers(0, 255), lsns, lsns, times),
    st.builds(messages.Origin, lsns, names),
    st.builds(
        messages.Relation,
        oids,
        schemas,
        names,
        st.sampled_from("dnfi"),
        st.lists(columns, max_size=6).map(tuple),
    ),
    st.builds(messages.TypeMessage, oids, schemas, names),
    st.builds(messages.Insert, oids, rows),
    st.builds(messages.Update, oids, st.none(), st.none(), rows),
    st.builds(messages.Update, oids, rows, st.none(), rows),
    st.builds(messages.Update, oids, st.none(), rows, rows),
    st.builds(messages.Delete, oids, rows, st.none()),
    st.builds(messages.Delete, oids, st.none(), rows),
    st.builds(
        messages.Truncate, st.lists(oids, max_size=5).map(tuple), st.booleans(), st.booleans()
    ),
    st.builds(messages.LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=60)),
)


@given(any_message)
def test_what_was_encoded_is_what_is_decoded(message: messages.PgoutputMessage) -> None:
    assert decode(encode(message)) == message


@given(any_message)
def test_no_cut_of_a_message_is_taken_for_a_message(message: messages.PgoutputMessage) -> None:
    data = encode(message)
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:end])


@given(any_message, st.binary(min_size=1, max_size=5))
def test_bytes_after_a_message_are_never_ignored(
    message: messages.PgoutputMessage, rest: bytes
) -> None:
    with pytest.raises(DecodeError):
        decode(encode(message) + rest)


@given(
    st.sampled_from(b"BCORYIUDTM").flatmap(
        lambda kind: st.binary(max_size=80).map(lambda rest: bytes([kind]) + rest)
    )
)
def test_arbitrary_bytes_are_a_message_or_a_decode_error(data: bytes) -> None:
    try:
        message = decode(data)
    except DecodeError:
        return
    assert decode(encode(message)) == message


@given(any_message, st.data())
def test_a_spoiled_message_never_raises_anything_else(
    message: messages.PgoutputMessage, draw: st.DataObject
) -> None:
    data = bytearray(encode(message))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] = draw.draw(st.integers(0, 255))
    try:
        spoiled = decode(bytes(data))
    except DecodeError:
        return
    assert decode(encode(spoiled)) == spoiled
