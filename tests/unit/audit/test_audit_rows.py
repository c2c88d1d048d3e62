"""Lines of the trail: their identity, their key, what is redacted and what a change left unsaid.

The oracle is literals, and PostgreSQL's rules for COPY's text format.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest

from headrace.audit.rows import COLUMNS, KEY_BYTES_MAX, RowMaker, change_id, key_text
from headrace.audit.table_book import Noted, TableBook
from headrace.consumer import Event
from headrace.contract.selection import Selection
from headrace.lsn import Position

USERS = ("public", "users")
LSN = 0x12_3456_789A


def change(
    operation: str = "INSERT", lsn: int = LSN, seq: int = 0, xid: int = 5, **payload: Any
) -> Event:
    tx = {"xid": xid, "ts": f"2026-01-01T00:00:{xid:02d}Z"}
    body = {"operation": operation, "tx": tx, **payload}
    return Event("s", *USERS, operation, Position(lsn, seq), body, "subject", 1, "s", closes=True)


def maker(source: str = "s", redact: tuple[str, ...] = (), **more: Any) -> RowMaker:
    book = TableBook({USERS: Noted(("id",))})
    return RowMaker("db", source, book, redact=Selection(exclude_columns=redact), **more)


def fields(line: bytes) -> dict[str, str]:
    return dict(zip(COLUMNS, (line + b"{}").decode().split("\t"), strict=True))


def row(event: Event, **made: Any) -> dict[str, str]:
    return fields(maker(**made).line(event, b"2026-01-02"))


def test_every_field_of_a_line_is_in_its_column() -> None:
    event = change("UPDATE", seq=3, data={"id": 1, "a": 2}, old={"id": 1, "a": 1})
    assert row(event) == {
        "id": str(change_id("s", LSN, 3)),
        "database": "db",
        "schema": "public",
        "table": "users",
        "operation": "UPDATE",
        "before": '{"id":1,"a":1}',
        "after": '{"id":1,"a":2}',
        "primary_key": "1",
        "committed_at": "2026-01-01T00:00:05Z",
        "position": str(LSN),
        "ordinal": "3",
        "transaction_id": "5",
        "queued_at": "2026-01-02",
        "unchanged": "\\N",
        "exact": "\\N",
        "source": "s",
        "context": "{}",
    }


@pytest.mark.parametrize("source", ["s", "t", "headrace"])
@pytest.mark.parametrize("seq", [0, 1, 2**14, 2**32 - 1])
@pytest.mark.parametrize("lsn", [1, 0xFFFF, 0x10000, LSN, 2**63 - 1])
def test_an_id_is_made_of_the_position_and_the_source(lsn: int, seq: int, source: str) -> None:
    """A UUID of version 8: 48 bits of the LSN, 26 of the source, 16 of the LSN, 32 of the ordinal."""
    found = uuid.UUID(row(change(lsn=lsn, seq=seq, data={"id": 1}), source=source)["id"])
    mark = int.from_bytes(hashlib.sha256(source.encode()).digest()[:4], "big") % 2**26
    text = (
        f"{lsn >> 16:048b}1000{mark >> 14:012b}10{lsn & 0xFFFF:016b}{seq:032b}{mark % 2**14:014b}"
    )
    assert len(text) == 128
    assert found == uuid.UUID(int=int(text, 2)) == change_id(source, lsn, seq)
    assert (found.version, found.variant) == (8, uuid.RFC_4122)
    assert change_id("other", lsn, seq) != found


def test_a_transactions_facts_are_those_of_its_own_event() -> None:
    made = maker()
    for lsn, xid in ((1, 5), (2, 6), (3, 7)):
        found = fields(made.line(change(lsn=lsn, xid=xid, data={"id": 1}), b"q"))
        assert (found["position"], found["transaction_id"]) == (str(lsn), str(xid))
        assert found["committed_at"] == f"2026-01-01T00:00:{xid:02d}Z"
        assert found["id"] == str(change_id("s", lsn, 0))


def test_an_insert_has_the_name_that_the_operator_chose_and_no_other_operation_does() -> None:
    for name in ("CREATE", "INSERT"):
        made = maker(insert_as=name)
        assert fields(made.line(change(data={"id": 1}), b"q"))["operation"] == name
        deleted = made.line(change("DELETE", data={"id": 1}), b"q")
        assert fields(deleted)["operation"] == "DELETE"


def test_a_truncate_has_no_row() -> None:
    found = row(change("TRUNCATE", data={}))
    assert (found["before"], found["after"], found["primary_key"]) == ("{}", "{}", "\\N")


def test_a_deleted_row_is_the_old_one_or_what_was_sent_of_its_key() -> None:
    whole = row(change("DELETE", data={"id": 1, "a": None}, old={"id": 1, "a": None}))
    assert (whole["before"], whole["after"]) == ('{"id":1,"a":null}', "{}")
    key = row(change("DELETE", data={"id": 1, "a": None}))
    assert (key["before"], key["primary_key"]) == ('{"id":1}', "1")


def test_a_value_that_was_not_sent_is_the_old_rows_or_named() -> None:
    event = change("UPDATE", data={"id": 1}, old={"id": 1, "a": "x"}, unchanged=["a", "b"])
    found = row(event)
    assert found["after"] == '{"id":1,"a":"x"}'
    assert found["unchanged"] == '{"b"}'
    assert row(change("UPDATE", data={"id": 1}, unchanged=["a"]))["unchanged"] == '{"a"}'
    # An INSERT that misses one is from a publication that filters rows.
    assert row(change(data={"id": 1}, unchanged=["a"]))["unchanged"] == '{"a"}'


def test_names_are_escaped_as_an_array_and_then_for_copy() -> None:
    odd = 'a"b\\c\td'
    found = row(change("UPDATE", data={"id": 1}, unchanged=[odd]))
    # PostgreSQL reads \\\\ as one backslash of COPY and then of the array, and \t as a tab.
    assert found["unchanged"] == '{"a\\\\"b\\\\\\\\c\\td"}'


def test_a_redacted_column_is_hidden_on_both_sides_and_a_null_stays_one() -> None:
    event = change("UPDATE", data={"id": 1, "a": 2, "b": None}, old={"id": 1, "a": 1, "b": 3})
    found = row(event, redact=("users.a", "users.b"))
    assert found["before"] == '{"id":1,"a":"[redacted]","b":"[redacted]"}'
    assert found["after"] == '{"id":1,"a":"[redacted]","b":null}'
    assert row(event, redact=("other.a",))["after"] == '{"id":1,"a":2,"b":null}'


def test_exact_texts_of_either_side_are_kept_without_redacted_columns() -> None:
    event = change(
        "UPDATE",
        data={"id": 1, "a": 1.5, "c": 2.5},
        old={"id": 1, "a": 3.5, "b": 4.5},
        exact={"a": "1.50", "c": "2.50", "gone": "9"},
        exact_old={"a": "3.50", "b": "4.50", "gone": "9"},
    )
    assert row(event, redact=("users.c",))["exact"] == (
        '{"before":{"a":"3.50","b":"4.50"},"after":{"a":"1.50"}}'
    )
    assert row(change(data={"id": 1, "a": 1.5}, exact={"a": "1.50"}))["exact"] == (
        '{"after":{"a":"1.50"}}'
    )


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"id": 7}, ["id"], "7"),
        ({"id": True}, ["id"], "true"),
        ({"id": False}, ["id"], "false"),
        ({"id": 1.5}, ["id"], "1.5"),
        ({"id": "text"}, ["id"], "text"),
        ({"id": b"\x01\xff"}, ["id"], "\\x01ff"),
        ({"id": {"a": 1}}, ["id"], '{"a":1}'),
        ({"a": 1, "b": "x"}, ["b", "a"], '["x","1"]'),
        ({"a": 1, "b": None}, ["b", "a"], None),
        ({"a": 1}, ["id"], None),
        ({"a": 1}, [], None),
    ],
)
def test_a_key_is_the_text_of_its_value_or_the_array_of_its_values_texts(
    values: dict[str, Any], key: list[str], text: str | None
) -> None:
    assert key_text(values, key) == text


def test_a_long_key_keeps_its_beginning_and_what_tells_it_from_others() -> None:
    longest = "x" * KEY_BYTES_MAX
    assert key_text({"id": longest}, ["id"]) == longest
    digest = hashlib.sha256(f"{longest}y".encode()).hexdigest()
    assert key_text({"id": longest + "y"}, ["id"]) == f"{'x' * 200}…#{digest}"


def test_the_key_of_an_update_is_the_new_one_and_of_its_parts_the_old_one_where_not_sent() -> None:
    assert row(change("UPDATE", data={"id": 2}, old={"id": 1}))["primary_key"] == "2"
    event = change("UPDATE", data={"a": 2}, old={"a": 1, "b": 7}, key=["a", "b"])
    assert row(event)["primary_key"] == '["2","7"]'
    assert row(change("UPDATE", data={"a": 2}, key=["a", "b"]))["primary_key"] == "\\N"
    assert row(change(data={"a": "x\ty"}, key=["a"]))["primary_key"] == "x\\ty"
