"""Archived rows written by code made for their relation equal those of the plain way, for any
row.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.archive import file_format
from headrace.archive.columns import GROUP_ROWS, entries
from headrace.archive.file_format import WalFileEncoder
from headrace.archive.metadata import WalFileInfo
from headrace.archiver.archived_table import OPTIONS, ArchivedTable, text
from headrace.archiver.builder import GROUP_BYTES_MAX, Begun, Builder, Limits
from headrace.confirming.relation_shape import RelationShape
from headrace.contract import type_oids
from headrace.lsn import ORIGIN, Position
from headrace.pgoutput import messages
from headrace.pgoutput.decoder import decode
from headrace.postgres.facts import TableFacts

TEXT, NUMERIC = 25, 1700
INFO = WalFileInfo(1, "a", 1, "w", "s", "d", "1", 1, 1, 2, 0, ORIGIN, ORIGIN)
_TYPES = {
    type_oids.INT8: st.integers(-(2**63), 2**63 - 1).map(lambda n: str(n).encode()),
    type_oids.BOOL: st.sampled_from([b"t", b"f"]),
    TEXT: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).map(
        str.encode
    ),
    type_oids.FLOAT8: st.sampled_from([b"NaN", b"Infinity", b"-0", b"1.5", b"1e300"]),
    type_oids.JSONB: st.sampled_from(
        [b'{"a": [1.50, null]}', b'"\\u00e9"', b"12345678901234567890123"]
    ),
    type_oids.BYTEA: st.binary().map(lambda data: b"\\x" + data.hex().encode()),
    NUMERIC: st.sampled_from([b"1.10", b"NaN", b"0.000000000000000000001"]),
}
_NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8
)


# A relation, and rows of it.
Generated = tuple[messages.Relation, list[tuple[bytes | None, ...]]]


@st.composite
def relations(draw: st.DrawFn) -> tuple[messages.Relation, list[tuple[bytes | None, ...]]]:
    names = draw(st.lists(_NAMES, min_size=1, max_size=6, unique=True))
    oids = [draw(st.sampled_from(sorted(_TYPES))) for _ in names]
    columns = tuple(
        messages.RelationColumn(draw(st.booleans()), name, oid, -1)
        for name, oid in zip(names, oids, strict=True)
    )
    rows = draw(
        st.lists(st.tuples(*(st.none() | _TYPES[oid] for oid in oids)), min_size=1, max_size=6)
    )
    return messages.Relation(7, "public", "t", "d", columns), rows


def archived(relation: messages.Relation) -> ArchivedTable:
    return ArchivedTable.of(RelationShape.of(relation, TableFacts(), OPTIONS))


def encoded(row: tuple[bytes | None, ...]) -> bytes:
    values = b"".join(
        b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value for value in row
    )
    return b"I" + struct.pack(">IBH", 7, ord("N"), len(row)) + values


@given(relations())
def test_the_quick_text_of_a_row_is_the_plain_one(
    generated: Generated,
) -> None:
    relation, rows = generated
    table = archived(relation)
    assert table.quick is not None
    for row in rows:
        quick = table.quick(encoded(row))
        plain = table.shape.row(row)
        if plain.exact:
            assert quick is None
            continue
        assert quick is not None
        after, key = quick
        assert after == text(plain)
        assert key == table.key_of(plain)
        assert list(json.loads(after)) == [column.name for column in relation.columns]


@given(relations(), st.integers(1, 3), st.data())
def test_a_file_has_each_row_at_its_place_wherever_it_is_cut_and_resumed(
    generated: Generated, transactions: int, data: st.DataObject
) -> None:
    relation, rows = generated
    table = archived(relation)
    received: list[bytes | messages.Begin | messages.Commit] = []
    for number in range(1, transactions + 1):
        received += [
            messages.Begin(number * 100, 0, number),
            *map(encoded, rows),
            messages.Commit(0, number * 100, number * 100 + 8, 0),
        ]
    cut = data.draw(st.integers(0, len(received)))
    builder = Builder(Begun(ORIGIN, 1), Limits(1000, 1 << 20))
    take(builder, table, received[:cut])
    first = builder.seal()
    # Killed here, and everything comes again.
    again = Builder(
        Begun(first.last, first.end_lsn, first.time_us, first.versions), Limits(1000, 1 << 20)
    )
    take(again, table, received)
    second = again.seal()
    found = [
        entry
        for part in (first, second)
        for batch in part.rest.to_batches()
        for entry in entries(batch)
    ]
    due = [
        Position(number * 100, seq)
        for number in range(1, transactions + 1)
        for seq in range(len(rows))
    ]
    assert [entry.position for entry in found] == due
    texts = [(text(table.shape.row(row)) or b"").decode() for row in rows] * transactions
    assert [entry.after_json for entry in found] == texts
    assert {entry.schema_version for entry in found} == {1}
    assert second.end_lsn == transactions * 100 + 8


@given(relations(), st.integers(1, 4), st.data())
def test_a_file_that_is_encoded_in_groups_has_the_rows_of_one_that_is_not(
    generated: Generated, transactions: int, data: st.DataObject
) -> None:
    relation, rows = generated
    table = archived(relation)
    # A message of the log next to the table's rows: another kind, and one without a time.
    alone: list[messages.PgoutputMessage] = (
        [messages.LogicalMessage(False, 50, "p", b"x")] if data.draw(st.booleans()) else []
    )
    inserts: list[messages.PgoutputMessage] = []
    for number in range(1, transactions + 1):
        inserts += [
            messages.Begin(number * 100, number, number),
            *(messages.Insert(7, row) for row in rows),
        ]
        inserts += [
            messages.Truncate((7,), False, False),
            messages.Commit(0, number * 100, number * 100 + 8, 0),
        ]
    whole, cut = (Builder(Begun(ORIGIN, 1), Limits(1000, 1 << 20)) for _ in range(2))
    writer = WalFileEncoder()
    for builder in (whole, cut):
        builder.learn(table)
        for message in (*alone, *inserts):
            builder.feed(5, message)
            if builder is cut and data.draw(st.booleans()):
                writer.add(cut.take_group())
    due, sealed = whole.seal(), cut.seal()
    writer.add(sealed.rest)
    found, info = writer.finish(INFO)
    assert info.checksum_bytes < len(found)
    due_rows = [entry for batch in due.rest.to_batches() for entry in entries(batch)]
    assert [entry for batch in file_format.batches(found) for entry in entries(batch)] == due_rows
    assert replace(sealed, rest=due.rest) == due
    assert sealed.rows == len(due_rows)


def test_a_group_is_due_long_before_the_file_is_full() -> None:
    relation = messages.Relation(
        7, "public", "t", "d", (messages.RelationColumn(True, "a", TEXT, -1),)
    )
    builder = Builder(Begun(ORIGIN, 1), Limits(1 << 20, 1 << 30))
    builder.learn(archived(relation))
    builder.feed(0, messages.Begin(100, 0, 1))
    wide = GROUP_BYTES_MAX // 10
    told = []
    for _ in range(10):
        builder.feed(5, messages.Insert(7, (b"x" * wide,)))
        told.append(builder.due)
    assert told == [False] * 9 + [True]
    assert builder.take_group().num_rows == 10
    told.clear()
    for _ in range(GROUP_ROWS):
        told.append(builder.due)
        builder.feed(5, messages.Truncate((7,), False, False))
    assert not any(told)
    assert (builder.due, builder.overfull, builder.rows) == (True, False, 10 + GROUP_ROWS)


def take(
    builder: Builder, table: ArchivedTable, received: list[bytes | messages.Begin | messages.Commit]
) -> None:
    builder.learn(table)
    for message in received:
        if not isinstance(message, bytes):
            builder.feed(0, message)
        elif not builder.insert(5, message):
            decoded = decode(message)
            assert isinstance(decoded, messages.Insert)
            builder.feed(5, decoded)
