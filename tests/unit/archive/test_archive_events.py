"""Events that are made of archived rows again: their ids, their subjects, their ends."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from headrace.archive.entry import RowEntry, RowKind
from headrace.archive.errors import ArchiveError, WalFileCorruptError
from headrace.archive.metadata import ColumnInfo, TableInfo, WalFileInfo, decode, encode
from headrace.archive.payloads import Payloads, members
from headrace.lsn import ORIGIN, Gap, Position

COLUMNS = (ColumnInfo("id", 20, -1, "bigint", True), ColumnInfo("a", 25, -1, "text", False))
TABLE = TableInfo("public", "t", 7, 1, ("id",), COLUMNS)
INFO = WalFileInfo(
    3, "a", 1, "w", "src", "d", "1", 1, 1, 999, 0, ORIGIN, Position(900, 0), tables=(TABLE,)
)


def row(operation: str = "insert", lsn: int = 50, ordinal: int = 0, **fields: Any) -> RowEntry:
    known: dict[str, Any] = {
        "commit_lsn": 100,
        "ordinal": ordinal,
        "lsn": lsn,
        "xid": 9,
        "commit_time_us": 1_500_000,
        "schema": "public",
        "table": "t",
        "operation": operation,
        "key_json": '{"id":1}',
        "before_json": None,
        "after_json": None,
        "unchanged": None,
        "schema_version": 1,
    }
    return RowEntry(**{**known, **fields})


def events(*rows: RowEntry, info: WalFileInfo = INFO, made: Payloads | None = None) -> list[Any]:
    return list((made or Payloads()).of((info, one) for one in rows))


def bodies(*rows: RowEntry, info: WalFileInfo = INFO) -> list[dict[str, Any]]:
    return [json.loads(one.payload) for one in events(*rows, info=info)]


def test_an_event_has_what_the_contract_says() -> None:
    (event,) = events(
        row("update", before_json='{"id":1,"a":"x"}', after_json='{"id":1}', unchanged=["a"])
    )
    assert json.loads(event.payload) == {
        "subject": "cdc.t.update",
        "table": "t",
        "operation": "UPDATE",
        "msg_id": event.msg_id,
        "relation_id": 7,
        "data": {"id": 1},
        "schema": "public",
        "source": "src",
        "lsn": 50,
        "tx": {
            "xid": 9,
            "lsn": 100,
            "ts": "1970-01-01T00:00:01.500000Z",
            "seq": 0,
            "last": True,
        },
        "old": {"id": 1, "a": "x"},
        "unchanged": ["a"],
    }
    assert (event.subject, event.position, event.table) == ("cdc.t.update", Position(100, 0), TABLE)
    (plain,) = bodies(row(after_json="{}"))
    assert not {"old", "unchanged", "exact", "exact_old"} & plain.keys()
    (untimed,) = bodies(row(after_json="{}", commit_time_us=None))
    assert untimed["tx"]["ts"] is None


def test_changes_of_one_record_have_ids_that_count_them_by_table_and_kind() -> None:
    made = events(
        row(lsn=50, ordinal=0, after_json="{}"),
        row(lsn=50, ordinal=1, after_json="{}"),
        row("update", lsn=50, ordinal=2, after_json="{}"),
        row(lsn=50, ordinal=3, after_json="{}"),
        row(lsn=60, ordinal=4, after_json="{}"),
        row(lsn=50, ordinal=5, after_json="{}"),
    )
    ids = [event.msg_id for event in made]
    assert ids[5] == ids[0], "another record at this LSN begins again"
    assert len({*ids}) == 5
    assert (ids[1], ids[3]) == (f"{ids[0]}-1", f"{ids[0]}-2")


def test_a_row_that_is_not_delivered_counts_among_those_of_its_record() -> None:
    first, second = events(row(after_json="{}"), row(ordinal=1, after_json="{}"))
    made = Payloads()
    made.count(row())
    (event,) = events(row(ordinal=1, after_json="{}"), made=made)
    assert event.msg_id == second.msg_id != first.msg_id
    made = Payloads()
    made.count(row("message", schema=None))
    made.count(row("message", table=None))
    (event,) = events(row(after_json="{}"), made=made)
    assert event.msg_id == first.msg_id


def test_the_last_event_of_each_transaction_says_so_and_gaps_are_none() -> None:
    rows = [
        row(ordinal=0, after_json="{}"),
        row(ordinal=1, after_json="{}"),
        row("gap", commit_lsn=150, schema=None, table=None),
        row(commit_lsn=200, after_json="{}"),
    ]
    assert [body["tx"]["last"] for body in bodies(*rows)] == [False, True, True]
    cut = replace(INFO, whole=False, last=Position(200, 0))
    assert [body["tx"]["last"] for body in bodies(*rows, info=cut)] == [False, True, False]
    assert bodies() == []


def test_an_emitted_message_has_its_prefix_and_content() -> None:
    (event,) = events(
        row(
            "message",
            schema=None,
            table=None,
            key_json='{"prefix":"p"}',
            after_json='{"content":"c"}',
        )
    )
    body = json.loads(event.payload)
    assert (body["prefix"], body["content"], body["operation"]) == ("p", "c", "MESSAGE")
    assert (body["source"], body["lsn"], body["subject"]) == ("src", 50, event.subject)
    assert event.table is None


def test_a_deleted_rows_data_is_its_key_and_nulls() -> None:
    (body,) = bodies(row("delete", before_json='{"id":1,"a":"x"}'))
    assert (body["data"], body["old"]) == ({"id": 1, "a": None}, {"id": 1, "a": "x"})
    (nothing,) = bodies(row("delete"))
    assert nothing["data"] == {"id": None, "a": None}
    (truncated,) = bodies(row("truncate"))
    assert truncated["data"] == {}


def test_texts_accompany_the_side_that_they_are_of() -> None:
    exact = '{"after":{"a":"1.50"},"before":{"id":"1.0","a":"2.50"}}'
    (update,) = bodies(row("update", after_json="{}", before_json="{}", exact_json=exact))
    assert (update["exact"], update["exact_old"]) == ({"a": "1.50"}, {"id": "1.0", "a": "2.50"})
    (delete,) = bodies(row("delete", before_json='{"id":1.0,"a":2.50}', exact_json=exact))
    assert (delete["exact"], delete["exact_old"]) == ({"id": "1.0"}, {"id": "1.0", "a": "2.50"})
    (event,) = events(row("delete", before_json='{"id":1.0,"a":2.50}', exact_json=exact))
    assert b'"id":1.0,' in event.payload, "a deleted key has every digit"
    (one,) = bodies(row(after_json="{}", exact_json='{"after":{"a":"1.50"}}'))
    assert "exact_old" not in one


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a":1}',
        '{"a": 1.50 ,"b":[1,{"c":"}"}]}',
        '{"a\\"b":null,"c":"x,y"}',
        '{"a":\n\t1\r,"b":2 }',
    ],
)
def test_the_members_of_a_document_are_taken_as_their_texts(text: str) -> None:
    """A comma or a brace within a member is no end of it, and a document may have spaces around."""
    found = {name: orjson.dumps(part).decode() for name, part in members(text).items()}
    assert {name: json.loads(part) for name, part in found.items()} == json.loads(text)
    assert found.get("a", "1").strip() in {"1", "1.50"}


def test_a_table_that_its_file_does_not_describe_is_an_error() -> None:
    for wrong in ({"schema_version": 2}, {"schema_version": None}, {"table": "u"}, {"schema": "s"}):
        with pytest.raises(ArchiveError, match="file 3 does not describe"):
            events(row(after_json="{}", **wrong))


def test_a_rows_kind_and_time_are_those_of_its_fields() -> None:
    assert [row(name).kind for name in ("insert", "update", "delete", "truncate", "gap")] == [
        RowKind.PUT,
        RowKind.PUT,
        RowKind.DELETE,
        RowKind.TRUNCATE,
        RowKind.GAP,
    ]
    assert row().commit_time == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert row(commit_time_us=None).commit_time is None
    assert (row().key, row().before, row().after) == ({"id": 1}, None, None)
    assert (row().exact, row().exact_before) == ({}, {})


FULL = replace(
    INFO,
    gap=Gap(1, 2, "slot_moved"),
    after=Position(8, 1),
    versions={"t": (2, "shape")},
    groups=((0, 5, "x"),),
    whole=False,
    page_checksums=True,
    footer_checksum=True,
    checksum="c",
    checksum_bytes=4,
    previous="p",
    time_us=77,
)


def test_metadata_is_read_as_it_was_written() -> None:
    for info in (INFO, FULL):
        assert decode(encode(info)) == info


def test_metadata_of_an_older_version_lacks_what_came_later() -> None:
    body = json.loads(encode(FULL))
    for later in ("after", "groups", "footer_checksum", "page_checksums"):
        del body[later]
    found = decode(json.dumps(body).encode())
    assert (found.after, found.groups) == (None, ())
    assert not found.footer_checksum
    assert not found.page_checksums


def test_metadata_of_a_later_version_is_read_without_what_it_adds_at_any_level() -> None:
    body = json.loads(encode(FULL))
    for part in (body, body["gap"], *body["tables"], *body["tables"][0]["columns"]):
        part["unheard_of"] = {"number": 1}
    assert decode(json.dumps(body).encode()) == FULL


def test_metadata_of_a_newer_format_is_refused_with_what_to_do() -> None:
    body = json.loads(encode(INFO))
    body["format"] += 1
    with pytest.raises(WalFileCorruptError, match=r"format 2.*newer Headrace"):
        decode(json.dumps(body).encode())
    for wrong in (b"", b"[]", b"{}", b'{"format":1}', json.dumps({**body, "format": "x"}).encode()):
        with pytest.raises(WalFileCorruptError, match="its metadata is malformed"):
            decode(wrong)
