"""A mirror's book of its tables, and the plans for their changes: pure, with a target in memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumer import Watermark
from headrace.consumer.event import Event, of_message
from headrace.contract.exact import ExactText
from headrace.lsn import Position
from headrace.mirror.event_steps import Gone, Resync, gone, reshaped, row_steps, shape
from headrace.mirror.mirror_state import (
    STALE,
    Book,
    FormatError,
    has_passed,
    identity_of,
    lanes_of,
    seen_by,
    tables_of,
)
from headrace.mirror.rules import TableRules
from headrace.mirror.table import BootstrapRun, Column, Phase, Table, TableState
from headrace.mirror.target import (
    AlterTable,
    CarryOver,
    CreateTable,
    DeleteRow,
    DropTable,
    Filled,
    InsertRows,
    SamePlaceError,
    SwapTables,
    TargetError,
    TruncateTable,
    UpdateRow,
    finds_one,
    split,
)
from tests.support.memory_target import Memory


def row_step(event: Event, table: Table) -> Any:
    """The only step of a change."""
    steps = row_steps(event, table)
    if isinstance(steps, Resync):
        return steps
    (step,) = steps
    return step


ID = Column("id", "integer")
NAME = Column("name", "text")
USERS = Table("public", "a", (ID, NAME), ("id",), ("id",))


def mark(lsn: int, stream_seq: int, seq: int = 0) -> Watermark:
    return Watermark(Position(lsn, seq), stream_seq)


def body(operation: str = "INSERT", lsn: int = 10, seq: int = 0, **more: Any) -> dict[str, Any]:
    tx = {"xid": more.pop("xid", lsn), "lsn": lsn, "ts": None, "seq": seq, "last": True}
    names = {"table": "a", "schema": "public", "source": "s", "operation": operation}
    return {**names, "data": {"id": 1}, "tx": tx, **more}


def event(stream_seq: int, operation: str = "INSERT", **more: Any) -> Event:
    (made,) = of_message(json.dumps(body(operation, **more)).encode(), "cdc.a.x", stream_seq)
    return made


def test_a_row_that_entered_a_row_filter_without_all_its_values_makes_the_table_be_copied() -> None:
    entered = event(1, data={"id": 1}, unchanged=["name"])
    assert isinstance(row_step(entered, USERS), Resync)
    left_out = USERS.ruled(TableRules(columns=("id",)))
    assert isinstance(row_step(entered, left_out), InsertRows)
    assert row_step(event(1, data={"id": 1}), USERS) == InsertRows(USERS, ({"id": 1},))


# How far a mirror is.


def test_everything_seen_is_passed() -> None:
    lanes = {"": mark(0, 7), "s": mark(10, 5)}
    assert seen_by(lanes) == 7
    assert has_passed(lanes, event(7, lsn=99))
    assert not has_passed(lanes, event(8, lsn=99))
    assert seen_by({"s": mark(10, 5), "t": mark(1, 6)}) == 6
    assert seen_by({}) == 0


def test_beyond_what_was_seen_positions_tell() -> None:
    lanes = {"": mark(0, 3), "s": mark(10, 9, seq=2)}
    assert has_passed(lanes, event(8, lsn=10, seq=2))
    assert not has_passed(lanes, event(8, lsn=10, seq=3))
    assert has_passed(lanes, event(99, lsn=9))
    assert not has_passed(lanes, event(8, lsn=10, source="t"))


def test_events_outside_transactions_are_compared_by_their_place_in_the_stream() -> None:
    lanes = {"": mark(0, 3), "s": mark(10, 9)}
    assert has_passed(lanes, event(9, "SCHEMA", lsn=99, xid=0))
    assert not has_passed(lanes, event(10, "SCHEMA", lsn=5, xid=0))


def test_an_earlier_versions_lane_of_a_table_counts_for_its_arrays() -> None:
    (one,) = of_message(json.dumps([body(lsn=20)]).encode(), "cdc.a.batch", 8)
    lanes = {"": mark(0, 3), "s": mark(10, 9), "s/public.a": mark(20, 9)}
    assert has_passed(lanes, one)
    (later,) = of_message(json.dumps([body(lsn=21)]).encode(), "cdc.a.batch", 8)
    assert not has_passed(lanes, later)
    (shape_event,) = of_message(json.dumps([body("SCHEMA", lsn=20)]).encode(), "cdc.a.batch", 8)
    assert not has_passed(lanes, shape_event)


# The book.


def opened(target: Memory, *, fresh: bool = False) -> Book:
    book = Book(target, fresh=fresh)
    asyncio.run(book.open())
    return book


def committed(book: Book) -> None:
    asyncio.run(book.commit())


def followed(*names: str, **more: Any) -> dict[str, str]:
    states = [TableState("public", name, Phase.FOLLOWING, USERS, **more) for name in names]
    return {f"table {state.token}": state.encode() for state in states}


RUN = BootstrapRun(
    "snap", 40, 1, 9, Table("public", "a", (ID,), staging=True), version=3, source="t"
)


def test_a_new_target_gets_an_identity_with_its_first_commit() -> None:
    target = Memory()
    book = opened(target)
    assert identity_of(target.marks) is None
    before = book.identity
    asyncio.run(book.roll_back())
    assert book.identity == before
    committed(book)
    assert identity_of(target.marks) == before
    assert opened(target).identity == before
    assert opened(Memory()).identity != before


def test_a_target_of_another_format_is_refused() -> None:
    with pytest.raises(FormatError, match="format 2, this version reads 1"):
        opened(Memory(mirror='{"format": 2, "id": "x"}'))


def test_lanes_and_tables_are_stored_as_they_change() -> None:
    target = Memory()
    book = opened(target)
    book.keep_lanes({"": mark(0, 5), "s": mark(10, 4)})
    committed(book)
    assert lanes_of(target.marks) == {"": mark(0, 5), "s": mark(10, 4)}
    book.keep_lanes({"": mark(0, 6)})
    committed(book)
    assert (book.seen_seq, book.reached_seq) == (6, 6)
    assert lanes_of(target.marks) == {"": mark(0, 6)}
    book.keep_lanes({"": mark(0, 6), "s": mark(10, 9)})
    assert (book.seen_seq, book.reached_seq) == (6, 6), "not committed"
    assert opened(target).lanes == {"": mark(0, 6)}, "not committed"


def test_a_wanted_table_keeps_its_rows_and_makes_readers_wait() -> None:
    target = Memory(**followed("a", "b", source="s"))
    book = opened(target)
    book.keep_lanes({"s": mark(70, 5)})
    committed(book)
    assert (book.is_moving, book.stands, book.awaited) == (True, False, [])
    number = book.run_of("a")
    book.news.clear()
    book.want("public", "a", "why", diverged_seq=3)
    state = book.tables["a"]
    assert (state.phase, state.live, state.why) == (Phase.WANTED, USERS, "why")
    assert (state.awaited, state.until, state.diverged_seq) == (True, 70, 3)
    assert book.run_of("a") != number
    assert book.news.is_set()
    assert (book.stands, book.awaited) == (True, [state])
    # Wanted again, by an earlier gap.
    book.want("public", "a", "again", diverged_seq=2, lsn=99)
    assert (book.tables["a"].until, book.tables["a"].diverged_seq) == (70, 3)
    committed(book)
    assert tables_of(target.marks)["a"].why == "again"


def test_a_new_table_makes_nobody_wait() -> None:
    book = opened(Memory(**followed("a")))
    book.want("public", "b", "new")
    assert not book.tables["b"].awaited
    assert not book.stands
    book.want("public", "c", "renamed", awaited=True)
    assert book.stands


def test_with_fresh_tables_nobody_waits() -> None:
    book = opened(Memory(**followed("a", "b")), fresh=True)
    book.want("public", "a", "why", lsn=33, awaited=True)
    assert (book.awaited, book.stands, book.tables["a"].awaited) == ([], False, False)
    assert book.tables["a"].until == 33


def test_a_loaded_table_is_shown_with_its_snapshots_place() -> None:
    book = opened(Memory(**followed("a", "b")))
    book.want("public", "a", "why", diverged_seq=3)
    loaded = TableState("public", "a", Phase.LOADED, USERS, 5, 1, RUN, "why", awaited=True)
    book.put(loaded)
    assert (book.loaded, book.stands, book.awaited) == ([loaded], False, [loaded])
    assert book.show(loaded) == [SwapTables(RUN.staged)]
    state = book.tables["a"]
    assert (state.phase, state.since, state.version) == (Phase.FOLLOWING, 40, 3)
    assert state.live == Table("public", "a", (ID,))
    assert (state.source, state.run, state.awaited, state.diverged_seq) == ("t", None, False, 0)
    assert (book.loaded, book.awaited) == ([], [])


def test_rows_that_only_the_mirror_has_are_carried_over_before_readers_see_the_copy() -> None:
    marked = TableRules(soft_delete="deleted_at")
    before, staged = (replace(one, rules=marked) for one in (USERS, RUN.staged))
    loaded = TableState(
        "public", "a", Phase.LOADED, before, run=replace(RUN, staged=staged), rules=marked
    )
    book = opened(Memory(**followed("b")))
    book.put(loaded)
    carried, *rest = book.show(loaded)
    assert isinstance(carried, CarryOver)
    assert (carried.table, carried.before) == (staged, before)
    assert rest == [SwapTables(staged)]


def test_two_tables_have_no_place_in_common_unless_one_is_gone() -> None:
    book = opened(Memory(**followed("a")))
    as_a = replace(USERS, name="b", rules=TableRules(place=("public", "a")))
    book.check_place(USERS)
    with pytest.raises(SamePlaceError):
        book.check_place(as_a)
    book.forget(book.tables["a"])
    book.check_place(as_a)


def test_readers_see_the_sources_of_tables_and_of_whole_lanes() -> None:
    book = opened(Memory(**followed("a", source="t")))
    book.put(TableState("public", "b", Phase.WANTED, source="u"))
    book.keep_lanes({"": mark(0, 3), "s": mark(10, 9), "v/public.a": mark(20, 9)})
    committed(book)
    assert book.sources == {"s", "t"}


def test_a_forgotten_table_has_no_rows_and_an_outdated_past() -> None:
    book = opened(Memory(**followed("a", "b")))
    number = book.run_of("a")
    book.want("public", "a", "why", diverged_seq=3)
    book.forget(book.tables["a"], 17)
    state = book.tables["a"]
    assert (state.phase, state.live, state.run, state.awaited) == (Phase.GONE, None, None, False)
    assert (state.outdated_seq, state.diverged_seq) == (17, 0)
    assert book.run_of("a") == number + 2
    assert not book.stands
    book.forget(book.tables["b"])
    assert book.tables["b"].outdated_seq == 0


def test_a_table_is_parked_unless_it_is_the_last_one() -> None:
    target = Memory(**followed("a", "b"))
    book = opened(target)
    error = TargetError("no room")
    asyncio.run(book.park("a", error))
    assert book.tables["a"].phase is Phase.PARKED
    assert "no room" in book.tables["a"].why
    assert tables_of(target.marks)["a"].phase is Phase.PARKED
    with pytest.raises(TargetError, match="no room"):
        asyncio.run(book.park("b", error))
    book.forget(book.tables["a"])
    with pytest.raises(TargetError, match="no room"):
        asyncio.run(book.park("b", error))
    # Readers see an older moment of it already.
    asyncio.run(book.roll_back())
    book.want("public", "a", "again")
    assert not book.tables["a"].awaited


def test_a_mirror_that_fell_behind_begins_again_with_every_table() -> None:
    target = Memory(**followed("a"), **followed("b", outdated_seq=9))
    book = opened(target)
    book.put(TableState("public", "gone", Phase.GONE, outdated_seq=9))
    book.put(TableState("public", "new", why="published"))
    book.keep_lanes({"": mark(0, 5), "s": mark(10, 4)})
    book.begin_at(70)
    committed(book)
    assert book.lanes == {"": mark(0, 70)}
    found = {name: (state.phase, state.why) for name, state in book.tables.items()}
    assert found == {
        "a": (Phase.WANTED, "fallen behind"),
        "b": (Phase.WANTED, "fallen behind"),
        "gone": (Phase.GONE, "new"),
        "new": (Phase.WANTED, "published"),
    }
    assert book.tables["gone"].outdated_seq == 0
    assert book.tables["b"].outdated_seq == 0


def test_reports_of_a_table_are_counted_each() -> None:
    book = opened(Memory())
    assert book.told_of("a") == 0
    book.tell_of("a")
    book.tell_of("a")
    assert (book.told_of("a"), book.told_of("b")) == (2, 0)


def test_opening_again_voids_the_bootstraps_of_the_life_before() -> None:
    target = Memory(**followed("a"))
    book = opened(target)
    number = book.run_of("a")
    book.subscribed = None
    asyncio.run(book.open())
    assert book.run_of("a") != number
    assert book.subscribed == frozenset()


def test_a_refused_write_is_rolled_back_before_anybody_else_writes() -> None:
    target = Memory()
    book = opened(target)
    target.refuses = TargetError("no")
    loads = target.loads
    with pytest.raises(TargetError):
        asyncio.run(book.write([TruncateTable(USERS)]))
    assert target.loads == loads + 1
    asyncio.run(book.write([]))


def stale_rows(target: Memory) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for step in target.steps:
        if step.table != STALE:
            continue
        match step:
            case InsertRows(_, new):
                rows += [tuple(row.values()) for row in new]
            case DeleteRow(_, where):
                rows.remove(tuple(where.values()))
            case DropTable():
                rows = [("dropped",)]
    return rows


def test_older_tables_are_named_as_they_come_and_go() -> None:
    target = Memory(**followed("a", "b", source="s"))
    book = opened(target, fresh=True)
    committed(book)
    assert target.steps == [CreateTable(STALE)]
    committed(book)
    assert len(target.steps) == 1, "only changes are written"
    book.want("public", "a", "why", lsn=0x20)
    committed(book)
    assert stale_rows(target) == [("public", "a", "0/20", "why")]
    book.want("public", "a", "other", lsn=0x20)
    book.want("public", "b", "why", lsn=0x30)
    committed(book)
    assert stale_rows(target) == [("public", "a", "0/20", "other"), ("public", "b", "0/30", "why")]
    book.forget(book.tables["a"])
    committed(book)
    assert stale_rows(target) == [("public", "b", "0/30", "why")]
    # After a restart the list is known; without the option it goes.
    again = opened(target, fresh=True)
    steps = len(target.steps)
    committed(again)
    assert len(target.steps) == steps
    committed(opened(target))
    assert stale_rows(target) == [("dropped",)]
    assert "stale" not in target.marks
    committed(opened(target))
    assert stale_rows(target) == [("dropped",)]


# Plans.


def told(*columns: str, **more: Any) -> dict[str, Any]:
    kinds = [column.split(":") for column in columns]
    return {
        "table": "a",
        "schema": "public",
        "columns": [{"name": name, "data_type": kind} for name, kind in kinds],
        "primary_key": ["id"],
        "replica_identity": "d",
        "changes": [],
        "resync": False,
        **more,
    }


def test_a_shape_has_the_events_identity_or_the_one_of_its_key() -> None:
    columns = ("id:integer", "name:text")
    assert shape(told(*columns)).identity == ("id",)
    assert shape(told(*columns, identity=["name"])).identity == ("name",)
    assert shape(told(*columns, replica_identity="f")).identity == ("id", "name")
    assert shape(told(*columns, schema="app.a")).schema == "app"
    assert shape(told(*columns)) == USERS


def test_an_added_column_has_its_value_in_all_rows() -> None:
    added = {"change": "column_added", "column": "n", "filled": 7, "filled_text": "7"}
    step = reshaped(USERS, told("id:integer", "name:text", "n:integer", changes=[added]))
    assert isinstance(step, AlterTable)
    assert step.filled == {"n": Filled(7, "7")}
    document = {**added, "filled": 1.5, "filled_text": "1.50"}
    step = reshaped(USERS, told("id:integer", "name:text", "n:jsonb", changes=[document]))
    assert isinstance(step, AlterTable)
    assert step.filled["n"].value == ExactText("1.50")
    assert isinstance(step.filled["n"].value, ExactText)
    # One that the mirror has already keeps its rows' values.
    has = Table("public", "a", (ID, NAME, Column("n", "integer")), ("id",), ("id",))
    step = reshaped(has, told("id:integer", "n:integer", changes=[added]))
    assert isinstance(step, AlterTable)
    assert step.filled == {}


def test_columns_keep_their_order_and_new_ones_follow() -> None:
    step = reshaped(USERS, told("x:text", "name:text", "id:integer"))
    assert isinstance(step, AlterTable)
    assert [column.name for column in step.after.columns] == ["id", "name", "x"]
    assert step.renamed == {}


def test_an_event_that_asks_for_a_copy_says_why() -> None:
    changes = [{"change": "b"}, {"change": "a"}, {"change": "b"}]
    assert reshaped(USERS, told(resync=True, changes=changes)) == Resync("a, b")
    assert reshaped(USERS, told(resync=True)) == Resync("schema event")


def test_a_rename_that_the_mirror_has_is_not_repeated() -> None:
    renamed = {"change": "column_renamed", "from": "old", "column": "name"}
    assert reshaped(USERS, told("id:integer", "name:text", changes=[renamed])) is None
    before = Table("public", "a", (ID, Column("old", "text")), ("id",), ("id",))
    step = reshaped(before, told("id:integer", "name:text", changes=[renamed]))
    assert isinstance(step, AlterTable)
    assert step.renamed == {"name": "old"}


def test_a_new_name_that_another_column_has_asks_for_a_copy() -> None:
    renamed = {"change": "column_renamed", "from": "name", "column": "id"}
    found = reshaped(USERS, told("id:text", changes=[renamed]))
    assert isinstance(found, Resync)


def test_a_type_that_becomes_known_asks_for_a_copy() -> None:
    unknown = Table("public", "a", (ID, Column("name", "mood")), ("id",), ("id",))
    assert isinstance(reshaped(unknown, told("id:integer", "name:text")), Resync)
    assert isinstance(reshaped(USERS, told("id:integer", "name:mood")), Resync)
    assert isinstance(reshaped(unknown, told("id:integer")), AlterTable), "it is dropped"
    other = Table("public", "a", (ID, Column("name", "humor")), ("id",), ("id",))
    assert isinstance(reshaped(other, told("id:integer", "name:mood")), AlterTable)


def test_a_table_without_columns_is_gone_or_renamed() -> None:
    renamed = {"change": "table_renamed", "to": "app.x.y"}
    assert gone(told(changes=[renamed])) == Gone(("app", "x.y"))
    parts = {"to_schema": "app.x", "to_table": "y"}
    assert gone(told(changes=[{**renamed, **parts}])) == Gone(("app.x", "y"))
    assert gone(told(changes=[{"change": "table_renamed"}])) == Gone(None)
    assert gone(told("id:integer", changes=[renamed])) is None


@pytest.mark.parametrize(
    ("operation", "more", "step"),
    [
        ("TRUNCATE", {}, TruncateTable(USERS)),
        ("INSERT", {}, InsertRows(USERS, ({"id": 1},))),
        ("UPDATE", {"data": {"id": 2}, "old": {"id": 1}}, UpdateRow(USERS, {"id": 1}, {"id": 2})),
        ("UPDATE", {}, UpdateRow(USERS, {"id": 1}, {"id": 1})),
        ("DELETE", {}, DeleteRow(USERS, {"id": 1})),
        ("DELETE", {"old": {"id": 3}}, DeleteRow(USERS, {"id": 3})),
        ("UPDATE", {"data": {"name": "x"}}, Resync("a row that names no key")),
        ("UPDATE", {"old": {}}, Resync("a row that names no key")),
        ("INSERT", {"data": {"n": 1}}, Resync("a row of another shape")),
        ("UPDATE", {"old": {"n": 1}}, Resync("a row of another shape")),
    ],
)
def test_a_row_event_is_one_step(operation: str, more: dict[str, Any], step: Any) -> None:
    assert row_step(event(1, operation, **more), USERS) == step


def test_exact_texts_take_the_place_of_native_values() -> None:
    more = {"data": {"id": 1, "name": 1.5}, "exact": {"name": "1.50"}}
    step = row_step(
        event(1, "UPDATE", **more, old={"name": 2.5}, exact_old={"name": "2.50"}), USERS
    )
    assert step == UpdateRow(USERS, {"name": "2.50"}, {"id": 1, "name": "1.50"})
    assert isinstance(step.data["name"], ExactText)
    assert isinstance(step.where["name"], ExactText)


def test_the_primary_key_identifies_where_the_identity_was_not_sent() -> None:
    table = Table("public", "a", (ID, NAME), ("id",), ("name",))
    assert row_step(event(1, "DELETE"), table) == DeleteRow(table, {"id": 1})
    assert row_step(event(1, "DELETE", data={"id": 1, "name": "x"}), table) == DeleteRow(
        table, {"name": "x"}
    )


# Keys.


def test_a_key_finds_one_row_unless_it_is_the_whole_row_or_more_was_sent() -> None:
    def finds(table: Table, where: dict[str, Any]) -> bool:
        return finds_one(table, where, *split(table, where))

    keyless = replace(USERS, primary_key=(), identity=())
    whole = replace(USERS, primary_key=("id", "name"))
    assert finds(USERS, {"id": 1})
    assert not finds(USERS, {"id": 1, "name": "x"})
    assert not finds(keyless, {"id": 1})
    assert not finds(whole, {"id": 1, "name": "x"})


def test_a_table_is_searched_by_its_key_and_its_identity() -> None:
    def finders(primary_key: tuple[str, ...], identity: tuple[str, ...]) -> Any:
        return Table("public", "a", (ID, NAME), primary_key, identity).finders

    assert finders(("id",), ("id",)) == (("id",),)
    assert finders(("id",), ("name",)) == (("id",), ("name",))
    assert finders((), ("name",)) == (("name",),)
    assert finders((), ("id", "name")) == ()
    assert finders(("id",), ("id", "name")) == (("id",),)
    assert finders((), ()) == ()
    # A key with a column that the mirror lacks finds nothing.
    assert finders(("other",), ("name",)) == (("name",),)


def test_a_rows_values_are_divided_into_those_that_find_and_those_that_tell_apart() -> None:
    where = {"name": "x", "id": 1}
    assert split(USERS, where) == ({"id": 1}, {"name": "x"})
    assert split(USERS, {"name": "x"}) == ({"name": "x"}, {})
    assert split(USERS, {"id": 1}) == ({"id": 1}, {})
