"""The order in which changes are undone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.audit.ordering import Reference, ordered

PARENT, CHILD = ("public", "parent"), ("public", "child")
KEY = Reference(CHILD, ("parent",), PARENT, ("id",), "c")
ITSELF = Reference(PARENT, ("up",), PARENT, ("id",), "c")


def change(name: str, table: tuple[str, str], operation: str = "DELETE", **before: Any) -> Any:
    return {
        "id": name,
        "schema": table[0],
        "table": table[1],
        "operation": operation,
        "primary_key": str(before.get("id")),
        "before": json.dumps(before),
    }


def names(changes: list[Any], *references: Reference) -> list[str]:
    return [one["id"] for one in ordered(changes, references)]


def test_a_parent_comes_back_before_the_children_that_went_with_it() -> None:
    changes = [
        change("second", CHILD, id=2, parent=1),
        change("first", CHILD, id=1, parent=1),
        change("parent", PARENT, id=1),
    ]
    assert names(changes, KEY) == ["parent", "second", "first"]
    assert names(changes) == ["second", "first", "parent"]


def test_a_child_that_a_cascade_set_to_null_refers_to_its_parent_again_after_that_is_back() -> None:
    changes = [change("child", CHILD, "UPDATE", id=1, parent=1), change("parent", PARENT, id=1)]
    assert names(changes, KEY) == ["parent", "child"]


@pytest.mark.parametrize("parent", [2, None])
def test_a_child_of_another_parent_or_of_none_keeps_its_turn(parent: int | None) -> None:
    changes = [change("child", CHILD, id=1, parent=parent), change("parent", PARENT, id=1)]
    assert names(changes, KEY) == ["child", "parent"]


def test_a_row_that_the_trail_does_not_have_all_of_counts_as_a_child() -> None:
    changes = [change("child", CHILD, id=1), change("parent", PARENT, id=1)]
    assert names(changes, KEY) == ["parent", "child"]
    changes = [change("child", CHILD, id=1, parent=1), change("parent", PARENT)]
    assert names(changes, KEY) == ["parent", "child"]


def test_only_a_delete_leaves_its_turn() -> None:
    for operation in ("UPDATE", "INSERT"):
        changes = [change("child", CHILD, id=1, parent=1), change("p", PARENT, operation, id=1)]
        assert names(changes, KEY) == ["child", "p"]


def test_an_inserted_child_goes_before_its_parent_comes_back() -> None:
    changes = [change("child", CHILD, "INSERT", id=1, parent=1), change("parent", PARENT, id=1)]
    assert names(changes, KEY) == ["child", "parent"]


def test_a_tree_in_one_table_comes_back_from_its_root() -> None:
    changes = [
        change("leaf", PARENT, id=3, up=2),
        change("middle", PARENT, id=2, up=1),
        change("root", PARENT, id=1, up=None),
    ]
    assert names(changes, ITSELF) == ["root", "middle", "leaf"]


def test_a_delete_does_not_pass_another_change_of_its_table_unless_both_rows_were_there() -> None:
    leaf = change("leaf", PARENT, id=3, up=1)
    updated = change("updated", PARENT, "UPDATE", id=2, up=None)
    root = change("root", PARENT, id=1, up=None)
    assert names([leaf, updated, root], ITSELF) == ["leaf", "updated", "root"]
    other = change("other", PARENT, id=2, up=None)
    assert names([leaf, other, root], ITSELF) == ["root", "leaf", "other"]
    keyless = {**other, "primary_key": None}
    assert names([leaf, keyless, root], ITSELF) == ["leaf", "other", "root"]


def test_two_deletes_of_one_key_keep_their_turn() -> None:
    changes = [
        change("child", CHILD, id=1, parent=1),
        change("later", PARENT, id=1),
        change("earlier", PARENT, id=1),
    ]
    assert names(changes, KEY) == ["later", "earlier", "child"]


def test_a_delete_does_not_pass_a_row_that_it_refers_to_itself() -> None:
    changes = [
        change("child", CHILD, id=1, parent=1),
        change("grandparent", ("public", "top"), id=1),
        change("parent", PARENT, id=1, top=1),
    ]
    top = Reference(PARENT, ("top",), ("public", "top"), ("id",), "c")
    assert names(changes, KEY, top) == ["child", "grandparent", "parent"]


@pytest.mark.parametrize(("action", "takes"), [("c", 1), ("n", 1), ("d", 1), ("a", 0), ("r", 0)])
def test_a_cascade_and_a_reset_take_the_child_along(action: str, takes: int) -> None:
    assert Reference(CHILD, ("parent",), PARENT, ("id",), action).takes_along == bool(takes)
