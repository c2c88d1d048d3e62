"""The book of shapes by hand: what no server can be made to show on purpose."""

from __future__ import annotations

from headrace.contract.schemas import ColumnShape, TableShape
from headrace.lsn import Position
from headrace.postgres.facts import Snapshot, follows
from headrace.publisher.schemas import CatalogReading, CatalogTable, Looked, SchemaBook, Told

INT4 = 23


def shape(*columns: str) -> TableShape:
    """The table t with these columns."""
    shapes = tuple(
        ColumnShape(name, INT4, -1, "integer", number=number) for number, name in enumerate(columns, start=1)
    )
    return TableShape("public", "t", 1, "d", (), 1, shapes)


def reading(lsn: int, *columns: str, storage: str = "files", xid: int = 9) -> CatalogReading:
    """The catalog at a place of the log, where the next transaction would be `xid`: t has these columns."""
    seen = Snapshot(xid % 2**32, xid % 2**32)
    return CatalogReading(lsn, (CatalogTable(shape(*columns), storage),), frozenset({1}), seen, read_lsn=lsn)


def reported(book: SchemaBook, *readings: CatalogReading) -> list[Told]:
    return [told for one in readings for told in book.compare(one)]


def test_changes_that_the_catalog_shows_at_one_place_of_the_log_have_ids_of_their_own() -> None:
    shown = [reading(16, "a"), reading(16, "a", "b"), reading(16, "a", "b", "c"), reading(32, "a")]
    told = reported(SchemaBook(), *shown)
    assert [one.version for one in told] == [1, 2, 3, 4]
    assert len({one.msg_id for one in told}) == 4


def test_a_restart_goes_on_with_ids_that_no_event_has_yet() -> None:
    book = SchemaBook()
    first = reported(book, reading(16, "a"), reading(16, "a", "b"))
    again = SchemaBook(book.entries().values())
    assert reported(again, reading(16, "a", "b")) == []
    (later,) = reported(again, reading(16, "b"))
    assert later.msg_id not in {one.msg_id for one in first}


def test_a_reading_sees_what_an_earlier_one_saw_however_many_transactions_there_were_since() -> None:
    book = SchemaBook()
    assert book.check(shape("a"), Position(10, 0), 10, 100) is not None
    assert reported(book, reading(20, "a", xid=200)) == []
    (told,) = reported(book, reading(30, "a", "b", xid=100 + 2**31 + 50))
    assert [change["change"] for change in told.changes] == ["column_added"]


def test_a_file_from_long_ago_is_not_taken_for_a_later_one() -> None:
    """PostgreSQL's numbers of transactions come round: a small one may be older than any large one."""
    storage, xid = "1:7:5:0/columns//", 3_000_000_000
    book = SchemaBook()
    assert book.check(shape("a"), Position(10, 0), 10, xid, Looked(storage, 10, xid + 1)) is not None
    assert reported(book, reading(20, "a", storage=storage, xid=xid + 2)) == []


def test_a_file_of_a_later_transaction_is_told_as_rewritten_also_where_the_numbers_come_round() -> None:
    xid, later = 2**32 - 5, 7
    storage = f"1:7:{later}:0/columns//"
    book = SchemaBook()
    assert book.check(shape("a"), Position(10, 0), 10, xid, Looked(storage, 10, later + 1)) is not None
    (told,) = reported(book, reading(20, "a", storage=storage, xid=later + 2))
    assert told.changes == [{"change": "table_rewritten"}]


def test_only_transactions_since_can_have_written_what_is_later() -> None:
    assert follows(105, 100, 106)
    assert not follows(106, 100, 106)
    assert not follows(100, 100, 106)
    assert not follows(99, 100, 106)
    # The catalog was read before the transaction was seen in it.
    assert not follows(99, 100, 90)
    assert not follows(105, 100, 90)
