"""Shapes of tables: what changed between two of them, and what a mirror can follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.contract.exact import Inexact
from headrace.contract.schemas import (
    ColumnShape,
    Fill,
    TableShape,
    differences,
    event,
    fill,
    renamed,
    with_keys_of,
    without_fills,
)
from headrace.errors import DecodeError

ID = ColumnShape("id", 23, -1, "integer", is_key=True, is_nullable=False, number=1)
NAME = ColumnShape("name", 25, -1, "text", number=2)
USERS = TableShape(
    "public", "users", 5, "d", ("id",), 77, (ID, NAME), last_number=2, publication="insert,update/9"
)


def column(name: str, number: int, **more: Any) -> ColumnShape:
    return ColumnShape(name, 25, -1, "text", number=number, **more)


def having(*columns: ColumnShape, **more: Any) -> TableShape:
    last = max((one.number for one in columns), default=0)
    return replace(USERS, columns=columns, last_number=max(2, last), **more)


def found(new: TableShape, old: TableShape = USERS) -> tuple[list[str], bool]:
    """The kinds of changes, and whether the table must be copied."""
    changes, resync = differences(old, new)
    return [change["change"] for change in changes], resync


# What changed.


def test_equal_shapes_do_not_differ() -> None:
    assert differences(USERS, USERS) == ([], False)


def test_another_name_is_another_table_for_a_mirror() -> None:
    changes, resync = differences(USERS, replace(USERS, name="people", schema="app"))
    assert changes == [renamed("from", "public", "users")]
    assert changes[0] == {
        "change": "table_renamed",
        "from": "public.users",
        "from_schema": "public",
        "from_table": "users",
    }
    assert resync


def test_a_replaced_table_must_be_copied_and_its_publication_says_nothing() -> None:
    changes, resync = found(replace(USERS, relation_id=6, membership=78))
    assert "table_replaced" in changes
    assert "publication_changed" not in changes
    assert resync


@pytest.mark.parametrize(
    ("more", "changes", "resync"),
    [
        ({"publication": "insert,update/10"}, ["publication_changed"], True),
        ({"publication": "insert/10"}, ["publication_changed"], False),
        ({"publication": "insert,delete/10"}, ["publication_changed"], True),
        ({"publication": ""}, [], False),
        ({"membership": 78}, ["publication_changed"], True),
        ({"membership": 78, "publication": "insert/10"}, ["publication_changed"], True),
    ],
)
def test_another_publication_means_a_copy_unless_it_only_lost_operations(
    more: dict[str, Any], changes: list[str], resync: bool
) -> None:
    assert found(replace(USERS, **more)) == (changes, resync)


def test_what_a_publication_publishes_is_told_if_it_is_known() -> None:
    changes, _ = differences(USERS, replace(USERS, publication="insert/10"))
    assert changes == [{"change": "publication_changed", "publishes": ["insert"]}]
    changes, _ = differences(USERS, replace(USERS, membership=1, publication=""))
    assert changes == [{"change": "publication_changed"}]
    unknown = replace(USERS, publication="")
    assert differences(unknown, USERS) == ([], False)


def test_other_keys_and_identities_are_told() -> None:
    changes, resync = differences(
        USERS, replace(USERS, primary_key=("name",), replica_identity="f")
    )
    assert changes == [
        {"change": "key_changed", "from": ["id"], "to": ["name"]},
        {"change": "replica_identity_changed", "from": "d", "to": "f"},
    ]
    assert not resync


# Columns.


def test_an_added_column_is_filled_if_its_value_is_known() -> None:
    filled = column("n", 3, filled=True, fill=Fill("x", "x"))
    changes, resync = differences(USERS, having(ID, NAME, filled))
    assert changes == [
        {
            "change": "column_added",
            "column": "n",
            "data_type": "text",
            "filled": "x",
            "filled_text": "x",
        }
    ]
    assert not resync
    assert found(having(ID, NAME, column("n", 3))) == (["column_added"], False)
    assert found(having(ID, NAME, column("n", 3, filled=True))) == (["column_added"], True)


def test_a_value_is_not_believed_if_the_catalog_may_be_ahead() -> None:
    """Column 3 was added and dropped, and another one of its name came as column 4."""
    late = column("n", 4, filled=True, fill=Fill("x", "x"))
    assert found(having(ID, NAME, late)) == (["column_added"], True)
    between = column("m", 3)
    assert found(having(ID, NAME, between, late)) == (["column_added"] * 2, False)
    # A shape without the highest number accounts for nothing.
    unknown = replace(having(ID, NAME, late), last_number=0)
    assert found(unknown)[1]
    old = replace(USERS, last_number=0)
    third = column("n", 3, filled=True, fill=Fill("x", "x"))
    assert found(having(ID, NAME, third), old) == (["column_added"], False)


def test_a_dropped_column_needs_no_copy() -> None:
    changes, resync = differences(USERS, having(ID))
    assert changes == [{"change": "column_dropped", "column": "name"}]
    assert not resync


@pytest.mark.parametrize(("number", "was_there"), [(3, True), (4, False)])
def test_a_column_that_was_not_published_before_has_values(number: int, was_there: bool) -> None:
    # A generated column that became a plain one, whose values were there all the time.
    before = replace(USERS, last_number=3)
    now = having(ID, NAME, column("g", number))
    assert found(now, before) == (["column_added"], was_there)


def test_a_renamed_column_is_known_by_its_number() -> None:
    changes, resync = differences(USERS, having(ID, replace(NAME, name="label")))
    assert changes == [{"change": "column_renamed", "from": "name", "column": "label"}]
    assert not resync


def test_a_column_that_took_the_name_of_a_dropped_one_is_another() -> None:
    assert found(having(ID, column("name", 3))) == (["column_dropped", "column_added"], True)


def test_without_numbers_columns_are_known_by_their_names() -> None:
    bare = having(*(replace(one, number=0) for one in USERS.columns))
    assert found(bare) == ([], False)
    assert found(USERS, bare) == ([], False)
    # A column whose number was never known may be the one that came.
    other = having(ID, column("other", 3))
    assert found(other, bare) == (["column_dropped", "column_added"], True)


def test_numbers_of_another_relation_say_nothing() -> None:
    again = replace(having(replace(NAME, number=1), replace(ID, number=2)), relation_id=6)
    assert found(again) == (["table_replaced"], True)


def test_columns_that_exchanged_their_names_take_a_free_one_first() -> None:
    swapped = having(replace(ID, name="name"), replace(NAME, name="id"), primary_key=("name",))
    changes, _ = differences(replace(USERS, primary_key=("name",)), swapped)
    names = {"id": "1", "name": "2"}
    for change in changes:
        assert change["change"] == "column_renamed"
        assert change["column"] not in names, "each new name is free"
        names[change["column"]] = names.pop(change["from"])
    assert names == {"name": "1", "id": "2"}


def test_a_chain_of_renames_is_told_from_its_free_end() -> None:
    chained = having(replace(ID, name="name"), replace(NAME, name="label"), primary_key=("name",))
    changes, _ = differences(replace(USERS, primary_key=("name",)), chained)
    assert [(one["from"], one["column"]) for one in changes] == [("name", "label"), ("id", "name")]


@pytest.mark.parametrize(
    ("type_oid", "before", "after", "resync"),
    [
        (1043, 14, 24, False),
        (1043, 14, 13, True),
        (1043, 14, -1, False),
        (1043, -1, 14, True),
        (1562, 5, 6, False),
        (1700, 5, 6, True),
    ],
)
def test_only_widening_keeps_all_values(
    type_oid: int, before: int, after: int, *, resync: bool
) -> None:
    old = having(ID, replace(NAME, type_oid=type_oid, type_modifier=before, data_type="old"))
    new = having(ID, replace(NAME, type_oid=type_oid, type_modifier=after, data_type="new"))
    changes, copied = differences(old, new)
    assert changes == [{"change": "column_retyped", "column": "name", "from": "old", "to": "new"}]
    assert copied is resync


def test_another_type_rewrites_values() -> None:
    new = having(ID, replace(NAME, type_oid=1043, type_modifier=-1))
    assert found(new) == (["column_retyped"], True)


def test_other_constraints_are_told_and_change_no_row() -> None:
    told = ["column_constraints_changed"]
    assert found(having(ID, replace(NAME, is_nullable=False))) == (told, False)
    assert found(having(ID, replace(NAME, column_default="'x'"))) == (told, False)


# The stream.


def test_rows_of_shapes_with_other_constraints_are_read_the_same_way() -> None:
    assert USERS.same_in_stream(having(ID, replace(NAME, is_nullable=False, column_default="1")))
    assert USERS.same_in_stream(having(ID, replace(NAME, number=0)))
    assert having(ID, replace(NAME, number=0)).same_in_stream(USERS)
    for other in (
        having(ID, replace(NAME, number=3)),
        having(ID, replace(NAME, name="x")),
        having(ID, replace(NAME, type_oid=1)),
        having(ID, replace(NAME, type_modifier=1)),
        having(ID, replace(NAME, is_key=True)),
        having(ID),
        replace(USERS, membership=1),
        replace(USERS, replica_identity="f"),
        replace(USERS, primary_key=()),
        replace(USERS, relation_id=1),
        replace(USERS, name="x"),
        replace(USERS, schema="x"),
    ):
        assert not USERS.same_in_stream(other)


def test_a_shape_survives_its_being_stored() -> None:
    shape = having(ID, replace(NAME, filled=True, fill=Fill(1, "1"), base_type="text"))
    stored = shape.encode()
    assert "fill" not in stored["columns"][1]
    assert "base_type" not in stored["columns"][0]
    decoded = TableShape.decode(stored)
    assert decoded == shape
    assert decoded.last_number == 2
    assert decoded.publication == "insert,update/9"
    assert decoded.columns[1].base_type == "text"
    assert decoded.columns[1].fill is None


def test_a_shape_of_an_earlier_version_has_defaults() -> None:
    stored = USERS.encode()
    for name in ("last_number", "publication", "definitions"):
        del stored[name]
    decoded = TableShape.decode(stored)
    assert (decoded.last_number, decoded.publication) == (0, "")
    assert decoded == USERS


@pytest.mark.parametrize("name", ["columns", "primary_key", "schema"])
def test_a_malformed_shape_is_refused(name: str) -> None:
    stored = USERS.encode()
    del stored[name]
    with pytest.raises(DecodeError, match="malformed table shape"):
        TableShape.decode(stored)
    with pytest.raises(DecodeError):
        TableShape.decode({**USERS.encode(), "columns": [{"unknown": 1}]})


def test_a_table_that_left_the_catalog_keeps_what_was_known() -> None:
    bare = (ColumnShape("id", 23, -1, "integer"), ColumnShape("new", 25, -1, "text"))
    gone = replace(USERS, columns=bare, primary_key=(), membership=0)
    known = having(replace(ID, column_default="1"), NAME)
    assert not gone.seen
    assert known.seen
    kept = gone.with_catalog_of(known)
    assert kept.columns[0] == replace(bare[0], is_nullable=False, column_default="1", number=1)
    assert kept.columns[1] == bare[1]
    assert kept.primary_key == ("id",)
    assert kept.membership == 77
    assert replace(gone, primary_key=("new",)).with_catalog_of(known).primary_key == ("new",)
    assert replace(gone, columns=bare[1:]).with_catalog_of(known).primary_key == ()


def test_key_flags_are_the_streams() -> None:
    read = having(
        replace(ID, is_key=False), replace(NAME, is_key=True), column("n", 3, is_key=True)
    )
    flags = [one.is_key for one in with_keys_of(read, USERS).columns]
    assert flags == [True, False, True]


def test_a_schema_event_shows_the_shape() -> None:
    shape = having(ID, replace(NAME, base_type="citext", column_default="'x'"))
    told = event(shape, source="s", version=3, changes=[], resync=True)
    assert told == {
        "table": "users",
        "operation": "SCHEMA",
        "schema": "public",
        "source": "s",
        "relation_id": 5,
        "version": 3,
        "columns": [
            {"name": "id", "position": 1, "data_type": "integer", "is_nullable": False,
             "column_default": None},
            {"name": "name", "position": 2, "data_type": "text", "is_nullable": True,
             "column_default": "'x'", "base_type": "citext"},
        ],
        "primary_key": ["id"],
        "replica_identity": "d",
        "identity": ["id"],
        "changes": [],
        "resync": True,
    }  # fmt: skip


def test_a_schema_event_without_its_fills_asks_for_a_copy() -> None:
    filled = {"change": "column_added", "column": "n", "filled": 1, "filled_text": "1"}
    dropped = {"change": "column_dropped", "column": "m"}
    small = without_fills({"changes": [filled, dropped], "resync": False})
    assert small == {
        "changes": [{"change": "column_added", "column": "n"}, dropped],
        "resync": True,
    }
    assert without_fills({"changes": [dropped], "resync": False})["resync"] is False
    assert without_fills({"changes": [dropped], "resync": True})["resync"] is True


def test_the_value_of_older_rows_is_told_if_it_is_text() -> None:
    assert fill(b"7", int) == Fill(7, "7")
    assert fill(b"1.50", lambda text: Inexact(1.5, text.decode())) == Fill(1.5, "1.50")
    assert fill(None, int) is None
    assert fill(b"\xff", lambda text: text) is None

    def refuse(_: bytes) -> object:
        raise DecodeError("no")

    assert fill(b"7", refuse) is None
