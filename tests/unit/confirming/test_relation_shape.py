"""Reading rows of a relation, without the columns that the operator hides."""

from __future__ import annotations

import struct

import pytest

from headrace.confirming.relation_shape import DescribedRelations, RelationShape
from headrace.confirming.row_compiler import COLUMNS_MAX, compiled, compiled_texts
from headrace.confirming.transaction_cursor import ProtocolError
from headrace.contract import scalars
from headrace.contract.selection import Selection
from headrace.contract.values import ValueOptions
from headrace.pgoutput.messages import UNCHANGED, Relation, RelationColumn
from headrace.postgres.facts import TableFacts

RELATION_ID = 0x01020304
INT4, TEXT = 23, 25
COLUMNS = (("id", INT4, True), ("secret", TEXT, True), ("zone", INT4, True), ("name", TEXT, False))


def shape(*, hidden: tuple[str, ...] = (), identity: str = "d") -> RelationShape:
    columns = tuple(RelationColumn(is_key, name, oid, -1) for name, oid, is_key in COLUMNS)
    relation = Relation(RELATION_ID, "public", "users", identity, columns)
    selection = Selection(exclude_columns=tuple(f"users.{name}" for name in hidden))
    return RelationShape.of(relation, TableFacts(), ValueOptions(), selection)


def test_a_row_has_the_columns_that_are_shown_and_names_those_that_were_not_sent() -> None:
    one = shape(hidden=("secret",))
    assert one.shown == ("id", "zone", "name")
    assert one.hidden == {1}
    values = one.row((b"1", b"hidden", UNCHANGED, None))
    assert values.native == {"id": 1, "name": None}
    assert values.unchanged == ["zone"]
    assert shape().hidden == frozenset()


def test_an_old_key_has_the_key_columns_that_are_shown_and_null_for_what_was_not_sent() -> None:
    one = shape(hidden=("secret",))
    values = one.key_row((b"1", b"hidden", UNCHANGED, b"not of the key"))
    assert values.native == {"id": 1, "zone": None}
    assert one.key_row((None, None, b"2", None)).native == {"id": None, "zone": 2}


def test_the_row_before_is_whole_or_its_key_or_unknown() -> None:
    one = shape()
    whole = one.old_row(None, (b"1", b"a", b"2", b"b"))
    assert whole is not None
    assert whole.native == {"id": 1, "secret": "a", "zone": 2, "name": "b"}
    key = one.old_row((b"1", b"a", b"2", None), None)
    assert key is not None
    assert key.native == {"id": 1, "secret": "a", "zone": 2}
    assert one.old_row(None, None) is None


def test_a_row_with_another_number_of_columns_is_not_read() -> None:
    for read in (shape().row, shape().key_row):
        with pytest.raises(ValueError, match="zip"):
            read((b"1", b"a", b"2"))


def test_the_identity_is_a_keys_unless_it_is_full_or_nothing() -> None:
    assert [shape(identity=one).identity_is_key for one in "difn"] == [True, True, False, False]
    assert shape().identity == ("id", "secret", "zone")


class Described:
    def __init__(self, shape: RelationShape) -> None:
        self.shape = shape


def test_a_message_is_read_in_the_shape_of_the_relation_that_it_names() -> None:
    known: DescribedRelations[Described] = DescribedRelations()
    known[RELATION_ID] = Described(shape(hidden=("secret",)))
    row = b"I" + struct.pack(">I", RELATION_ID) + b"N"
    assert known.hidden(row) == {1}
    assert known.hidden(b"I" + struct.pack(">I", 7) + b"N") == frozenset()
    assert known.hidden(b"I") == frozenset()
    with pytest.raises(ProtocolError, match="relation 7"):
        _ = known[7]


def insert(*values: bytes) -> bytes:
    parts = [b"t" + struct.pack(">I", len(value)) + value for value in values]
    return b"I" + struct.pack(">IcH", RELATION_ID, b"N", len(values)) + b"".join(parts)


def test_code_is_made_for_tables_up_to_a_width() -> None:
    widest = [(f"c{number}", scalars.text) for number in range(COLUMNS_MAX)]
    read = compiled(widest, lambda row: str(len(row)).encode())  # type: ignore[arg-type]  # a dict
    assert read is not None
    assert read(insert(*[b"x"] * COLUMNS_MAX)) == (str(COLUMNS_MAX).encode(), b"")
    assert compiled([*widest, ("one_more", scalars.text)], repr) is None  # type: ignore[arg-type]  # never called


def test_hidden_columns_are_passed_over_wherever_they_are() -> None:
    columns = (("a", None), ("id", scalars.integer), ("b", None), ("name", scalars.text))
    read = compiled_texts(columns, ("id",))
    assert read is not None
    found = read(insert(b"hidden", b"1", b"too", b"Ada"))
    assert found == (b'{"id":1,"name":"Ada"}', b'{"id":1}')


def test_the_whole_old_row_is_written_before_the_new_one_behind_its_head() -> None:
    columns = (("id", scalars.integer), ("name", scalars.text))
    read = compiled(columns, lambda row: str(row).encode(), old_head=b"old:", end=b".")
    assert read is not None
    new = insert(b"1", b"Ada")
    old = insert(b"1", b"Eve")
    update = b"U" + old[1:5] + b"O" + old[6:] + new[5:]
    assert read(update) == (
        b"{'id': 1, 'name': 'Ada'}",
        b"old:{'id': 1, 'name': 'Eve'}.",
    )
