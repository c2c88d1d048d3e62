"""The open file: which rows a log gives, at which positions, and when it is full.

The oracle is literals, and the same log without a replay or a limit.
"""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.archive.columns import GROUP_ROWS
from headrace.archiver import builder as building
from headrace.archiver.archived_table import OPTIONS, ArchivedTable
from headrace.archiver.builder import Begun, Builder, Limits, Sealed
from headrace.confirming.relation_shape import RelationShape
from headrace.contract.selection import Selection
from headrace.lsn import ORIGIN, Gap, Position
from headrace.pgoutput import messages
from headrace.postgres.facts import TableFacts

TABLE, OTHER, EXCLUDED = 7, 8, 9
PG_EPOCH_US = 946_684_800_000_000
LIMITS = Limits(1000, 1 << 30)
INT, TEXT = 23, 25
# {"id":1} and what each row counts on top of its text.
ROW_BYTES = len('{"id":1}') + 32


def relation(relation_id: int = TABLE, name: str = "t", type_oid: int = INT) -> messages.Relation:
    columns = (
        messages.RelationColumn(True, "id", type_oid, -1),
        messages.RelationColumn(False, "note", TEXT, -1),
    )
    return messages.Relation(relation_id, "public", name, "d", columns)


def narrow(relation_id: int = TABLE) -> messages.Relation:
    return replace(relation(relation_id), columns=relation().columns[:1])


def described(
    of: messages.Relation, facts: TableFacts | None = None, selection: Selection | None = None
) -> ArchivedTable:
    return ArchivedTable.of(RelationShape.of(of, facts or TableFacts(), OPTIONS, selection))


def inserted(number: int, relation_id: int = TABLE) -> bytes:
    """The bytes of an Insert of one column."""
    text = str(number).encode()
    return b"I" + struct.pack(">I", relation_id) + b"N\0\1t" + struct.pack(">I", len(text)) + text


def begin(commit: int, xid: int = 70, time_us: int = 0) -> messages.Begin:
    return messages.Begin(commit, time_us - PG_EPOCH_US, xid)


def commit(at: int) -> messages.Commit:
    return messages.Commit(0, at, at + 1, 0)


def note(content: bytes, at: int, *, transactional: bool) -> messages.LogicalMessage:
    return messages.LogicalMessage(transactional, at, "p", content)


def builder(begun: Begun | None = None, limits: Limits = LIMITS) -> Builder:
    made = Builder(begun or Begun(ORIGIN, 1), limits)
    made.learn(described(narrow()))
    return made


def fill(made: Builder, at: int, numbers: range, *, ends: bool = True) -> None:
    """A transaction of Inserts, each by the fast path where that takes it."""
    made.feed(at, begin(at))
    for number in numbers:
        if not made.insert(number, inserted(number)):
            made.feed(number, messages.Insert(TABLE, (str(number).encode(),)))
    if ends:
        made.feed(at, commit(at))


def rows(sealed: Sealed) -> list[dict[str, Any]]:
    table = sealed.rest
    assert table.schema.field("commit_time").type == pa.timestamp("us", tz="UTC")
    place = table.schema.get_field_index("commit_time")
    times = table.column("commit_time").cast(pa.int64())
    return table.set_column(place, "commit_time", times).to_pylist()


def places(sealed: Sealed) -> list[tuple[int, int]]:
    return [(row["commit_lsn"], row["ordinal"]) for row in rows(sealed)]


CHANGES: tuple[messages.PgoutputMessage, ...] = (
    messages.Insert(TABLE, (b"1", b"one")),
    messages.Update(TABLE, (b"1", None), None, (b"2", messages.UNCHANGED)),
    messages.Update(TABLE, None, (b"2", b"one"), (b"2", None)),
    messages.Delete(TABLE, (b"2", None), None),
    messages.Truncate((TABLE, OTHER), False, False),
    note(b"hello", 5, transactional=True),
)
COMMON = {"commit_lsn": 100, "xid": 70, "commit_time": 12, "schema": "public", "table": "t"}
NOTHING = {"key": None, "before": None, "after": None, "unchanged": None, "exact": None}
EXPECTED: list[dict[str, Any]] = [
    {"operation": "insert", "key": '{"id":1}', "after": '{"id":1,"note":"one"}'},
    {
        "operation": "update",
        "key": '{"id":2}',
        "before": '{"id":1}',
        "after": '{"id":2}',
        "unchanged": ["note"],
    },
    {
        "operation": "update",
        "key": '{"id":2}',
        "before": '{"id":2,"note":"one"}',
        "after": '{"id":2,"note":null}',
    },
    {"operation": "delete", "key": '{"id":2}', "before": '{"id":2}'},
    {"operation": "truncate"},
    {"operation": "truncate", "table": "u"},
    {
        "operation": "message",
        "schema": None,
        "table": None,
        "key": '{"prefix":"p"}',
        "after": '{"content":"hello"}',
        "schema_version": None,
    },
]


def with_all_changes(begun: Begun | None = None) -> Sealed:
    made = Builder(begun or Begun(ORIGIN, 1), LIMITS)
    made.learn(described(relation()))
    made.learn(described(relation(OTHER, "u")))
    made.feed(1, begin(100, time_us=12))
    for lsn, change in enumerate(CHANGES, 50):
        made.feed(lsn, change)
    made.feed(1, commit(100))
    made.feed(150, note(b"\xff\x00", 150, transactional=False))
    return made.seal()


def test_each_change_becomes_the_row_that_the_archive_documents() -> None:
    found = rows(with_all_changes())
    lsns = [50, 51, 52, 53, 54, 54, 55]
    for ordinal, (lsn, row) in enumerate(zip(lsns, EXPECTED, strict=True)):
        common = COMMON | NOTHING | {"schema_version": 1, "ordinal": ordinal, "lsn": lsn}
        assert found[ordinal] == common | row
    alone = {
        "commit_lsn": 149,
        "ordinal": 0,
        "lsn": 150,
        "xid": 0,
        "commit_time": None,
        "schema": None,
        "table": None,
        "operation": "message",
        "key": '{"prefix":"p"}',
        "after": '{"content":"\\\\xff00"}',
        "schema_version": None,
    }
    assert found[7:] == [NOTHING | alone]


@pytest.mark.parametrize("kept", range(8))
def test_a_replay_gives_the_rows_behind_the_last_one_and_no_other(kept: int) -> None:
    every = with_all_changes()
    begun = Begun(Position(*places(every)[kept]), 1)
    again = with_all_changes(begun)
    assert rows(again) == rows(every)[kept + 1 :]
    assert again.last == every.last
    assert again.first == (Position(*places(every)[kept + 1]) if kept < 7 else every.last)


def test_a_replay_by_the_fast_path_gives_the_same_positions() -> None:
    made = builder(Begun(Position(200, 1), 1))
    for at in (100, 200, 300):
        fill(made, at, range(4))
    sealed = made.seal()
    assert places(sealed) == [(200, 2), (200, 3), *((300, seq) for seq in range(4))]
    assert [row["after"] for row in rows(sealed)] == [f'{{"id":{n}}}' for n in (2, 3, *range(4))]
    assert (sealed.first, sealed.last, sealed.end_lsn) == (
        Position(200, 2),
        Position(300, 3),
        301,
    )


def test_changes_of_a_table_that_is_left_out_take_their_positions() -> None:
    made = builder()
    made.learn(described(relation(EXCLUDED, "x"), selection=Selection(exclude=("public.x",))))
    made.feed(1, begin(100))
    for change in (
        messages.Insert(EXCLUDED, (b"1", b"")),
        messages.Insert(TABLE, (b"1",)),
        messages.Update(EXCLUDED, None, None, (b"1", b"")),
        messages.Truncate((EXCLUDED, TABLE), False, False),
        messages.Delete(EXCLUDED, (b"1", None), None),
    ):
        made.feed(1, change)
    made.feed(1, commit(100))
    assert places(made.seal()) == [(100, 1), (100, 4)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_rows_are_the_same_however_they_are_cut_into_chunks(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    due = with_all_changes()
    inserts = builder()
    fill(inserts, 100, range(8))
    fast = inserts.seal()
    monkeypatch.setattr(building, "CHUNK_ROWS", size)
    made = builder()
    fill(made, 100, range(8))
    cut = made.seal()
    assert len(cut.rest.column("lsn").chunks) == -(-8 // size)
    assert (rows(cut), cut.rows, cut.last) == (rows(fast), 8, Position(100, 7))
    again = with_all_changes()
    assert (rows(again), again.last) == (rows(due), due.last)
    assert len(again.rest.column("lsn").chunks) == -(-8 // size)


def test_a_file_is_full_at_its_limit_of_rows_and_overfull_at_twice_that() -> None:
    made = builder(limits=Limits(2, 1 << 30))
    states = []
    made.feed(1, begin(100))
    for number in range(4):
        fill_one(made, number)
        states.append((made.rows, made.full, made.overfull, made.due))
    assert states == [
        (1, False, False, False),
        (2, True, False, False),
        (3, True, False, False),
        (4, True, True, True),
    ]


def fill_one(made: Builder, number: int) -> None:
    if not made.insert(1, inserted(number)):
        made.feed(1, messages.Insert(TABLE, (str(number).encode(),)))


def test_a_file_is_full_at_its_limit_of_bytes_and_overfull_at_twice_that() -> None:
    made = builder(limits=Limits(1000, 2 * ROW_BYTES))
    states = []
    made.feed(1, begin(100))
    for number in range(4):
        fill_one(made, number)
        states.append((made.full, made.overfull, made.due))
    assert states == [
        (False, False, False),
        (True, False, False),
        (True, False, False),
        (True, True, True),
    ]


@pytest.mark.parametrize(("limit", "rows"), [(3 * ROW_BYTES, 3), (3 * ROW_BYTES + 1, 4)])
def test_every_row_counts_as_many_bytes_however_it_was_taken(limit: int, rows: int) -> None:
    made = builder(limits=Limits(1000, limit))
    made.feed(1, begin(100))
    while not made.full:
        fill_one(made, made.rows)
    assert made.rows == rows


def test_a_row_without_values_counts_as_its_place() -> None:
    made = builder(limits=Limits(1000, 33))
    made.feed(1, begin(100))
    made.feed(1, messages.Truncate((TABLE,), False, False))
    assert not made.full
    made.feed(1, messages.Truncate((TABLE,), False, False))
    assert made.full


def test_what_accompanies_a_row_counts_as_its_bytes() -> None:
    before = len('{"id":1,"note":"was"}')
    after = len('{"id":1,"note":null}')
    for size, full in ((before + after + 32, True), (before + after + 33, False)):
        made = Builder(Begun(ORIGIN, 1), Limits(1000, size))
        made.learn(described(relation()))
        made.feed(1, begin(100))
        made.feed(1, messages.Update(TABLE, None, (b"1", b"was"), (b"1", None)))
        assert made.full is full


def test_the_exact_text_of_a_value_counts_as_its_bytes() -> None:
    text = b"12345678901234567890123"
    exact = len('{"after":{"note":"12345678901234567890123"}}')
    documents = replace(
        relation(), columns=(relation().columns[0], messages.RelationColumn(False, "note", 114, -1))
    )
    sizes = []
    for value in (text, None):
        made = Builder(Begun(ORIGIN, 1), Limits(1000, 1 << 20))
        made.learn(described(documents))
        made.feed(1, begin(100))
        made.feed(1, messages.Insert(TABLE, (b"1", value)))
        (row,) = rows(made.seal())
        sizes.append(len(row["after"]) + len(row["exact"] or ""))
        if value is None:
            assert row["exact"] is None
        else:
            assert len(row["exact"]) == exact
    for limit, full in ((sizes[0] + 32, True), (sizes[0] + 33, False)):
        made = Builder(Begun(ORIGIN, 1), Limits(1000, limit))
        made.learn(described(documents))
        made.feed(1, begin(100))
        made.feed(1, messages.Insert(TABLE, (b"1", text)))
        assert made.full is full


def test_a_row_group_is_due_when_it_is_full_and_not_again_before_the_next_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building, "GROUP_ROWS", 3)
    made = builder()
    made.feed(1, begin(100))
    due = []
    groups = []
    for number in range(7):
        fill_one(made, number)
        due.append(made.due)
        if made.due:
            groups.append(made.take_group().num_rows)
    assert due == [False, False, True, False, False, True, False]
    assert groups == [3, 3]
    made.feed(1, commit(100))
    sealed = made.seal()
    assert (sealed.rest.num_rows, sealed.rows, sealed.first) == (1, 7, Position(100, 0))
    assert places(sealed) == [(100, 6)]


def test_a_row_group_is_due_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "GROUP_BYTES_MAX", 2 * ROW_BYTES)
    made = builder()
    made.feed(1, begin(100))
    due = []
    for number in range(5):
        fill_one(made, number)
        due.append(made.due)
        if made.due:
            made.take_group()
    assert due == [False, True, False, True, False]


def test_the_first_row_group_of_a_file_is_due_as_early_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building, "GROUP_BYTES_MAX", 2 * ROW_BYTES)
    made = builder()
    fill(made, 100, range(9))
    made.seal()
    made.feed(1, begin(200))
    fill_one(made, 1)
    assert not made.due
    fill_one(made, 2)
    assert made.due


def test_by_default_a_row_group_has_as_many_rows_as_a_reader_decodes_at_a_time() -> None:
    made = builder(limits=Limits(100_000, 1 << 30))
    made.feed(1, begin(100))
    while not made.due:
        fill_one(made, 1)
    assert made.rows == GROUP_ROWS == 65_536


def test_a_file_begins_empty_behind_the_one_before() -> None:
    made = builder(limits=Limits(2, 1 << 30))
    fill(made, 100, range(3))
    first = made.seal()
    assert (made.rows, made.full, made.due) == (0, False, False)
    fill(made, 200, range(1))
    second = made.seal()
    assert (first.rows, second.rows) == (3, 1)
    assert (first.last, second.first, second.last) == (
        Position(100, 2),
        Position(200, 0),
        Position(200, 0),
    )
    empty = made.seal()
    assert (empty.rows, empty.first, empty.last) == (0, second.last, second.last)
    assert empty.tables == ()


def test_a_file_that_ends_inside_a_transaction_says_so_and_the_next_continues_it() -> None:
    made = builder(Begun(ORIGIN, 42))
    fill(made, 100, range(3), ends=False)
    cut = made.seal()
    assert (cut.whole, cut.last, cut.end_lsn) == (False, Position(100, 2), 42)
    for number in range(3, 5):
        fill_one(made, number)
    made.feed(1, commit(100))
    rest = made.seal()
    assert (rest.whole, rest.first, rest.last, rest.end_lsn) == (
        True,
        Position(100, 3),
        Position(100, 4),
        101,
    )
    assert places(rest) == [(100, 3), (100, 4)]
    assert [row["xid"] for row in rows(rest)] == [70, 70]


def test_only_what_ended_is_complete() -> None:
    made = builder(Begun(ORIGIN, 42))
    made.keepalive(60)
    assert made.complete_lsn == 60
    made.keepalive(50)
    assert made.complete_lsn == 60, "a late keepalive takes nothing back"
    made.feed(1, begin(100))
    made.keepalive(99)
    assert made.complete_lsn == 60, "PostgreSQL has sent a part of the transaction at 100"
    made.feed(1, commit(100))
    assert made.complete_lsn == 101
    made.feed(1, begin(30))
    made.feed(1, commit(30))
    assert made.complete_lsn == 101


def test_the_time_of_a_file_is_the_latest_so_far() -> None:
    made = builder(Begun(ORIGIN, 1, time_us=30))
    for at, time_us, latest in ((100, 20, 30), (200, 50, 50), (300, 40, 50)):
        made.feed(1, begin(at, time_us=time_us))
        fill_one(made, 1)
        made.feed(1, commit(at))
        sealed = made.seal()
        assert sealed.time_us == latest
        assert [row["commit_time"] for row in rows(sealed)] == [time_us]


def test_an_emitted_message_that_the_archive_has_does_not_come_again() -> None:
    made = builder(Begun(Position(149, 0), 1))
    made.feed(150, note(b"a", 150, transactional=False))
    made.feed(160, note(b"b", 160, transactional=False))
    assert places(made.seal()) == [(159, 0)]


def test_rows_before_and_behind_a_separate_message_have_their_own_positions() -> None:
    made = builder()
    fill(made, 100, range(2))
    made.feed(150, note(b"a", 150, transactional=False))
    fill(made, 200, range(2))
    sealed = made.seal()
    assert places(sealed) == [(100, 0), (100, 1), (149, 0), (200, 0), (200, 1)]
    assert [row["commit_time"] for row in rows(sealed)] == [0, 0, None, 0, 0]


def test_a_gap_is_a_file_with_one_row_before_everything_that_follows_it() -> None:
    made = builder(Begun(Position(100, 5), 101, time_us=7))
    sealed = made.tell_gap(Gap(101, 300, "slot_moved"), 9)
    assert (sealed.gap, sealed.rows, sealed.whole) == (Gap(101, 300, "slot_moved"), 1, True)
    assert (sealed.first, sealed.last, sealed.end_lsn) == (
        Position(299, 0),
        Position(299, 0),
        300,
    )
    assert sealed.time_us == 9
    (row,) = rows(sealed)
    told = {"operation": "gap", "commit_lsn": 299, "ordinal": 0, "lsn": 300, "xid": 0}
    told["after"] = '{"after":101,"up_to":300,"reason":"slot_moved"}'
    assert {name: row[name] for name in told} == told
    assert row["commit_time"] is None
    fill(made, 300, range(1))
    assert places(made.seal()) == [(300, 0)]


def test_a_gap_up_to_the_end_of_an_archived_message_has_a_position_behind_it() -> None:
    """A message's position is one before its record's end, and a gap's one before its own end."""
    made = builder(Begun(Position(299, 0), 292))
    sealed = made.tell_gap(Gap(292, 300, "slot_moved"), 9)
    assert (sealed.first, sealed.last) == (Position(299, 1), Position(299, 1))


def test_a_gap_does_not_make_the_archive_older() -> None:
    made = builder(Begun(Position(100, 5), 101, time_us=7))
    assert made.tell_gap(Gap(101, 300, "slot_moved"), 5).time_us == 7


def versions_of(sealed: Sealed) -> list[tuple[int, int]]:
    """The versions of rows, and of the tables that their file describes."""
    described = [table.version for table in sealed.tables]
    return list(zip([row["schema_version"] for row in rows(sealed)], described, strict=True))


def test_another_shape_is_another_version_and_the_same_shape_is_not() -> None:
    made = builder()
    fill(made, 100, range(1))
    first = made.seal()
    assert versions_of(first) == [(1, 1)]
    made.learn(described(narrow()))
    fill(made, 200, range(1))
    assert versions_of(made.seal()) == [(1, 1)], "the relation came again as it was"
    made.learn(described(relation()))
    made.feed(1, begin(300))
    made.feed(1, messages.Insert(TABLE, (b"1", None)))
    made.feed(1, commit(300))
    wider = made.seal()
    assert versions_of(wider) == [(2, 2)]
    later = builder(Begun(Position(300, 0), 301, versions=wider.versions))
    later.learn(described(relation()))
    later.feed(1, begin(400))
    later.feed(1, messages.Insert(TABLE, (b"1", None)))
    later.feed(1, commit(400))
    assert versions_of(later.seal()) == [(2, 2)], "a restart keeps the versions"


def test_the_digest_of_a_shape_never_changes() -> None:
    """Files have it: another digest would be another version of every table after an update."""
    made = builder()
    fill(made, 100, range(1))
    shape = b'[7,["id"],[["id",23,-1]]]'
    assert made.seal().versions == {'["public","t"]': (1, hashlib.sha256(shape).hexdigest()[:16])}


def test_the_positions_of_a_transaction_are_not_taken_for_more_of_the_one_before() -> None:
    """Its first row has the ordinal that would have been the next."""
    made = builder()
    made.learn(described(relation(EXCLUDED, "x"), selection=Selection(exclude=("public.x",))))
    fill(made, 100, range(1))
    made.feed(1, begin(200, xid=71, time_us=5))
    made.feed(1, messages.Insert(EXCLUDED, (b"1", b"")))
    fill_one(made, 1)
    made.feed(1, commit(200))
    sealed = made.seal()
    assert places(sealed) == [(100, 0), (200, 1)]
    assert [row["xid"] for row in rows(sealed)] == [70, 71]


def test_what_the_catalog_adds_makes_no_new_version() -> None:
    made = builder()
    fill(made, 100, range(1))
    made.seal()
    made.learn(described(narrow(), TableFacts(type_names={(INT, -1): "integer"})))
    fill(made, 200, range(1))
    sealed = made.seal()
    assert versions_of(sealed) == [(1, 1)]
    (table,) = sealed.tables
    assert table.columns[0].type_name == "integer"


def test_a_shape_that_changes_inside_a_file_gives_rows_of_two_versions() -> None:
    made = builder()
    fill(made, 100, range(2))
    made.learn(described(relation()))
    made.feed(1, begin(200))
    made.feed(1, messages.Insert(TABLE, (b"1", None)))
    made.feed(1, messages.Insert(TABLE, (b"2", None)))
    made.feed(1, commit(200))
    sealed = made.seal()
    assert [row["schema_version"] for row in rows(sealed)] == [1, 1, 2, 2]
    assert [(table.version, len(table.columns)) for table in sealed.tables] == [(1, 1), (2, 2)]


def test_describing_one_table_again_leaves_the_others_as_they_were() -> None:
    made = builder()
    made.learn(described(narrow(OTHER)))
    for relation_id in (TABLE, OTHER):
        made.feed(1, begin(relation_id))
        made.feed(1, messages.Insert(relation_id, (b"1",)))
        made.feed(1, commit(relation_id))
    made.learn(described(narrow(OTHER)))
    made.feed(1, begin(100))
    assert made.insert(1, inserted(2, TABLE)), "its kind is still known"
    assert not made.insert(1, inserted(2, OTHER)), "its kind has to be found out again"


def test_a_change_that_the_archive_stores_nothing_of_is_passed_over() -> None:
    made = builder()
    made.feed(1, messages.Origin(1, "elsewhere"))
    made.feed(1, begin(100))
    # Only its key would be in the message, and there is none.
    made.feed(1, messages.Delete(TABLE, None, None))
    made.feed(1, commit(100))
    sealed = made.seal()
    assert (sealed.rows, sealed.end_lsn) == (0, 101)


def test_the_open_file_holds_little_more_than_its_rows_texts() -> None:
    """orjson's own bytes would hold 4 KiB and more for each text, even for a short one."""
    made = builder(limits=Limits(100_000, 1 << 30))
    made.learn(described(relation()))
    # Fewer than a chunk, which is where texts become columns.
    count, wide = 5_000, b"x" * 1_500
    tracemalloc.start()
    try:
        made.feed(1, begin(100))
        for number in range(count):
            new = (str(number).encode(), wide)
            made.feed(1, messages.Update(TABLE, (b"1", None), None, new))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.rows == count
    # Its values, its key, the one before it, and Python's objects for them.
    assert held < count * (len(wide) + 1_000)


@pytest.mark.parametrize(
    ("identity", "key"), [("f", "id"), ("n", "id"), ("i", "note"), ("d", "note")]
)
def test_the_catalog_names_the_key_where_the_identity_is_none(identity: str, key: str) -> None:
    columns = tuple(
        replace(column, is_key=identity == "f" or (identity != "n" and column.name == "note"))
        for column in relation().columns
    )
    made = replace(relation(), replica_identity=identity, columns=columns)
    assert described(made, TableFacts(("id",))).key == (key,)
