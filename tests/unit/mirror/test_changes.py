"""Events change a mirror's tables and their states, without any server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumer.event import Event, of_message
from headrace.mirror.changes import Changes, CopyWantedError
from headrace.mirror.mirror_state import Book
from headrace.mirror.table import BootstrapRun, Column, Phase, Table, TableState
from headrace.mirror.target import AlterTable, DropTable, InsertRows, Step
from tests.support.memory_target import Memory

ID = Column("id", "integer")
NAME = Column("name", "text")
LIVE = Table("public", "a", (ID, NAME), ("id",), ("id",))
STAGED = replace(LIVE, staging=True)
RUN = BootstrapRun("snap", 100, 1, 1, STAGED, version=3, source="s")
# Shown since a snapshot at 50; loaded again from one at 100.
FOLLOWED = TableState("public", "a", Phase.FOLLOWING, LIVE, 50, 3, source="s")
LOADED = replace(FOLLOWED, phase=Phase.LOADED, run=RUN)
PARKED = replace(FOLLOWED, phase=Phase.PARKED)
GONE = TableState("public", "a", Phase.GONE, version=3, outdated_seq=7)
OTHER = TableState("public", "b", Phase.FOLLOWING, replace(LIVE, name="b"), 10, 1, source="s")


def event(operation: str, lsn: int = 200, seq: int = 9, **more: Any) -> Event:
    tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": 0, "last": True}
    names = {"table": "a", "schema": "public", "source": "s", "operation": operation}
    body = {**names, "data": {"id": 1, "name": "x"}, "tx": tx, **more}
    (made,) = of_message(json.dumps(body).encode(), "cdc.a.x", seq)
    return made


def schema(*columns: Column, version: int = 4, **more: Any) -> Event:
    shape = [{"name": one.name, "data_type": one.data_type} for one in columns]
    about = {"columns": shape, "primary_key": ["id"], "identity": ["id"], "replica_identity": "d"}
    return event("SCHEMA", **{**about, "changes": [], "resync": False, "version": version, **more})


def gap(lsn: int, reason: str = "slot_moved", seq: int = 9, source: str = "s") -> Event:
    return event("GAP", lsn, seq, table="", up_to=f"0/{lsn:X}", reason=reason, source=source)


def book_of(*states: TableState, fresh: bool = False) -> Book:
    book = Book(Memory(**{f"table {one.token}": one.encode() for one in states}), fresh=fresh)
    asyncio.run(book.open())
    return book


def applied(book: Book, *events: Event, every_table: bool = True) -> list[Step]:
    return Changes(book, every_table=every_table).of(events)


def wanted(state: TableState, one: Event) -> list[str]:
    """The tables that an event wants copied, and nothing else happens."""
    book = book_of(state, OTHER)
    with pytest.raises(CopyWantedError) as found:
        applied(book, one)
    assert book.tables["a"] == state, "a rollback follows"
    # If tables may differ in age, the copy is ordered immediately.
    fresh = book_of(state, OTHER, fresh=True)
    assert applied(fresh, one) == []
    names = [name for _, name in found.value.names]
    assert [one.name for one in fresh.tables.values() if one.phase is Phase.WANTED] == names
    return names


# Rows.


@pytest.mark.parametrize(
    ("state", "lsn"), [(FOLLOWED, 49), (LOADED, 99), (PARKED, 200), (GONE, 200)]
)
def test_a_row_that_a_copy_contains_or_will_contain_changes_nothing(
    state: TableState, lsn: int
) -> None:
    book = book_of(state)
    assert applied(book, event("INSERT", lsn)) == []
    assert book.tables["a"] == state


@pytest.mark.parametrize(("state", "lsn", "table"), [(FOLLOWED, 50, LIVE), (LOADED, 100, STAGED)])
def test_a_row_from_behind_the_copy_is_applied(state: TableState, lsn: int, table: Table) -> None:
    row = {"id": 1, "name": "x"}
    assert applied(book_of(state), event("INSERT", lsn)) == [InsertRows(table, (row,))]


def test_a_row_of_another_shape_wants_a_copy() -> None:
    row = event("INSERT", data={"other": 1})
    assert wanted(FOLLOWED, row) == ["a"]
    # Nobody sees a copy yet, unless readers saw the table and others are there to be shown with.
    assert wanted(replace(LOADED, awaited=True), row) == ["a"]
    for states in ((LOADED, OTHER), (replace(LOADED, awaited=True),)):
        book = book_of(*states)
        assert applied(book, row) == []
        assert book.tables["a"].phase is Phase.WANTED
        assert book.tables["a"].why == "a row of another shape"


def test_an_unknown_table_is_copied_if_the_mirror_has_every_table() -> None:
    for one in (event("INSERT"), schema(ID)):
        book = book_of(OTHER)
        assert applied(book, one, every_table=False) == []
        assert set(book.tables) == {"b"}
        assert applied(book, one) == []
        assert book.tables["a"].phase is Phase.WANTED


def test_a_message_concerns_no_table() -> None:
    book = book_of(OTHER)
    assert applied(book, event("MESSAGE", table="", schema="")) == []
    assert set(book.tables) == {"b"}


# Shapes.


def test_a_schema_event_alters_the_table_or_its_copy() -> None:
    added = schema(ID, NAME, Column("new", "text"))
    book = book_of(FOLLOWED)
    (step,) = applied(book, added)
    assert isinstance(step, AlterTable)
    assert (book.tables["a"].live, book.tables["a"].version) == (step.after, 4)
    # The same shape again has only a new version.
    assert applied(book, schema(*step.after.columns, version=5)) == []
    assert (book.tables["a"].live, book.tables["a"].version) == (step.after, 5)
    book = book_of(LOADED)
    (step,) = applied(book, added)
    assert isinstance(step, AlterTable)
    run = book.tables["a"].run
    assert run is not None
    assert (run.staged, run.version, book.tables["a"].live) == (step.after, 4, LIVE)


@pytest.mark.parametrize(
    ("lsn", "version", "columns", "is_outdated"),
    [
        # From before the copy, which was created with an older shape than that.
        (49, 4, (ID, NAME, Column("new", "text")), True),
        (49, 3, (ID, NAME, Column("new", "text")), False),
        (49, 4, (NAME, ID), False),
    ],
)
def test_an_older_event_of_a_newer_shape_wants_a_copy(
    lsn: int, version: int, columns: tuple[Column, ...], *, is_outdated: bool
) -> None:
    one = schema(*columns, version=version, lsn=lsn)
    if is_outdated:
        assert wanted(FOLLOWED, one) == ["a"]
    else:
        book = book_of(FOLLOWED)
        assert applied(book, one) == []
        assert book.tables["a"] == FOLLOWED


def test_a_shape_that_no_statement_reaches_wants_a_copy() -> None:
    assert wanted(FOLLOWED, schema(ID, NAME, resync=True)) == ["a"]


@pytest.mark.parametrize(
    ("state", "version", "seq", "is_wanted"),
    [
        (PARKED, 4, 9, True),
        (PARKED, 3, 9, False),
        (GONE, 3, 8, True),
        (GONE, 4, 7, False),
    ],
)
def test_a_parked_table_waits_for_another_shape_and_a_gone_one_for_a_later_event(
    state: TableState, version: int, seq: int, *, is_wanted: bool
) -> None:
    book = book_of(state, OTHER)
    told = book.told_of("a")
    assert applied(book, schema(ID, NAME, version=version, seq=seq)) == []
    assert (book.tables["a"].phase is Phase.WANTED) == is_wanted
    # A refusal of its snapshot may be outdated.
    assert (book.told_of("a") > told) == (seq > 7)


# Ends of tables.

DROPPED: dict[str, Any] = {"changes": [{"change": "table_dropped"}]}


def test_a_dropped_table_goes_with_its_copy() -> None:
    for state, dropped in ((FOLLOWED, [LIVE]), (LOADED, [LIVE, STAGED])):
        book = book_of(state)
        assert applied(book, schema(**DROPPED)) == [DropTable(table) for table in dropped]
        assert book.tables["a"].phase is Phase.GONE
        assert applied(book, schema(**DROPPED)) == []


@pytest.mark.parametrize(
    ("state", "lsn", "is_gone"),
    [(FOLLOWED, 49, False), (FOLLOWED, 50, True), (LOADED, 99, False), (LOADED, 100, True)],
)
def test_a_drop_from_before_the_copy_is_of_an_earlier_table(
    state: TableState, lsn: int, *, is_gone: bool
) -> None:
    book = book_of(state)
    applied(book, schema(lsn=lsn, **DROPPED))
    assert (book.tables["a"].phase is Phase.GONE) == is_gone


def renamed(**more: Any) -> Event:
    return schema(changes=[{"change": "table_renamed", "to": "public.c"}], **more)


def test_a_renamed_table_is_copied_under_its_new_name_before_readers_lose_the_old_one() -> None:
    book = book_of(FOLLOWED)
    with pytest.raises(CopyWantedError) as found:
        applied(book, renamed())
    assert found.value.names == [("public", "c")]
    for state, fresh in ((FOLLOWED, True), (replace(LOADED, live=None), False)):
        book = book_of(state, fresh=fresh)
        assert len(applied(book, renamed())) == 1
        assert (book.tables["a"].phase, book.tables["c"].phase) == (Phase.GONE, Phase.WANTED)


@pytest.mark.parametrize(
    ("known", "is_wanted"),
    [
        (replace(GONE, name="c", outdated_seq=8), True),
        (replace(GONE, name="c", outdated_seq=9), False),
        (replace(OTHER, name="c"), False),
    ],
)
def test_a_new_name_that_is_known_is_not_copied_twice(
    known: TableState, *, is_wanted: bool
) -> None:
    book = book_of(FOLLOWED, known, fresh=True)
    applied(book, renamed())
    assert (book.tables["c"].phase is Phase.WANTED) == is_wanted


def test_a_rename_from_before_the_copy_starts_nothing() -> None:
    book = book_of(FOLLOWED)
    assert applied(book, renamed(lsn=49)) == []
    assert set(book.tables) == {"a"}


# Gaps.


@pytest.mark.parametrize(
    ("one", "tables"),
    [
        (gap(50), ["b"]),
        (gap(51), ["a", "b"]),
        (gap(5), []),
        (gap(51, source="t"), []),
        # Its LSN says nothing, since LSNs get another meaning.
        (gap(5, "source_diverged"), ["a", "b"]),
    ],
)
def test_a_gap_wants_copies_of_the_tables_that_are_older(one: Event, tables: list[str]) -> None:
    if tables:
        assert wanted(FOLLOWED, one) == tables
    else:
        book = book_of(FOLLOWED, OTHER)
        assert applied(book, one) == []
        assert book.tables == {"a": FOLLOWED, "b": OTHER}


@pytest.mark.parametrize(("diverged_seq", "is_wanted"), [(8, True), (9, False)])
def test_a_table_is_copied_once_for_a_source_that_diverged(
    diverged_seq: int, *, is_wanted: bool
) -> None:
    book = book_of(replace(LOADED, diverged_seq=diverged_seq))
    changes = Changes(book, every_table=True)
    changes.of([gap(5, "source_diverged")])
    assert (book.tables["a"].phase is Phase.WANTED) == is_wanted
    assert book.tables["a"].diverged_seq == 9
    assert changes.diverged == {"s"}


@pytest.mark.parametrize(("lsn", "is_wanted"), [(100, False), (101, True)])
def test_a_copy_is_as_old_as_its_snapshot(lsn: int, *, is_wanted: bool) -> None:
    book = book_of(LOADED)
    applied(book, gap(lsn))
    assert (book.tables["a"].phase is Phase.WANTED) == is_wanted
    assert book.tables["a"].diverged_seq == 0


def test_with_fresh_tables_readers_see_a_table_as_of_the_event_that_wants_its_copy() -> None:
    book = book_of(FOLLOWED, fresh=True)
    applied(book, event("INSERT", data={"other": 1}))
    assert book.tables["a"].until == 200
    book = book_of(FOLLOWED, fresh=True)
    book.lanes = {}
    applied(book, gap(200))
    assert book.tables["a"].until == 0, "nobody knows what came before the gap"
