"""Texts that native forms lose are stored next to them and restored for readers; other values get
none.
"""

from __future__ import annotations

import json

import pytest

from headrace.confirming.relation_shape import RelationShape
from headrace.contract import events, exact, type_oids
from headrace.contract.exact import ExactText, Inexact
from headrace.contract.values import ArrayForm, Encoding, JsonForm, ValueOptions, converter
from headrace.pgoutput import messages
from headrace.postgres.facts import TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.published_event import PublishedEvent
from headrace.publisher.table_events import TableEvents

both = pytest.mark.parametrize("encoding", list(Encoding))
JSONB_ARRAY, INT_ARRAY, BOX_ARRAY, BYTEA_ARRAY = 3807, 1007, 1020, 1001
DEEP = "[" * 600 + "]" * 600

LOST_IN_BOTH = [
    "null",
    '{"p": 1.50}',
    "[2.00]",
    "12345678901234567890123",
    "0.1234567890123456789",
    DEEP,
]
LOST_IN_JSON = [
    '{"a": 1, "a": 2}',
    "-0",
    "1e400",
    "1e5",
    r'"\ud800"',
    " null ",
    '{"a": {"b": 1, "b": 1}}',
    "0.00",
]
KEPT = ["{}", '{"a": null}', "1.5", "2.0", "0.0000001", "10000000000000000000000", "18446744073709551615", "-1",
        '"null"', '"1.50"', r'{"v": "\" 1.50, 12345678901234567890123"}',
        '{"id": "6ecd8c99-4036-403d-bf84-cf8400f67836"}']  # fmt: skip
KEPT_IN_JSON = [' { "a" :\n1 } ', r'"\u00e9"', r'{"\u0061": 1}']


def text_beside(oid: int, value: str, options: ValueOptions) -> str | None:
    found = converter(oid, options, lambda _: None)(value.encode())
    return found.text if isinstance(found, Inexact) else None


@both
@pytest.mark.parametrize("oid", [type_oids.JSON, type_oids.JSONB])
@pytest.mark.parametrize("document", LOST_IN_BOTH, ids=lambda text: text[:20])
def test_a_document_that_its_native_form_is_not_all_of_has_its_text(
    encoding: Encoding, oid: int, document: str
) -> None:
    assert text_beside(oid, document, ValueOptions(encoding)) == document
    assert text_beside(oid, document, ValueOptions(encoding, json_values=JsonForm.TEXT)) is None


@both
@pytest.mark.parametrize("document", LOST_IN_JSON)
def test_json_keeps_what_was_written(encoding: Encoding, document: str) -> None:
    assert text_beside(type_oids.JSON, document, ValueOptions(encoding)) == document


@both
@pytest.mark.parametrize("oid", [type_oids.JSON, type_oids.JSONB])
@pytest.mark.parametrize("document", KEPT)
def test_nothing_stands_beside_a_document_that_loses_nothing(
    encoding: Encoding, oid: int, document: str
) -> None:
    assert text_beside(oid, document, ValueOptions(encoding)) is None


@both
@pytest.mark.parametrize("document", KEPT_IN_JSON)
def test_spaces_and_escapes_are_no_loss(encoding: Encoding, document: str) -> None:
    assert text_beside(type_oids.JSON, document, ValueOptions(encoding)) is None


@both
@pytest.mark.parametrize(
    ("oid", "literal", "lost"),
    [
        (JSONB_ARRAY, '{"[1, 2]","[3, 4]"}', True),
        (JSONB_ARRAY, '{"null",NULL}', True),
        (JSONB_ARRAY, '{"{\\"p\\": 1.50}"}', True),
        (JSONB_ARRAY, '{"{\\"a\\": [1]}",NULL,true,"\\"1\\""}', False),
        (INT_ARRAY, "[0:1]={7,8}", True),
        (INT_ARRAY, "{{1,2},{3,NULL}}", False),
        (BOX_ARRAY, "{(1,1),(0,0)}", True),
        (BYTEA_ARRAY, '{"\\\\x00ff"}', False),
    ],
)
def test_a_list_that_does_not_tell_its_array_has_the_literal(
    encoding: Encoding, oid: int, literal: str, lost: bool
) -> None:
    assert text_beside(oid, literal, ValueOptions(encoding, ArrayForm.LIST)) == (
        literal if lost else None
    )
    assert text_beside(oid, literal, ValueOptions(encoding)) is None


def table(encoding: Encoding) -> TableEvents:
    columns = (
        messages.RelationColumn(True, "id", 23, -1),
        messages.RelationColumn(True, "doc", type_oids.JSONB, -1),
    )
    relation = messages.Relation(1, "public", "t", "f", columns)
    return TableEvents.of(RelationShape.of(relation, TableFacts(), ValueOptions(encoding)))


def assembled(
    encoding: Encoding, *stream: messages.PgoutputMessage, compat: bool = False
) -> list[dict[str, object]]:
    assembler = Assembler("headrace", encoding, compat=compat)
    assembler.learn(table(encoding))
    made = (
        item
        for sent in (messages.Begin(99, 0, 7), *stream, messages.Commit(0, 99, 100, 0))
        for item in assembler.feed(9, sent)
    )
    payloads = [events.decode(item.payload) for item in made if isinstance(item, PublishedEvent)]
    return [payload for payload in payloads if payload["operation"] != "SCHEMA"]


@both
def test_an_event_has_the_texts_of_its_row_and_of_its_old_row(encoding: Encoding) -> None:
    insert, update, delete, plain = assembled(
        encoding,
        messages.Insert(1, (b"1", b"null")),
        messages.Update(1, None, (b"1", b"null"), (b"1", b'{"p": 1.50}')),
        messages.Delete(1, None, (b"1", b'{"p": 1.50}')),
        messages.Insert(1, (b"2", None)),
    )
    assert insert["exact"] == {"doc": "null"}
    assert (update["exact"], update["exact_old"]) == ({"doc": '{"p": 1.50}'}, {"doc": "null"})
    assert (delete["exact"], delete["exact_old"]) == (
        {"doc": '{"p": 1.50}'},
        {"doc": '{"p": 1.50}'},
    )
    assert "exact" not in plain
    assert exact.row(plain) == {"id": 2, "doc": None}
    assert exact.row(update) == {"id": 1, "doc": ExactText('{"p": 1.50}')}
    assert exact.old_row(update) == {"id": 1, "doc": ExactText("null")}


@both
def test_a_bridges_event_has_no_new_key(encoding: Encoding) -> None:
    (event,) = assembled(encoding, messages.Insert(1, (b"1", b"null")), compat=True)
    assert set(event) == {
        "data",
        "msg_id",
        "operation",
        "relation_id",
        "subject",
        "table",
        "columns",
    }


def test_the_stub_of_a_large_event_leaves_the_texts_to_the_whole() -> None:
    (event,) = assembled(Encoding.MSGPACK, messages.Insert(1, (b"1", b"null")))
    assert "exact" not in events.referring(event, {"id"}, 7, "bucket")


@pytest.mark.parametrize(
    ("number", "read"),
    [("0.1234567890123456789", "0.1234567890123456789"), ("12345678901234567890.5", "12345678901234567890.5"),
     ("1e-400", "1e-400"), ("18446744073709551616", "18446744073709551616"), ("1.50", 1.5),
     ("18446744073709551615", 2**64 - 1)],
)  # fmt: skip
def test_a_number_is_read_from_json_as_from_messagepack(number: str, read: object) -> None:
    payload = f'{{"data": {{"doc": {{"n": {number}, "s": "\\" 1.50"}}}}}}'.encode()
    assert events.decode(payload)["data"]["doc"] == {"n": read, "s": '" 1.50'}
    native = converter(type_oids.JSON, ValueOptions(), lambda _: None)(
        f'{{"n": {number}}}'.encode()
    )
    assert exact.native(native) == {"n": read}
    assert json.loads(payload)
