"""The pure parts of snapshots: requests as data, ranges, chunks, numbers, and the pairing of a
request's two views.
"""

from __future__ import annotations

import json

import msgpack
import pytest

from headrace.contract.events import decode
from headrace.contract.exact import rows as exact_rows
from headrace.contract.values import ArrayForm, Encoding, JsonForm, TypeInfo, TypeKind
from headrace.settings import SnapshotValues
from headrace.snapshot_responder.chunk_permits import Throttle
from headrace.snapshot_responder.chunks import Chunk, ChunkCutter, block_of, key_only, message
from headrace.snapshot_responder.numbering import ChunkNumbers, NumberingError
from headrace.snapshot_responder.request_pairing import Answer, Pairing, may_be_told
from headrace.spark.plan import PlannedColumn, SnapshotPlan
from headrace.spark.ranges import PageRange, TableStorage, cut_ranges, deal
from headrace.spark.request import Condition, RequestError, parse_request

both_encodings = pytest.mark.parametrize("encoding", list(Encoding))


def test_every_page_is_in_exactly_one_range_and_the_last_has_no_end() -> None:
    ranges = cut_ranges(
        [TableStorage("a", 10, 1), TableStorage("b", 0, 2), TableStorage("c", 8, 3)], 4
    )
    assert [(r.index, r.relation, r.first, r.end) for r in ranges] == [
        (0, "a", 0, 4),
        (1, "a", 4, 8),
        (2, "a", 8, None),
        (3, "c", 0, 4),
        (4, "c", 4, None),
    ]
    assert cut_ranges([], 4) == ()


@pytest.mark.parametrize(("count", "tasks_max"), [(0, 3), (1, 3), (3, 3), (10, 3), (257, 256)])
def test_ranges_are_dealt_evenly_and_none_is_left_out(count: int, tasks_max: int) -> None:
    ranges = cut_ranges([TableStorage("t", count, 1)], 1)
    tasks = deal(ranges, tasks_max)
    assert [page_range for task in tasks for page_range in task] == list(ranges)
    assert len(tasks) == min(count, tasks_max)
    if tasks:
        assert max(map(len, tasks)) - min(map(len, tasks)) <= 1


def cut(
    rows: list[dict[str, object]], steps: int, encoding: Encoding, bytes_max: int
) -> list[Chunk]:
    cutter = ChunkCutter(1000, bytes_max)
    blocks = [block_of(rows[at : at + steps], encoding) for at in range(0, len(rows), steps)]
    chunks = [chunk for block in blocks for chunk in cutter.feed(block)]
    return [*chunks, *cutter.finish()]


@both_encodings
@pytest.mark.parametrize("bytes_max", [700, 5_000, 10_000_000])
def test_the_cut_does_not_depend_on_how_the_rows_arrive(encoding: Encoding, bytes_max: int) -> None:
    rows: list[dict[str, object]] = [
        {"id": number, "pad": "x" * (number * 7919 % 600)} for number in range(3333)
    ]
    whole = cut(rows, len(rows), encoding, bytes_max)
    assert whole == cut(rows, 1, encoding, bytes_max) == cut(rows, 777, encoding, bytes_max)
    assert all(chunk.rows <= 1000 and len(chunk.body) <= bytes_max for chunk in whole)
    read = [
        row
        for chunk in whole
        for row in decode(message({"a": 1}, chunk, encoding, zstd=False))["data"]
    ]
    assert read == rows


@both_encodings
def test_exact_texts_go_with_their_rows_and_count_among_the_bytes(encoding: Encoding) -> None:
    rows: list[dict[str, object]] = [{"id": number, "doc": None} for number in range(500)]
    texts = {number: {"doc": f"{number}." + "0" * (number % 90)} for number in range(0, 500, 3)}

    def chunks(step: int) -> list[Chunk]:
        cutter = ChunkCutter(200, 2000)
        found: list[Chunk] = []
        for at in range(0, 500, step):
            exact = {row - at: text for row, text in texts.items() if at <= row < at + step}
            found += cutter.feed(block_of(rows[at : at + step], encoding, exact))
        return [*found, *cutter.finish()]

    whole = chunks(500)
    assert whole == chunks(1) == chunks(37)
    messages = [message({"a": 1}, chunk, encoding, zstd=False) for chunk in whole]
    assert max(map(len, messages)) <= 2000 + 50
    read = [row for payload in map(decode, messages) for row in exact_rows(payload)]
    assert [row["id"] for row in read] == list(range(500))
    assert {row["id"]: {"doc": row["doc"]} for row in read if row["doc"] is not None} == texts


def test_chunks_are_full_where_bytes_allow_it() -> None:
    chunks = cut([{"id": number} for number in range(2500)], 100, Encoding.MSGPACK, 10_000_000)
    assert [chunk.rows for chunk in chunks] == [1000, 1000, 500]


@both_encodings
def test_a_row_that_fits_no_message_stands_alone_and_its_key_can_stand_for_it(
    encoding: Encoding,
) -> None:
    rows: list[dict[str, object]] = [{"id": 1}, {"id": 2}, {"id": 3, "pad": "x" * 1000}, {"id": 4}]
    chunks = cut(rows, 3, encoding, 900)
    assert [(chunk.rows, chunk.large) for chunk in chunks] == [(2, False), (1, True), (1, False)]
    assert decode(message({"a": 1}, chunks[1], encoding, zstd=False))["data"] == [rows[2]]
    small = key_only(chunks[1], ["id", "other"], encoding)
    assert decode(message({"a": 1}, small, encoding, zstd=False))["data"] == [{"id": 3}]


@both_encodings
@pytest.mark.parametrize("zstd", [False, True])
def test_a_message_is_its_head_and_then_its_rows(encoding: Encoding, zstd: bool) -> None:
    rows = [{"id": number, "text": "ä"} for number in range(70_000)]
    chunk = Chunk(len(rows), bytes(block_of(rows, encoding).data))
    head = {"table": 'a"b', "chunk": 7}
    assert decode(message(head, chunk, encoding, zstd=zstd)) == {**head, "data": rows}


def test_a_number_is_the_same_at_every_asking_and_counts_once() -> None:
    numbers = ChunkNumbers()
    assert [numbers.number(r, i, 10, 100) for r, i in [(1, 0), (0, 0), (1, 0), (1, 1), (0, 0)]] == [
        0,
        1,
        0,
        2,
        1,
    ]
    assert (len(numbers), numbers.rows, numbers.bytes) == (3, 30, 300)
    numbers.settle(3, 30)
    with pytest.raises(NumberingError):
        numbers.settle(2, 20)


def test_a_plan_survives_its_way_to_a_task() -> None:
    plan = SnapshotPlan(
        snapshot_id="snap-1",
        exported="0000-1",
        lsn="0/1",
        token="t",
        table="t",
        columns=(PlannedColumn('a"b', 23), PlannedColumn("c", 99_999)),
        key=('a"b',),
        types={99_999: TypeInfo(TypeKind.ARRAY, element_oid=25, delimiter=";")},
        conditions=("(id > 1)",),
        tasks=((PageRange(0, '"s"."t"', 0, 4, 1),), (PageRange(1, '"s"."t"', 4, None, 1),)),
        permits="headrace.s.snapshot.snap-1",
        encoding=Encoding.JSON,
        arrays=ArrayForm.LIST,
        json_values=JsonForm.TEXT,
        int8_as_string=True,
        values=SnapshotValues.TYPED,
        zstd=True,
        chunk_rows_max=10,
        payload_bytes_max=1000,
        large_bucket="large",
    )
    assert SnapshotPlan.unpack(plan.pack()) == plan
    assert plan.copy_query(plan.tasks[1][0]) == (
        'SELECT "a""b", "c" FROM ONLY "s"."t" WHERE (ctid >= \'(4,0)\'::pg_catalog.tid) AND ((id > 1))'
    )


def test_an_empty_request_is_the_whole_table() -> None:
    request = parse_request("snapshot.request.sales=2Forder=20lines", b"")
    assert (request.schema, request.table, request.columns, request.conditions) == (
        "sales",
        "order lines",
        None,
        (),
    )


@pytest.mark.parametrize("pack", [msgpack.packb, lambda body: json.dumps(body).encode()])
def test_options_are_the_same_in_both_encodings(pack: object) -> None:
    assert callable(pack)
    options = {
        "columns": ["a", "b"],
        "filter": [["a", ">=", 3], ["b", "in", ["x", "y"]], ["c", "is null"]],
        "values": "text",
    }
    request = parse_request("snapshot.request.t", pack(options))
    assert request.columns == ("a", "b")
    assert request.columns_named == {"a", "b", "c"}
    assert request.values is SnapshotValues.TEXT
    assert [condition.sql() for condition in request.conditions] == [
        "\"a\" >= '3'",
        "\"b\" IN ('x', 'y')",
        '"c" IS NULL',
    ]


def test_a_condition_quotes_whatever_it_is_given() -> None:
    assert (
        Condition('a"; --', "=", "x'; DROP TABLE t; --").sql()
        == "\"a\"\"; --\" = 'x''; DROP TABLE t; --'"
    )
    assert Condition("a", "=", True).sql() == "\"a\" = 't'"


@pytest.mark.parametrize(
    "options",
    [
        [],
        "text",
        {"unknown": 1},
        {"columns": []},
        {"columns": "a"},
        {"columns": ["a", "a"]},
        {"columns": ["\0"]},
        {"values": "raw"},
        {"filter": {"a": 1}},
        {"filter": [["a", "~", "x"]]},
        {"filter": [["a", "=", None]]},
        {"filter": [["a", "=", [1]]]},
        {"filter": [["a", "=", "nul\0"]]},
        {"filter": [["a", "in", []]]},
        {"filter": [["a"]]},
        {"filter": [[1, "=", 1]]},
        {1: 2},
    ],
)
def test_options_that_mean_nothing_are_refused(options: object) -> None:
    with pytest.raises(RequestError):
        parse_request("snapshot.request.t", msgpack.packb(options))


@pytest.mark.parametrize("token", ["", "a.b", "=zz", "a=2F", "*", ">", "a=41"])
def test_a_token_of_no_table_is_refused(token: str) -> None:
    with pytest.raises(RequestError):
        parse_request(f"snapshot.request.{token}", b"")


VIEW = ("snapshot.request.t", b"")


def test_views_and_outcomes_are_paired_in_order_whichever_is_first() -> None:
    pairing: Pairing[str] = Pairing(5)
    assert pairing.seen(VIEW, "reply-1", 0) is None
    assert pairing.seen(VIEW, "reply-2", 0) is None
    assert pairing.decided(VIEW, "accepted", 1) == "reply-1"
    assert pairing.decided(VIEW, "joined", 1) == "reply-2"
    assert pairing.decided(VIEW, "joined", 1) is None
    assert pairing.seen(VIEW, "reply-3", 2) == "joined"
    assert pairing.expire(100) == []


def test_a_request_without_reply_takes_its_own_outcome_and_no_other() -> None:
    pairing: Pairing[str] = Pairing(5)
    pairing.decided(VIEW, "of the one that wants no answer", 0)
    assert pairing.seen(VIEW, "", 0) == "of the one that wants no answer"
    assert pairing.seen(VIEW, "reply", 1) is None
    assert pairing.decided(VIEW, "of the other", 1) == "reply"


def test_what_waits_too_long_is_forgotten_and_told() -> None:
    pairing: Pairing[str] = Pairing(5)
    pairing.seen(VIEW, "never stored", 0)
    pairing.seen(VIEW, "", 0)
    pairing.decided(("other", b""), "outcome of a request that nobody saw", 0)
    assert pairing.expire(4) == []
    assert pairing.expire(6) == [(VIEW, "never stored")]
    assert pairing.seen(("other", b""), "later", 6) is None
    assert pairing.decided(VIEW, "later", 6) is None


def test_an_outcome_of_before_our_time_is_told_to_who_waits_and_kept_for_nobody() -> None:
    pairing: Pairing[str] = Pairing(5)
    assert pairing.decided(VIEW, "of a request from before", 0, keep=False) is None
    assert pairing.seen(VIEW, "reply", 1) is None
    assert pairing.decided(VIEW, "its own", 2, keep=False) == "reply"


@pytest.mark.parametrize("reply", ["_INBOX.a.b", "answers", "_R_.x1"])
def test_an_answer_goes_to_an_inbox(reply: str) -> None:
    assert may_be_told(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "cdc.users.insert",
        "init.meta.users",
        "snapshot.request.users",
        "headrace.x",
        "$JS.API.STREAM.DELETE.CDC",
        "a b",
        "a..b",
        "a.*",
        "a.>",
        "a\r\nPUB cdc.x 0",
        "x" * 600,
    ],
)
def test_an_answer_never_goes_into_a_stream_of_the_suite_nor_to_the_server(reply: str) -> None:
    assert not may_be_told(reply)


def test_a_throttle_gives_turns_in_order_and_no_faster_than_its_rate() -> None:
    throttle = Throttle(100)
    assert throttle.wait_s(("s", 0, 0), 100, now=10) == 0
    assert throttle.wait_s(("s", 0, 1), 100, now=10) == 1
    assert throttle.wait_s(("t", 0, 0), 100, now=10) == 2
    assert throttle.wait_s(("s", 0, 1), 100, now=10.5) == 0.5
    assert throttle.wait_s(("s", 0, 1), 100, now=11) == 0
    throttle.forget("t")
    assert throttle.wait_s(("s", 0, 2), 100, now=11) == 0
    assert Throttle(None).wait_s(("s", 0, 0), 10**9, now=0) == 0


def test_an_outcome_that_was_there_before_its_view_promises_no_snapshot_that_is_younger() -> None:
    assert Answer("snap-1", "accepted").to_a_late_view() == Answer("snap-1", "joined")
    assert Answer("snap-1", "rejected", "why").to_a_late_view() == Answer(
        "snap-1", "rejected", "why"
    )
