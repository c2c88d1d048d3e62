"""Since when the trail is certain of a table's rows: never too early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.audit.table_book import Noted, TableBook
from headrace.consumer import Event
from headrace.lsn import Position
from headrace.postgres.facts import RelationFiles

USERS = ("public", "users")
ORIGINAL = RelationFiles("1:1", 500, first=True)
REPLACED = RelationFiles("1:9", 500, first=False)


def change(lsn: int, operation: str = "UPDATE", relation_id: int = 1, **payload: Any) -> Event:
    body = {"relation_id": relation_id, "key": ["id"], "tx": {"xid": 700}, **payload}
    return Event("s", *USERS, operation, Position(lsn, 0), body, "cdc.users", lsn, "s", closes=True)


def schema(*changes: str, relation_id: int = 1, resync: bool = False, **more: Any) -> Any:
    return {
        "schema": "public",
        "table": "users",
        "relation_id": relation_id,
        "primary_key": ["id"],
        "replica_identity": "d",
        "columns": [{"name": "id", "data_type": "integer"}],
        "changes": [{"change": one} for one in changes],
        "resync": resync,
        "tx": {"xid": 700},
        **more,
    }


def heard(files: RelationFiles = ORIGINAL) -> TableBook:
    """A table whose first change is at 100, and whose files were read then."""
    book = TableBook()
    assert book.hear(change(100))
    book.take_files(USERS, files)
    return book


def since(book: TableBook) -> Position | None:
    return book.tables[USERS].since


def test_a_table_that_was_never_rewritten_is_certain_from_its_first_change() -> None:
    book = heard()
    assert book.tables[USERS] == Noted(("id",), (), 1, Position(100, 0), "1:1")
    assert (book.without_files(), book.hear(change(101))) == ({}, False)


def test_a_table_with_other_files_is_certain_from_their_reading_on() -> None:
    assert since(heard(REPLACED)) == Position(500, 0)


@pytest.mark.parametrize(
    ("joined", "certain_from"),
    [((), 100), ((699,), 100), ((700,), 100), ((699, 701), 500), ((799,), 500), ((800,), 100)],
)
@pytest.mark.parametrize("told", [False, True])
def test_a_table_that_joined_a_publication_later_is_certain_from_the_reading_on(
    joined: tuple[int, ...], certain_from: int, told: bool
) -> None:
    """It may have left it behind the first change, and rows may have changed meanwhile."""
    book = TableBook()
    if told:
        book.learn(Position(100, 0), schema("table_first_seen"))
    else:
        book.hear(change(100))
    book.take_files(USERS, replace(ORIGINAL, joined=joined, next_xid=800))
    assert since(book) == Position(certain_from, 0)


def test_a_relation_that_is_gone_is_never_certain() -> None:
    book = heard()
    book.hear(change(110, relation_id=2))
    assert book.without_files() == {2: USERS}
    book.take_files(USERS, None)
    assert (since(book), book.without_files()) == (None, {})


@pytest.mark.parametrize("payload", [{"relation_id": 2}, {"key": ["other"]}])
def test_another_relation_or_key_begins_again_at_its_first_change(payload: Any) -> None:
    book = heard()
    assert book.hear(change(200, **payload))
    assert (since(book), book.tables[USERS].files) == (Position(200, 0), None)


def test_a_key_that_changes_before_the_files_were_read_does_not_reach_further_back() -> None:
    book = heard(REPLACED)
    book.hear(change(200, key=["other"]))
    assert since(book) == Position(500, 0)
    book.hear(change(600, key=["id"]))
    assert since(book) == Position(600, 0)


def test_a_change_without_a_key_leaves_the_key_that_is_known() -> None:
    book = heard()
    assert not book.hear(change(200, key=None))
    assert book.tables[USERS].key == ("id",)


def test_a_truncate_asks_for_the_new_files() -> None:
    book = heard()
    assert book.hear(change(200, "TRUNCATE"))
    assert book.without_files() == {1: USERS}
    book.take_files(USERS, REPLACED)
    assert book.tables[USERS].since == Position(500, 0)


def test_a_change_that_is_not_audited_ends_what_is_certain_once() -> None:
    book = heard()
    assert (book.skip(change(200)), book.skip(change(201))) == (True, False)
    book.take_files(USERS, ORIGINAL)
    assert since(book) == Position(500, 0)
    assert TableBook().skip(change(1)) is False


@pytest.mark.parametrize(
    "payload",
    [
        schema("table_rewritten", resync=True),
        schema("table_first_seen"),
        schema("table_removed", columns=[]),
    ],
    ids=["resync", "first seen", "removed"],
)
def test_what_rows_do_not_tell_ends_what_is_certain_until_the_catalog_is_read(payload: Any) -> None:
    book = heard()
    assert book.learn(Position(200, 0), payload) == USERS
    assert (since(book), book.tables[USERS].files) == (None, None)
    book.take_files(USERS, ORIGINAL)
    assert since(book) == Position(500, 0)


@pytest.mark.parametrize(
    ("told", "at"),
    [("column_added", 200), ("key_changed", 200), ("column_renamed", 100), ("column_dropped", 100)],
)
def test_earlier_rows_lack_an_added_column_and_a_new_key(told: str, at: int) -> None:
    book = heard()
    book.learn(Position(200, 0), schema(told))
    assert (since(book), book.tables[USERS].files) == (Position(at, 0), "1:1")


def test_a_table_that_is_told_first_is_certain_from_there_and_so_is_another_relation() -> None:
    book = TableBook()
    book.learn(Position(50, 0), schema("table_first_seen"))
    assert since(book) == Position(50, 0)
    book.learn(Position(60, 0), schema("table_replaced", relation_id=2, resync=True))
    assert (since(book), book.tables[USERS].relation_id) == (Position(60, 0), 2)


def test_columns_of_bytea_are_known_by_what_their_domains_stand_on() -> None:
    columns = [
        {"name": "a", "data_type": "bytea"},
        {"name": "b", "data_type": "photo", "base_type": "bytea"},
        {"name": "c", "data_type": "photo[]", "base_type": "bytea[]"},
        {"name": "d", "data_type": "text"},
    ]
    book = TableBook()
    book.learn(Position(50, 0), schema(columns=columns))
    assert book.tables[USERS].binary == ("a", "b", "c")


def test_the_identity_index_is_the_key_where_there_is_no_primary_key() -> None:
    book = TableBook()
    told = schema(primary_key=[], identity=["a", "b"])
    book.learn(Position(50, 0), {**told, "replica_identity": "i"})
    assert book.tables[USERS].key == ("a", "b")
    book.learn(Position(51, 0), {**told, "replica_identity": "f"})
    assert book.tables[USERS].key == ()
    book.learn(Position(52, 0), {**told, "primary_key": ["p"], "replica_identity": "i"})
    assert book.tables[USERS].key == ("p",)
