"""The primary key of a table as of a message of its relation, which may be older than the catalog."""

from __future__ import annotations

import pytest

from headrace.pgoutput.messages import Relation, RelationColumn
from headrace.postgres.facts import ColumnFacts, TableFacts
from headrace.publisher.table_events import _primary_key

ID, CODE, AB = ("id",), ("code",), ("a", "b")
THERE = {"id": ColumnFacts(1, False, None, False)}


def relation(identity: str, *columns: str, key: tuple[str, ...] = ()) -> Relation:
    described = tuple(RelationColumn(name in key, name, 25, -1) for name in columns)
    return Relation(1, "public", "t", identity, described)


@pytest.mark.parametrize(
    ("flagged", "catalog", "known", "key"),
    [
        # The message says which columns, and the catalog or the stream in which order.
        (AB, ("b", "a"), None, ("b", "a")),
        (AB, ID, ("b", "a"), ("b", "a")),
        (AB, ID, CODE, AB),
        (AB, (), None, AB),
        # A column of the key that is not published.
        (ID, ("hidden", "id"), None, ("hidden", "id")),
    ],
)
def test_with_the_default_identity_the_message_names_the_key(
    flagged: tuple[str, ...], catalog: tuple[str, ...], known: tuple[str, ...] | None, key: object
) -> None:
    message = relation("d", "id", "code", "a", "b", key=flagged)
    assert _primary_key(message, TableFacts(catalog, columns=THERE), known) == key


@pytest.mark.parametrize("identity", ["f", "i", "n"])
@pytest.mark.parametrize(
    ("facts", "known", "key"),
    [
        (TableFacts(ID, columns=THERE), CODE, ID),
        (TableFacts(ID, columns=THERE), None, ID),
        # Its key is from later; the table is gone.
        (TableFacts(ID, key_is_later=True, columns=THERE), CODE, CODE),
        # Every column is part of the stream's key.
        (TableFacts(ID, key_is_later=True, columns=THERE), ("code", "id"), ("code", "id")),
        (TableFacts(), CODE, CODE),
        (TableFacts(), None, ()),
        # The stream's key has columns that this message lacks.
        (TableFacts(ID, key_is_later=True, columns=THERE), ("code", "old"), ID),
    ],
)
def test_with_another_identity_the_catalog_names_the_key_unless_it_is_a_later_one(
    identity: str, facts: TableFacts, known: tuple[str, ...] | None, key: tuple[str, ...]
) -> None:
    message = relation(identity, "id", "code", key=("code",) if identity == "i" else ())
    assert _primary_key(message, facts, known) == key
