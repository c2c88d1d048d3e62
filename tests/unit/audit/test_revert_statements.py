"""The statements that undo changes, and how a row is compared with the trail."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest

from headrace.audit.revert import (
    IrreversibleError,
    RowImage,
    SourceColumn,
    SourceTable,
    ValueForm,
    agree,
    differing,
    gone,
    json_text,
    located,
    undo_delete,
    undo_insert,
    undo_update,
)
from headrace.audit.rows import REDACTED


def table(*columns: SourceColumn, key: tuple[str, ...] = ("id",)) -> SourceTable:
    every = (SourceColumn("id", 1), *columns)
    return SourceTable("public", "t", {one.name: one for one in every}, key)


N = SourceColumn("n", 2)
DOC = SourceColumn("doc", 2, ValueForm.DOCUMENT)
PHOTO = SourceColumn("photo", 2, ValueForm.BINARY)


def test_an_insert_is_undone_by_its_key() -> None:
    step = undo_insert({}, table(N), RowImage({"id": 1, "n": "x"}))
    assert step.statement == """DELETE FROM "public"."t" AS t WHERE t."id" = '1';"""
    assert (step.found_by, step.then, step.idle) == (step.now, None, False)


def test_a_delete_is_undone_with_every_column_but_generated_ones() -> None:
    made = SourceColumn("made", 3, generated=True)
    step = undo_delete({}, table(N, made), RowImage({"id": 1, "n": None, "made": 2}))
    assert step.statement == (
        """INSERT INTO "public"."t" ("id", "n") OVERRIDING SYSTEM VALUE VALUES ('1', NULL);"""
    )
    assert (step.found_by, step.now) == (step.then, None)


def test_an_update_is_undone_in_the_columns_that_it_changed() -> None:
    other, set_by_trigger = SourceColumn("o", 3), SourceColumn("at", 4, left=True)
    was = RowImage({"id": 1, "n": "a", "o": "same", "at": 1})
    after = RowImage({"id": 1, "n": "b", "o": "same", "at": 2})
    step = undo_update({}, table(N, other, set_by_trigger), was, after)
    assert step.statement == """UPDATE "public"."t" AS t SET "n" = 'a' WHERE t."id" = '1';"""
    assert (step.now, step.idle) == (after, False)
    same = undo_update({}, table(N), RowImage({"id": 1, "n": "a"}), RowImage({"id": 1, "n": "a"}))
    assert same.idle
    assert same.statement.startswith("-- ")


def test_texts_that_differ_beside_equal_values_are_a_change() -> None:
    was = RowImage({"id": 1, "doc": None}, {"doc": "null"})
    after = RowImage({"id": 1, "doc": None})
    step = undo_update({}, table(DOC), was, after)
    assert "SET \"doc\" = 'null'" in step.statement


def test_an_old_row_that_is_not_whole_is_refused() -> None:
    with pytest.raises(IrreversibleError, match="n"):
        undo_update({}, table(N), RowImage({"id": 1}), RowImage({"id": 1, "n": "b"}))


@pytest.mark.parametrize(("was", "after"), [("a", REDACTED), (REDACTED, "b")])
def test_a_redacted_value_is_refused(was: str, after: str) -> None:
    sides = RowImage({"id": 1, "n": was}), RowImage({"id": 1, "n": after})
    with pytest.raises(IrreversibleError):
        undo_update({}, table(N), *sides)
    with pytest.raises(IrreversibleError):
        undo_delete({}, table(N), RowImage({"id": 1, "n": REDACTED}))


@pytest.mark.parametrize("key", [(), ("id", "n")])
@pytest.mark.parametrize("value", [None, REDACTED])
def test_a_row_without_a_whole_key_is_not_located(key: tuple[str, ...], value: Any) -> None:
    with pytest.raises(IrreversibleError, match="key"):
        located(table(N, key=key), RowImage({"id": 1, "n": value}))
    assert located(table(N, key=("id", "n")), RowImage({"id": 1, "n": "x"})) == (
        """t."id" = '1' AND t."n" = 'x'"""
    )


UNSURE: list[tuple[SourceColumn, Any, bool]] = [
    (DOC, None, True),
    (DOC, {"a": [Decimal("1.5")]}, True),
    (DOC, {"a": "12345678901234567890"}, True),
    (DOC, "1e400", True),
    (DOC, {"a": [1, "text", True, None]}, False),
    (DOC, "12345", False),
    (SourceColumn("doc", 2, ValueForm.DOCUMENT, as_text=True), None, False),
    (SourceColumn("doc", 2), [1], True),
    (SourceColumn("doc", 2), "1.50", False),
    (SourceColumn("doc", 2), None, False),
]


@pytest.mark.parametrize(("column", "value", "refused"), UNSURE)
def test_an_earlier_versions_value_is_refused_where_it_may_have_been_another(
    column: SourceColumn, value: Any, refused: bool
) -> None:
    side = RowImage({"id": 1, "doc": value}, unsure={"doc"})
    if refused:
        with pytest.raises(IrreversibleError, match="doc"):
            undo_delete({}, table(column), side)
    else:
        undo_delete({}, table(column), side)
    # Of this version every value is the one that was.
    undo_delete({}, table(column), RowImage({"id": 1, "doc": value}))


LITERALS: list[tuple[SourceColumn, Any, str | None, str]] = [
    (N, "it's", None, "'it''s'"),
    (N, "a\\b", None, " E'a\\\\b'"),
    (N, Decimal("1.50"), None, "'1.50'"),
    (N, True, None, "'true'"),
    (N, {"a": 1}, '{"a": 1.50}', "'{\"a\": 1.50}'"),
    (DOC, "text", None, "'\"text\"'"),
    (SourceColumn("n", 2, ValueForm.DOCUMENT, as_text=True), "[1]", None, "'[1]'"),
    (PHOTO, "\\x00ff", None, " E'\\\\x00ff'"),
    (PHOTO, base64.b64encode(b"\x00\xff").decode(), None, " E'\\\\x00ff'"),
]


@pytest.mark.parametrize(("column", "value", "exact", "literal"), LITERALS)
def test_a_value_is_written_as_the_literal_that_its_column_reads(
    column: SourceColumn, value: Any, exact: str | None, literal: str
) -> None:
    named = SourceColumn("n", 2, column.kind, as_text=column.as_text)
    side = RowImage({"id": 1, "n": value}, {} if exact is None else {"n": exact})
    assert undo_delete({}, table(named), side).statement.endswith(f"VALUES ('1', {literal});")


def test_a_list_becomes_an_array_of_the_columns_own_type() -> None:
    statement = undo_delete({}, table(N), RowImage({"id": 1, "n": [1, None]})).statement
    assert (
        """(jsonb_populate_record(NULL::"public"."t", '{"n": [1, null]}'::jsonb))."n\""""
        in statement
    )


COMPARED: list[tuple[SourceColumn, str | None, Any, str | None, bool]] = [
    (N, "x", "x", None, True),
    (N, "x", "y", None, False),
    (N, None, None, None, True),
    (N, None, "x", None, False),
    (N, "x", None, None, False),
    (N, "1.50", "other", "1.50", True),
    (N, "1.5", "1.5", "1.50", False),
    (DOC, '{"a": 1.50}', {"a": Decimal("1.5")}, None, True),
    (DOC, '{"a": 1.50}', {"a": Decimal("1.6")}, None, False),
    (SourceColumn("n", 2, ValueForm.DOCUMENT, as_text=True), "[1]", "[1]", None, True),
    (SourceColumn("n", 2, ValueForm.DOCUMENT, as_text=True), "[1]", "[1 ]", None, False),
    (PHOTO, "\\x00ff", base64.b64encode(b"\x00\xff").decode(), None, True),
    (PHOTO, "\\x00ff", "\\x00fe", None, False),
    (SourceColumn("n", 2, told=int), "7", 7, None, True),
    (SourceColumn("n", 2, told=int), "7", "7", None, True),
    (SourceColumn("n", 2, told=int), "7", 8, None, False),
    (SourceColumn("n", 2, listed=lambda text: [int(text)]), "7", [7], None, True),
    (SourceColumn("n", 2, left=True), "x", "y", None, True),
    (N, "x", REDACTED, None, True),
]


@pytest.mark.parametrize(("column", "text", "value", "exact", "same"), COMPARED)
def test_a_row_is_compared_as_an_event_would_show_it(
    column: SourceColumn, text: str | None, value: Any, exact: str | None, same: bool
) -> None:
    named = SourceColumn(
        "n",
        2,
        column.kind,
        told=column.told,
        listed=column.listed,
        left=column.left,
        as_text=column.as_text,
    )
    side = RowImage({"n": value}, {} if exact is None else {"n": exact})
    assert differing(table(named), {"id": "1", "n": text}, side) == ([] if same else ["n"])


def test_rows_of_two_changes_agree_as_far_as_both_have_them() -> None:
    left = SourceColumn("at", 3, left=True)
    one = RowImage({"id": 1, "n": "a", "at": 1})
    assert agree(table(N, left), one, RowImage({"id": 1, "n": "a", "at": 2}))
    assert agree(table(N, left), one, RowImage({"id": 1}))
    assert not agree(table(N, left), one, RowImage({"id": 1, "n": "b"}))
    assert not agree(table(N, left), one, RowImage({"n": "a"}, {"n": "A"}))
    assert agree(table(N), None, None)
    assert not agree(table(N), one, None)
    assert not agree(table(N), None, one)


def test_a_column_that_the_table_has_no_more_is_named() -> None:
    assert gone(table(N), RowImage({"id": 1, "n": 1, "old": 1})) == ["old"]


def test_json_is_written_with_every_digit() -> None:
    value = {"é": [Decimal("1.50"), 12345678901234567890, None, True, 'a"b'], "d": {}}
    assert json_text(value) == '{"é": [1.50, 12345678901234567890, null, true, "a\\"b"], "d": {}}'


def test_a_deleted_row_without_a_key_is_not_undone() -> None:
    """The check behind the statement could not find the row."""
    with pytest.raises(IrreversibleError, match="key"):
        undo_delete({}, table(N, key=()), RowImage({"id": 1, "n": 5}))
