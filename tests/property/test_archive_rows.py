"""Archived rows written by code made for their relation equal those of the plain way, whatever the row."""

from __future__ import annotations

import json
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.archive.columns import entries
from headrace.archiver.builder import Begun, Builder, Limits
from headrace.archiver.forms import Form
from headrace.contract import type_oids
from headrace.contract.selection import Selection
from headrace.lsn import ORIGIN, Position
from headrace.pgoutput import Begin, Commit, Insert, Relation, RelationColumn, decode
from headrace.postgres.facts import TableFacts

TEXT, NUMERIC = 25, 1700
_TYPES = {
    type_oids.INT8: st.integers(-(2**63), 2**63 - 1).map(lambda n: str(n).encode()),
    type_oids.BOOL: st.sampled_from([b"t", b"f"]),
    TEXT: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).map(str.encode),
    type_oids.FLOAT8: st.sampled_from([b"NaN", b"Infinity", b"-0", b"1.5", b"1e300"]),
    type_oids.JSONB: st.sampled_from([b'{"a": [1.50, null]}', b'"\\u00e9"', b"12345678901234567890123"]),
    type_oids.BYTEA: st.binary().map(lambda data: b"\\x" + data.hex().encode()),
    NUMERIC: st.sampled_from([b"1.10", b"NaN", b"0.000000000000000000001"]),
}
_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def relations(draw: st.DrawFn) -> tuple[Relation, list[tuple[bytes | None, ...]]]:
    names = draw(st.lists(_NAMES, min_size=1, max_size=6, unique=True))
    oids = [draw(st.sampled_from(sorted(_TYPES))) for _ in names]
    columns = tuple(RelationColumn(draw(st.booleans()), name, oid, -1) for name, oid in zip(names, oids, strict=True))
    rows = draw(st.lists(st.tuples(*(st.none() | _TYPES[oid] for oid in oids)), min_size=1, max_size=6))
    return Relation(7, "public", "t", "d", columns), rows


def encoded(row: tuple[bytes | None, ...]) -> bytes:
    values = b"".join(b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value for value in row)
    return b"I" + struct.pack(">IBH", 7, ord("N"), len(row)) + values


@settings(deadline=None)
@given(relations())
def test_the_quick_text_of_a_row_is_the_plain_one(generated: tuple[Relation, list[tuple[bytes | None, ...]]]) -> None:
    relation, rows = generated
    form = Form.of(relation, TableFacts(), Selection())
    assert form.quick is not None
    for row in rows:
        quick = form.quick(encoded(row))
        assert quick is not None
        key, after = quick
        assert after == form.plain(row)[0]
        assert key == form.key_of(row)
        assert list(json.loads(after)) == [column.name for column in relation.columns]


@settings(deadline=None)
@given(relations(), st.integers(1, 3), st.data())
def test_a_file_has_each_row_at_its_place_wherever_it_is_cut_and_resumed(
    generated: tuple[Relation, list[tuple[bytes | None, ...]]], transactions: int, data: st.DataObject
) -> None:
    relation, rows = generated
    form = Form.of(relation, TableFacts(), Selection())
    messages: list[bytes | Begin | Commit] = []
    for number in range(1, transactions + 1):
        messages += [Begin(number * 100, 0, number), *map(encoded, rows), Commit(0, number * 100, number * 100 + 8, 0)]
    cut = data.draw(st.integers(0, len(messages)))
    builder = Builder(Begun(ORIGIN, 1), Limits(1000, 1 << 20))
    take(builder, form, messages[:cut])
    first = builder.seal()
    # Killed here, and everything comes again.
    again = Builder(Begun(first.last, first.end_lsn, first.time_us, first.versions), Limits(1000, 1 << 20))
    take(again, form, messages)
    second = again.seal()
    found = [entry for part in (first, second) for batch in part.rows.to_batches() for entry in entries(batch)]
    due = [Position(number * 100, seq) for number in range(1, transactions + 1) for seq in range(len(rows))]
    assert [entry.position for entry in found] == due
    texts = [form.plain(row)[0].decode() for row in rows] * transactions
    assert [entry.after_json for entry in found] == texts
    assert {entry.schema_version for entry in found} == {1}
    assert second.end_lsn == transactions * 100 + 8


def take(builder: Builder, form: Form, messages: list[bytes | Begin | Commit]) -> None:
    builder.learn(form)
    for message in messages:
        if not isinstance(message, bytes):
            builder.feed(0, message)
        elif not builder.insert(5, message):
            decoded = decode(message)
            assert isinstance(decoded, Insert)
            builder.feed(5, decoded)
