"""The rules by which the book of shapes reports drops, renames and rewrites: by what the event
trigger wrote, and by the catalog.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.contract.schemas import ColumnShape, TableShape
from headrace.lsn import Position
from headrace.postgres.ddl_trigger import Ddl, DdlTable
from headrace.postgres.facts import CatalogSnapshot, RelationNow
from headrace.publisher.schema_book import (
    CatalogReading,
    CatalogTable,
    Entry,
    FilesReading,
    SchemaBook,
    SchemaReport,
)

OLD, NEW = "1:7:5:0/columns/", "1:8:6:0/columns/"
RETYPED = "1:8:6:0/others/"


def shape(relation_id: int = 1, name: str = "t", membership: int = 1) -> TableShape:
    column = ColumnShape("a", 23, -1, "integer", number=1)
    return TableShape("public", name, relation_id, "d", (), membership, (column,))


def book(storage: str = OLD) -> SchemaBook:
    """One in which the table t was reported at 10."""
    return SchemaBook([Entry(shape(), 1, Position(10, 0), True, "a-t-schema", storage)])


def heard(
    book: SchemaBook, event: str, now: RelationNow | None, table: DdlTable | None = None
) -> list[SchemaReport]:
    there = {} if now is None else {1: now}
    tables = (table or DdlTable(1, "public", "t"),)
    return book.hear(Ddl(event, tables), Position(20, 0), 20, 50, there)


def now(storage: str = OLD, name: str = "t", lsn: int = 30) -> RelationNow:
    return RelationNow("public", name, storage, lsn)


def kinds(reports: list[SchemaReport]) -> list[tuple[str, bool]]:
    return [(str(one.changes[0]["change"]), one.resync) for one in reports]


def test_a_rewrite_is_believed_if_the_table_has_other_files() -> None:
    assert kinds(heard(book(), "table_rewrite", now(NEW))) == [("table_rewritten", True)]
    assert heard(book(), "table_rewrite", now(OLD)) == []
    assert heard(book(), "table_rewrite", None) == []


def test_a_rewrite_is_reported_once_by_the_trigger_and_the_catalog() -> None:
    schemas = book()
    (rewritten,) = heard(schemas, "table_rewrite", now(NEW, lsn=30))
    assert (rewritten.version, rewritten.msg_id) == (2, "14-t-schema")
    entry = schemas.entry("t")
    assert entry is not None
    assert (entry.storage, entry.read_lsn, entry.since) == (NEW, 30, Position(20, 0))
    assert schemas.compare(reading(40, storage=RETYPED.replace("others", "columns"))) == []


def test_a_drop_is_believed_if_the_table_is_gone() -> None:
    schemas = book()
    assert kinds(heard(schemas, "sql_drop", None)) == [("table_dropped", False)]
    entry = schemas.entry("t")
    assert entry is not None
    assert entry.shape.columns == ()
    assert heard(schemas, "sql_drop", None) == []
    assert heard(book(), "sql_drop", now()) == []
    # Only a drop's own event tells of one.
    assert heard(book(), "ddl_command_end", None) == []


def test_a_rename_is_believed_if_the_catalog_has_the_name_that_is_claimed() -> None:
    other = DdlTable(1, "public", "u")
    (report,) = heard(book(), "ddl_command_end", now(name="u"), other)
    assert report.changes[0]["change"] == "table_renamed"
    assert (report.changes[0]["to_schema"], report.changes[0]["to_table"]) == ("public", "u")
    assert heard(book(), "ddl_command_end", now(name="v"), other) == []
    assert heard(book(), "ddl_command_end", now()) == []
    assert heard(book(), "ddl_command_end", None, other) == []
    # A drop's event does not rename.
    assert heard(book(), "sql_drop", now(name="u"), other) == []


def test_a_message_about_another_relation_or_from_before_the_place_reached_is_not_believed() -> (
    None
):
    assert heard(book(), "sql_drop", None, DdlTable(2, "public", "t")) == []
    entries = book().entries().values()
    for reached, reported in ((Position(19, 0), 1), (Position(20, 0), 0), (Position(21, 0), 0)):
        again = SchemaBook(entries, reached)
        ddl = Ddl("sql_drop", (DdlTable(1, "public", "t"),))
        assert len(again.concerns(ddl, Position(20, 0))) == reported
        assert len(heard(again, "sql_drop", None)) == reported


def reading(
    lsn: int,
    storage: str = OLD,
    *,
    tables: tuple[TableShape, ...] = (shape(),),
    existing: frozenset[int] = frozenset({1}),
    xid: int = 100,
) -> CatalogReading:
    listed = tuple(CatalogTable(one, storage) for one in tables)
    return CatalogReading(lsn, listed, existing, CatalogSnapshot(xid, xid), read_lsn=lsn)


def test_a_table_that_left_the_publication_is_removed_and_one_that_is_gone_is_dropped() -> None:
    assert kinds(book().compare(reading(30, tables=()))) == [("table_removed", False)]
    dropped = reading(30, tables=(), existing=frozenset({2}))
    assert kinds(book().compare(dropped)) == [("table_dropped", False)]


@pytest.mark.parametrize(
    ("earlier", "at", "change", "resync"),
    [
        (None, 20, "table_first_seen", False),
        # The same relation, which had another name.
        (shape(), 10, "table_renamed", True),
        (shape(), 9, "table_first_seen", False),
        # The event trigger has reported already that its name went.
        (replace(shape(), columns=()), 10, "table_renamed", True),
        (replace(shape(), columns=()), 9, "table_first_seen", False),
        (shape(relation_id=2), 20, "table_first_seen", False),
    ],
)
def test_a_name_that_is_seen_first_may_be_of_a_table_that_had_another(
    earlier: TableShape | None, at: int, change: str, *, resync: bool
) -> None:
    known = [] if earlier is None else [Entry(earlier, 4, Position(10, 0), True, "a-t-schema", OLD)]
    schemas = SchemaBook(known)
    report = schemas.check(shape(name="new"), Position(at, 0), 20, 7)
    assert report is not None
    assert ([one["change"] for one in report.changes], report.resync) == ([change], resync)
    entry = schemas.entry("new")
    assert entry is not None
    assert entry.version == 1
    assert schemas.check(shape(name="new"), Position(at, 1), 20, 7) is None


def test_facts_that_are_no_change_are_adopted_without_an_event() -> None:
    schemas = book()
    known = replace(shape(), last_number=5, publication="p")
    assert schemas.compare(reading(30, tables=(known,))) == []
    assert schemas.adopted == {"t"}
    schemas.adopted.clear()
    # A publication of some columns does not show the last number.
    assert schemas.compare(reading(40, tables=(replace(known, last_number=0),))) == []
    assert schemas.adopted == set()
    entry = schemas.entry("t")
    assert entry is not None
    assert (entry.shape, entry.version) == (known, 1)


def test_a_table_that_is_gone_is_reported_once() -> None:
    schemas = book()
    assert len(schemas.compare(reading(30, tables=()))) == 1
    assert schemas.compare(reading(31, tables=())) == []


def test_the_old_name_of_a_renamed_table_says_the_new_one() -> None:
    reports = book().compare(reading(30, tables=(shape(name="u"),)))
    assert [(one.token, one.changes[0]["change"]) for one in reports] == [
        ("u", "table_renamed"),
        ("t", "table_renamed"),
    ]
    assert reports[0].changes[0]["from_table"] == "t"
    assert reports[1].changes[0]["to_table"] == "u"


@pytest.mark.parametrize(("storage", "reported"), [(OLD, False), (NEW, False), (RETYPED, True)])
def test_the_catalog_shows_a_rewrite_by_files_and_definitions_of_columns(
    storage: str, reported: bool
) -> None:
    reports = book().compare(reading(30, storage))
    assert kinds(reports) == ([("table_rewritten", True)] if reported else [])


def test_new_files_that_the_catalog_showed_beside_a_change_are_not_reported_after_it() -> None:
    schemas = book()
    changed = replace(shape(), replica_identity="f")
    (report,) = schemas.compare(reading(30, NEW, tables=(changed,)))
    assert (report.version, report.resync) == (2, False)
    assert heard(schemas, "table_rewrite", now(NEW, lsn=30)) == []


def test_new_files_that_a_row_came_with_are_still_reported_by_the_trigger() -> None:
    schemas = book()
    report = schemas.check(
        replace(shape(), replica_identity="f"), Position(11, 0), 11, 5, FilesReading(NEW, 12, 9)
    )
    assert report is not None
    assert not report.resync
    assert kinds(heard(schemas, "table_rewrite", now(NEW))) == [("table_rewritten", True)]


def test_a_reading_from_before_the_last_one_says_nothing() -> None:
    entry = replace(next(iter(book().entries().values())), read_lsn=31)
    assert SchemaBook([entry]).compare(reading(30, RETYPED)) == []
    assert len(SchemaBook([entry]).compare(reading(31, RETYPED))) == 1


def test_a_reading_that_misses_the_transaction_of_the_last_event_says_nothing() -> None:
    entry = replace(next(iter(book().entries().values())), xid=100)
    assert SchemaBook([entry]).compare(reading(30, RETYPED, xid=100)) == []
    assert SchemaBook([entry]).compare(reading(30, tables=(), xid=100)) == []
    assert len(SchemaBook([entry]).compare(reading(30, RETYPED, xid=101))) == 1


def test_another_membership_of_the_publication_asks_for_a_copy() -> None:
    reports = book().compare(reading(30, tables=(shape(membership=2),)))
    assert kinds(reports) == [("publication_changed", True)]


def test_a_relation_has_the_key_that_was_reported_last_while_the_stream_has_rows_of_it() -> None:
    keyed = replace(shape(), primary_key=("a",))
    schemas = SchemaBook([Entry(keyed, 1, Position(10, 0))])
    assert (schemas.key_of(1), schemas.key_of(2)) == (("a",), None)
    schemas.compare(reading(30, tables=()))
    assert schemas.key_of(1) is None


def test_a_row_is_a_replay_up_to_the_place_that_the_stream_has() -> None:
    entries = book().entries().values()
    schemas = SchemaBook(entries, Position(15, 3))
    assert schemas.replays(shape(), Position(15, 3))
    assert not schemas.replays(shape(), Position(15, 4))
    assert not schemas.replays(shape(name="u"), Position(15, 3))


def test_a_row_before_an_entry_changes_nothing() -> None:
    schemas = book()
    other = replace(shape(), replica_identity="f")
    assert schemas.check(other, Position(9, 9), 9, 5) is None
    assert schemas.check(other, Position(10, 0), 10, 5) is not None


def test_a_shape_whose_event_the_stream_may_lack_is_reported_again_under_its_version() -> None:
    entry = replace(next(iter(book().entries().values())), told=False)
    (report,) = SchemaBook([entry]).compare(reading(30))
    assert (report.version, report.resync, report.changes) == (1, True, [])
    again = SchemaBook([entry]).check(shape(), Position(11, 0), 11, 5)
    assert again is not None
    assert (again.version, again.resync) == (1, True)


@pytest.mark.parametrize(("old_xid", "new_xid"), [(50, 0), (0, 50)])
def test_a_reading_that_missed_the_last_row_of_a_table_says_nothing_of_it(
    old_xid: int, new_xid: int
) -> None:
    """The stream has the table under two names: each may be ahead of the reading."""
    old = Entry(shape(), 1, Position(10, 0), True, "a-t-schema", OLD, old_xid)
    new = Entry(shape(name="n"), 1, Position(11, 0), True, "b-n-schema", OLD, new_xid)
    behind = CatalogSnapshot(50, 50, frozenset())
    reports = SchemaBook([old, new]).compare(replace(reading(40, storage=NEW), snapshot=behind))
    assert [one for one in reports if one.token == "t"] == []
