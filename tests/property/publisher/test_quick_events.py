"""Messages that are processed in bulk give the same events as one by one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.confirming.relation_shape import RelationShape
from headrace.contract.values import Encoding, ValueOptions
from headrace.pgoutput.decoder import decode
from headrace.pgoutput.messages import Relation, RelationColumn
from headrace.postgres.facts import TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.quick_events import writer
from headrace.publisher.table_events import TableEvents
from tests.support.accelerated import WAYS, Way

RELATIONS = (16_385, 0xFFFF_FFFE)
# bool, int8, text, numeric, timestamptz, jsonb, bytea, float8
TYPES = (16, 20, 25, 1700, 1184, 3802, 17, 701)
USUAL = {
    16: b"t",
    20: b"-42",
    25: "né".encode(),
    1700: b"1.50",
    1184: b"2026-01-01 00:00:00+00",
    3802: b'{"a": [1]}',
    17: b"\\x00ff",
    701: b"NaN",
}
Entry = tuple[int, bytes]
Columns = list[tuple[str, int]]


def row(values: list[bytes | str | None]) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if isinstance(value, bytes):
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


@st.composite
def changes(draw: st.DrawFn, relation: int, columns: Columns) -> bytes:
    def one(*, sent: bool) -> bytes:
        values: list[bytes | str | None] = []
        for _, oid in columns:
            choices: list[st.SearchStrategy[bytes | str | None]] = [st.just(USUAL[oid]), st.none()]
            if not sent:
                choices.append(st.just("unchanged"))
            if oid == 25:
                choices.append(st.text(alphabet="aé\U0001f600", max_size=300).map(str.encode))
            values.append(draw(st.one_of(choices)))
        return row(values)

    head = struct.pack(">I", relation)
    kind = draw(st.sampled_from("IIIUUFKD"))
    if kind == "I":
        return b"I" + head + b"N" + one(sent=True)
    if kind == "D":
        return b"D" + head + b"K" + one(sent=True)
    before = {"U": b"", "F": b"O", "K": b"K"}[kind]
    return b"U" + head + (before + one(sent=True) if before else b"") + b"N" + one(sent=False)


@st.composite
def transactions(draw: st.DrawFn, columns: Columns) -> list[Entry]:
    entries: list[Entry] = []
    for commit in range(1000, 1000 + 100 * draw(st.integers(1, 3)), 100):
        lsn = commit - 50
        entries.append((lsn, b"B" + struct.pack(">QqI", commit, commit, commit)))
        for _ in range(draw(st.integers(0, 6))):
            lsn += draw(st.integers(0, 1))
            entries.append((lsn, draw(changes(draw(st.sampled_from(RELATIONS)), columns))))
        entries.append((commit, b"C" + struct.pack(">BQQq", 0, commit, commit + 8, commit)))
        entries.append((commit + 10, b""))
    return entries


def assembler(columns: Columns, hidden: frozenset[str], encoding: Encoding) -> Assembler:
    made = Assembler("slot", encoding, payload_bytes_max=9000)
    for number in RELATIONS:
        listed = tuple(
            RelationColumn(index == 0, name, oid, -1) for index, (name, oid) in enumerate(columns)
        )
        relation = Relation(number, 'a "b"', f"t{number}", "d", listed)
        facts = TableFacts(primary_key=(columns[0][0],))
        table = TableEvents.of(RelationShape.of(relation, facts, ValueOptions(encoding)))
        shown = (
            (name, None if name in hidden else convert) for name, convert in table.shape.columns
        )
        table.shape = replace(table.shape, columns=tuple(shown))
        made.learn(table)
    return made


def fed(made: Assembler, entries: list[Entry]) -> list[PublishedEvent | CompleteUpTo]:
    items: list[PublishedEvent | CompleteUpTo] = []
    for lsn, data in entries:
        items += made.feed(lsn, decode(data)) if data else made.keepalive(lsn)
    return items


def taken(
    made: Assembler, entries: list[Entry], cuts: list[int]
) -> list[PublishedEvent | CompleteUpTo]:
    items: list[PublishedEvent | CompleteUpTo] = []
    for start, end in zip([0, *cuts], [*cuts, len(entries)], strict=True):
        assert made.take(entries[:end], start) == max(start, end)
        items += made.taken()
    return items


NAMES = st.sampled_from(["id", "né", '"', "{x}", "\\", "%d", "a b"])


@given(st.data(), st.sampled_from(list(Encoding)))
def test_messages_taken_together_give_the_events_of_each_by_itself(
    data: st.DataObject, encoding: Encoding
) -> None:
    columns = data.draw(
        st.lists(
            st.tuples(NAMES, st.sampled_from(TYPES)),
            min_size=1,
            max_size=5,
            unique_by=lambda one: one[0],
        )
    )
    hidden = data.draw(st.frozensets(st.sampled_from([name for name, _ in columns]), max_size=1))
    entries = data.draw(transactions(columns))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(entries)), max_size=3)))
    expected = fed(assembler(columns, hidden, encoding), entries)
    for way in WAYS:
        with way():
            assert taken(assembler(columns, hidden, encoding), entries, cuts) == expected


@pytest.mark.parametrize("way", WAYS)
def test_what_is_wrong_with_a_message_is_left_with_nothing_done(way: Way) -> None:
    with way():
        leave_what_is_wrong()


def leave_what_is_wrong() -> None:
    columns = [("id", 20), ("note", 25)]
    good = b"I" + struct.pack(">I", RELATIONS[0]) + b"N" + row([b"1", b"x"])
    bad = b"I" + struct.pack(">I", RELATIONS[0]) + b"N" + row([b"no number", b"x"])
    entries = [
        (90, b"B" + struct.pack(">QqI", 100, 0, 7)),
        (91, good),
        (92, good),
        (93, bad),
        (94, good),
    ]
    made = assembler(columns, frozenset(), Encoding.MSGPACK)
    assert made.take(entries, 0) == 3
    assert [item.msg_id for item in made.taken() if isinstance(item, PublishedEvent)][
        -1
    ].startswith("5b-")
    assert made.cursor.position == (100, 2)
    made.cursor.pass_over()
    assert made.take(entries, 4) == 5
    assert [item.msg_id[:3] for item in made.taken() if isinstance(item, PublishedEvent)] == ["5c-"]


def test_only_new_rows_and_updates_have_a_fast_path() -> None:
    described = Relation(RELATIONS[0], "public", "t", "d", (RelationColumn(True, "id", 20, -1),))
    options = ValueOptions(Encoding.JSON)
    table = TableEvents.of(RelationShape.of(described, TableFacts(("id",)), options))
    found = {
        (kind.operation, with_old)
        for kind in (table.insert, table.update, table.delete, table.truncate)
        for with_old in (False, True)
        if writer(table, kind, "slot", Encoding.JSON, with_old=with_old)
    }
    assert found == {
        ("INSERT", False),
        ("UPDATE", False),
        ("UPDATE", True),
    }
