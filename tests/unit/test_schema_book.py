"""The book of shapes by hand: what no server can be made to show on purpose."""

from __future__ import annotations

from headrace.contract.schemas import ColumnShape, TableShape
from headrace.postgres.facts import Snapshot
from headrace.publisher.schemas import CatalogReading, CatalogTable, SchemaBook, Told

INT4 = 23


def reading(lsn: int, *columns: str) -> CatalogReading:
    """The catalog at a place of the log: the table t has these columns."""
    shapes = tuple(
        ColumnShape(name, INT4, -1, "integer", number=number) for number, name in enumerate(columns, start=1)
    )
    table = TableShape("public", "t", 1, "d", (), 1, shapes)
    return CatalogReading(lsn, (CatalogTable(table, "files"),), frozenset({1}), Snapshot(9, 9))


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
