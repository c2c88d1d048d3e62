"""The book of shapes by hand: what no server can be made to show on purpose."""

from __future__ import annotations

import json
from dataclasses import replace

from headrace.contract.schemas import ColumnShape, TableShape
from headrace.lsn import Position
from headrace.postgres.facts import CatalogSnapshot, follows
from headrace.publisher import storage
from headrace.publisher.schema_book import (
    CatalogReading,
    CatalogTable,
    Entry,
    FilesReading,
    SchemaBook,
    SchemaReport,
)

INT4 = 23


def shape(*columns: str) -> TableShape:
    """The table t with these columns."""
    shapes = tuple(
        ColumnShape(name, INT4, -1, "integer", number=number)
        for number, name in enumerate(columns, start=1)
    )
    return TableShape("public", "t", 1, "d", (), 1, shapes)


def reading(lsn: int, *columns: str, files: str = "files", xid: int = 9) -> CatalogReading:
    """The catalog at a place of the log, where the next transaction would be `xid`: t has these
    columns.
    """
    seen = CatalogSnapshot(xid % 2**32, xid % 2**32)
    return CatalogReading(
        lsn, (CatalogTable(shape(*columns), files),), frozenset({1}), seen, read_lsn=lsn
    )


def typed(lsn: int, definitions: str, *columns: str) -> CatalogReading:
    """The catalog where the columns' types have these definitions."""
    made = replace(shape(*columns), definitions=definitions)
    return replace(reading(lsn), tables=(CatalogTable(made, "files"),))


def reported(book: SchemaBook, *readings: CatalogReading) -> list[SchemaReport]:
    return [told for one in readings for told in book.compare(one)]


def test_changes_that_the_catalog_shows_at_one_place_of_the_log_have_ids_of_their_own() -> None:
    shown = [reading(16, "a"), reading(16, "a", "b"), reading(16, "a", "b", "c"), reading(32, "a")]
    told = reported(SchemaBook(), *shown)
    assert [one.version for one in told] == [1, 2, 3, 4]
    assert len({one.msg_id for one in told}) == 4


def test_a_type_that_changed_before_a_row_of_another_shape_is_told_after_it() -> None:
    """The row doesn't describe the type, and earlier copies of the table have the old text."""
    book = SchemaBook()
    reported(book, typed(10, "7:aaaa,8:bbbb", "a"))
    again = SchemaBook(
        Entry.decode(json.loads(json.dumps(entry.encode()))) for entry in book.entries().values()
    )
    (added,) = [again.check(shape("a", "b"), Position(20, 0), 20, 0)]
    assert added is not None
    assert not added.resync
    assert reported(again, typed(30, "7:aaaa,8:bbbb,9:new", "a", "b")) == []
    (told,) = reported(again, typed(40, "7:cccc,9:new", "a", "b"))
    assert (told.changes, told.resync) == ([{"change": "table_rewritten"}], True)
    assert reported(again, typed(50, "7:cccc", "a", "b")) == []


def test_a_restart_goes_on_with_ids_that_no_event_has_yet() -> None:
    book = SchemaBook()
    first = reported(book, reading(16, "a"), reading(16, "a", "b"))
    again = SchemaBook(book.entries().values())
    assert reported(again, reading(16, "a", "b")) == []
    (later,) = reported(again, reading(16, "b"))
    assert later.msg_id not in {one.msg_id for one in first}


def test_a_reading_sees_what_an_earlier_one_saw_however_many_transactions_there_were_since() -> (
    None
):
    book = SchemaBook()
    assert book.check(shape("a"), Position(10, 0), 10, 100) is not None
    assert reported(book, reading(20, "a", xid=200)) == []
    (told,) = reported(book, reading(30, "a", "b", xid=100 + 2**31 + 50))
    assert [change["change"] for change in told.changes] == ["column_added"]


def test_a_file_from_long_ago_is_not_taken_for_a_later_one() -> None:
    """PostgreSQL's numbers of transactions come round: a small one may be older than any large one."""
    kept, xid = "1:7:5:0/columns/", 3_000_000_000
    book = SchemaBook()
    assert (
        book.check(shape("a"), Position(10, 0), 10, xid, FilesReading(kept, 10, xid + 1))
        is not None
    )
    assert reported(book, reading(20, "a", files=kept, xid=xid + 2)) == []


def test_a_file_of_a_later_transaction_is_told_as_rewritten_also_where_the_numbers_come_round() -> (
    None
):
    xid, later = 2**32 - 5, 7
    kept = f"1:7:{later}:0/columns/"
    book = SchemaBook()
    assert (
        book.check(shape("a"), Position(10, 0), 10, xid, FilesReading(kept, 10, later + 1))
        is not None
    )
    (told,) = reported(book, reading(20, "a", files=kept, xid=later + 2))
    assert told.changes == [{"change": "table_rewritten"}]


def test_only_transactions_since_can_have_written_what_is_later() -> None:
    assert follows(105, 100, 106)
    assert not follows(106, 100, 106)
    assert not follows(100, 100, 106)
    assert not follows(99, 100, 106)
    # The catalog was read before the transaction was seen in it.
    assert not follows(99, 100, 90)
    assert not follows(105, 100, 90)


def test_what_an_earlier_version_reads_when_it_is_put_back_has_the_parts_that_it_expects() -> None:
    kept = storage.as_of("u1:7:105:0,2:0:3:0/columns/2,3a", 100, 106)
    assert kept == "u1:-1:105:0,2:0:3:0/-1/2,3a"
    files, columns, partitions = kept.split("/")
    assert storage.Storage.parse(kept) == storage.Storage(
        {1: storage.File(-1, 105, 0), 2: storage.File(0, 3, 0)},
        columns,
        frozenset(partitions.split(",")),
        exposed=True,
    )
    # And what that version kept says nothing about single files.
    assert (
        storage.Storage.parse(
            "d41d8cd98f00b204e9800998ecf8427e/d41d8cd98f00b204e9800998ecf8427e/2,3a"
        )
        is None
    )
    assert files.startswith("u")


def test_a_table_that_is_beyond_the_others_reports_nothing_while_it_is_replayed() -> None:
    """With arrays, a crash may leave one table further than the stream's floor."""
    known = Entry(shape("a"), 1, Position(10, 0))
    book = SchemaBook([known], Position(5, 0), {"t": Position(20, 3)})
    left = replace(shape("a"), membership=2)
    assert book.replays(left, Position(20, 3))
    assert not book.replays(left, Position(20, 4))
    book.reach(Position(30, 0))
    assert book.replays(left, Position(20, 4))
