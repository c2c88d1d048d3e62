"""The values of a row of the trail: documents digit for digit, bytea in PostgreSQL's form, the
change's key.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.audit import query
from headrace.audit.query import Search
from headrace.audit.rows import COLUMNS, RowMaker
from headrace.audit.stitching import Batch
from headrace.audit.table_book import Noted, TableBook
from headrace.audit.values import context_json, escaped, row_json, unreadable
from headrace.audit_writer import source
from headrace.audit_writer.session import Session
from headrace.consumer import Event
from headrace.contract.selection import Selection
from headrace.lsn import Position
from headrace.postgres.facts import RelationFiles

USERS = ("public", "users")
_ESCAPED, _NAMED = re.compile(r"\\(.)", re.DOTALL), {"n": "\n", "t": "\t", "r": "\r"}


def change(operation: str = "INSERT", seq: int = 0, **payload: Any) -> Event:
    """A change of `users`, as the consumer library gives it."""
    tx = {"xid": 5, "lsn": 10, "ts": "2026-01-01T00:00:00Z", "seq": seq, "last": True}
    body = {
        "operation": operation,
        "tx": tx,
        "relation_id": 1,
        "schema": "public",
        "table": "users",
        **payload,
    }
    return Event(
        "s", *USERS, operation, Position(10, seq), body, "subject", seq + 1, "s", closes=True
    )


def row(
    event: Event, *, binary: tuple[str, ...] = (), redact: tuple[str, ...] = ()
) -> dict[str, str | None]:
    """The line's fields as COPY reads them."""
    book = TableBook({USERS: Noted(("id",), binary)})
    line = RowMaker("db", "s", book, redact=Selection(exclude_columns=redact)).line(
        event, b"2026-01-01"
    )
    fields = (line + b"{}").decode().split("\t")
    plain = [
        None if one == "\\N" else _ESCAPED.sub(lambda m: _NAMED.get(m[1], m[1]), one)
        for one in fields
    ]
    return dict(zip(COLUMNS, plain, strict=True))


def document(text: str | None) -> Any:
    assert text is not None
    return json.loads(text, parse_float=Decimal)


def test_documents_are_digit_for_digit_and_their_text_is_kept_beside() -> None:
    text = '{"price": 1.50, "n": 12345678901234567890123}'
    event = change(
        "UPDATE",
        data={"id": 1, "doc": {"price": 1.5, "n": "12345678901234567890123"}, "kept": None},
        old={"id": 1, "doc": None, "big": "0.10"},
        unchanged=["big"],
        exact={"doc": text},
        exact_old={"doc": "null", "big": "[0.10]"},
    )
    found = row(event)
    assert document(found["after"])["doc"] == {
        "price": Decimal("1.50"),
        "n": 12345678901234567890123,
    }
    assert str(document(found["after"])["doc"]["price"]) == "1.50"
    assert document(found["exact"]) == {
        "before": {"doc": "null", "big": "[0.10]"},
        "after": {"doc": text, "big": "[0.10]"},
    }
    assert row(change(data={"id": 1, "doc": None}))["exact"] is None


def test_a_document_that_jsonb_refuses_is_shown_as_the_event_has_it_and_kept_as_its_text() -> None:
    texts = {
        "nul": '{"a": "\\u0000"}',
        "pair": '"\\ud800"',
        "huge": "1e99999",
        "spaced": '{ "a":\n 1}',
    }
    found = row(
        change(
            data={
                "id": 1,
                "nul": {"a": "\x00"},
                "pair": "\\ud800",
                "huge": "1e99999",
                "spaced": {"a": 1},
            },
            exact=texts,
        )
    )
    assert document(found["exact"])["after"] == texts
    assert document(found["after"]) == {
        "id": 1,
        "nul": {"a": "\\u0000"},
        "pair": "\\ud800",
        "huge": "1e99999",
        "spaced": {"a": 1},
    }


def test_what_jsonb_can_not_hold_is_kept_as_text_also_where_the_event_has_all_of_it() -> None:
    values = {
        "id": 1,
        "nul": {"a": ["\x00"]},
        "key": {"\x00": 1},
        "like": "\\u0000",
        "plain": {"a": "\\"},
    }
    found = row(change(data=values))
    assert document(found["exact"]) == {
        "after": {"nul": '{"a": ["\\u0000"]}', "key": '{"\\u0000": 1}'}
    }


def test_the_literal_of_an_array_that_came_as_a_list_is_no_document() -> None:
    texts = {"a": "{}", "b": "[0:1]={1,2}", "c": "[]", "d": '{"{}"}'}
    found = row(change(data={"id": 1, "a": [], "b": [1, 2], "c": [], "d": [{}]}, exact=texts))
    assert document(found["after"]) == {"id": 1, "a": [], "b": [1, 2], "c": [], "d": [{}]}
    assert document(found["exact"])["after"] == texts


def test_a_redacted_column_is_not_in_the_exact_texts_either() -> None:
    found = row(
        change(data={"id": 1, "doc": "1.5", "n": 1}, exact={"doc": "1.50"}), redact=("users.doc",)
    )
    assert found["exact"] is None
    assert "1.5" not in str(found["after"])


def test_bytea_of_a_json_event_is_written_as_postgresql_writes_it() -> None:
    word = base64.b64encode(b"hello").decode()
    event = change(
        data={
            "id": 1,
            "b": word,
            "l": [word, None, [word]],
            "a": '{"\\\\x00"}',
            "text": word,
            "none": None,
        }
    )
    found = document(row(event, binary=("b", "l", "a", "none"))["after"])
    hexed = "\\x68656c6c6f"
    assert found == {
        "id": 1,
        "b": hexed,
        "l": [hexed, None, [hexed]],
        "a": '{"\\\\x00"}',
        "text": word,
        "none": None,
    }
    packed = change("DELETE", data={"id": b"hello"}, old={"id": b"hello"}, key=["id"])
    assert row(packed, binary=("id",))["primary_key"] == hexed


def test_the_key_is_the_one_that_the_change_names_whatever_the_book_says() -> None:
    assert row(change(data={"id": 1, "a": 2, "b": 3}, key=["b", "a"]))["primary_key"] == '["3","2"]'
    assert row(change(data={"id": 1}, key=[]))["primary_key"] is None
    # One of an earlier version names none.
    assert row(change(data={"id": 1}))["primary_key"] == "1"


def test_a_table_is_missing_where_its_first_change_comes_before_its_description() -> None:
    schema = change(
        "SCHEMA",
        primary_key=["id"],
        replica_identity="d",
        columns=[{"name": "b", "data_type": "bytea"}],
        resync=False,
    )
    assert TableBook().missing([change(), schema]) == {USERS}
    assert TableBook().missing([schema, change()]) == set()
    book = TableBook()
    book.learn(schema.position, schema.payload)
    noted = book.tables[USERS]
    assert (book.missing([change()]), noted.key, noted.binary) == (set(), ("id",), ("b",))


def test_what_is_read_of_a_table_ahead_of_a_batch_is_kept_with_a_later_one() -> None:
    """After a crash the trail continues behind the batch, with what was kept: later descriptions are
    read again.
    """
    book = TableBook({USERS: Noted(("id",))})
    nothing: Any = None
    session = Session(nothing, nothing, nothing, nothing, "s", nothing, nothing, book, nothing)
    for seq, key in ((3, ["a"]), (7, ["b"])):
        event = change("SCHEMA", seq, primary_key=key, replica_identity="d", resync=True)
        session._take(event, b"")
    assert session._learned_by(Batch(position=Position(10, 2))) == {}
    assert session._learned_by(Batch(position=Position(10, 6)))[USERS].key == ("a",)
    assert session._learned_by(Batch(position=Position(11, 0)))[USERS].key == ("b",)


async def test_what_is_known_of_tables_is_kept_with_the_trail_wherever_another_source_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another server's positions mean nothing here, and may be far beyond this source's."""

    async def files(_: object, relation_ids: Iterable[int]) -> dict[int, RelationFiles]:
        return {one: RelationFiles("1:1", 5, first=True) for one in relation_ids}

    monkeypatch.setattr(source, "files", files)
    book = TableBook({USERS: Noted(("id",), relation_id=1)})
    scope: Any = SimpleNamespace(health=SimpleNamespace(stats={}))
    nothing: Any = None
    session = Session(scope, nothing, nothing, nothing, "s", nothing, nothing, book, nothing)
    ours = change("SCHEMA", 3, primary_key=["a"], replica_identity="d", resync=False)
    theirs = change("SCHEMA", primary_key=["b"], replica_identity="d", resync=False)
    await session._add([ours, theirs._replace(source="t", position=Position(10**12, 0))])
    found = session._learned_by(Batch(position=Position(10, 3)))
    assert (found[USERS].key, found[USERS].files) == (("a",), "1:1")


def test_a_key_of_several_columns_is_found_however_its_array_is_spaced() -> None:
    _, arguments = query.conditions(Search(key='["a", "é"]'))
    assert arguments == [['["a", "é"]', '["a","é"]']]
    assert query.conditions(Search(key="[no array"))[1] == [["[no array"]]


@pytest.mark.parametrize("number", ["1e400", "-1.5E+130998", "1e-15999", "9" * 400])
def test_a_number_within_numerics_range_is_kept_in_a_context_digit_for_digit(number: str) -> None:
    text = f'{{"n": {number}, "m": 1e400}}'
    assert context_json(text) == text.encode()


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 1e131000}',
        '{"n": 1e-16000, "m": 1e400}',
        '{"n": NaN, "m": 1e400}',
        '{"n": Infinity, "m": 1e400}',
        '{"n": 1e400, "m": "\\ud800"}',
        "no JSON",
        '{"n": 1',
    ],
)
def test_a_context_that_postgresql_would_refuse_is_kept_as_a_text(text: str) -> None:
    assert json.loads(context_json(text)) == {"_text": text}


def test_a_context_of_a_nul_is_cleaned_and_of_null_is_empty() -> None:
    assert context_json("null") == b"{}"
    assert json.loads(context_json('{"a": "\\u0000b"}')) == {"a": "\\u0000b"}
    assert json.loads(context_json('{"a": 1}')) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            '{"user": 1, "SQL": "SELECT \'a"b\'"}',
            {"user": 1, "SQL": "SELECT 'a\"b'"},
        ),
        (
            '{"a": ", \\"SQL\\":", "SQL": "x"y"}',
            {"a": ', "SQL":', "SQL": 'x"y'},
        ),
        ('{"a": [, "SQL": "x"y"}', None),
    ],
)
def test_a_comment_whose_statement_breaks_it_keeps_its_fields(
    text: str, fields: dict[str, Any] | None
) -> None:
    assert json.loads(context_json(text)) == (fields or {"_text": text})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
        (None, "null"),
        (1.5, "1.5"),
        (b"\x01\xff", '"\\\\x01ff"'),
        ("a\x00b", '"a\\\\u0000b"'),
        ([float("nan"), {"a": None}], '["NaN",{"a":null}]'),
        ({"a\x00": [b"\x01"]}, '{"a\\\\u0000":["\\\\x01"]}'),
    ],
)
def test_every_value_has_a_form_that_jsonb_reads(value: object, shown: str) -> None:
    assert row_json({"v": value}).decode() == f'{{"v":{shown}}}'


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"plain", b"plain"),
        (b"a\nb", b"a\\nb"),
        (b"a\tb", b"a\\tb"),
        (b"a\rb", b"a\\rb"),
        (b"a\\nb\n", b"a\\\\nb\\n"),
    ],
)
def test_a_field_of_copy_has_neither_lines_nor_tabs(text: bytes, field: bytes) -> None:
    assert escaped(text) == field


def test_json_that_postgresql_refused_after_all_is_kept_with_the_reason() -> None:
    assert json.loads(unreadable("{1}", "22P02")) == {"_unreadable": "22P02", "_text": "{1}"}
