"""Contexts find their rows, and batches end where transactions end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.audit.stitching import Batch, MixedDeliveryError, Open, Stitcher
from headrace.consumer import Event
from headrace.lsn import Position


def event(
    lsn: int,
    seq: int,
    *,
    last: bool = False,
    said: Any = None,
    lane: str = "s",
    prefix: str = "_bemi",
) -> Event:
    payload: dict[str, Any] = {"tx": {"last": last, "ts": f"2026-0{lsn}-01T00:00:00Z"}}
    operation = "INSERT" if said is None else "MESSAGE"
    if said is not None:
        payload |= {"prefix": prefix, "content": said}
    position = Position(lsn, seq)
    return Event(
        "s", "public", "t", operation, position, payload, "cdc.t", lsn * 10 + seq, lane, closes=last
    )


def fed(stitcher: Stitcher, *events: Event) -> Batch:
    for one in events:
        row = None if one.operation == "MESSAGE" else b"row%d.%d" % one.position
        stitcher.add(one, row)
    batch = stitcher.cut()
    assert batch is not None
    return batch


def shown(batch: Batch) -> list[tuple[str, Any]]:
    return [
        (line.decode(), json.loads(context.replace(b"\\\\", b"\\")))
        for line, context in zip(batch.lines, batch.contexts, strict=True)
    ]


def whole() -> Stitcher:
    return Stitcher(100, 1 << 20)


A, B = '{"a": 1}', '{"b": 2}'


def rows_between(first: str, second: str) -> Iterator[Event]:
    """A transaction of three rows, with a context between each two."""
    yield event(1, 0)
    yield event(1, 1, said=first)
    yield event(1, 2)
    yield event(1, 3, said=second)
    yield event(1, 4, last=True)


def test_the_only_context_of_a_transaction_is_that_of_all_its_rows() -> None:
    assert shown(fed(whole(), *rows_between(A, A))) == [
        ("row1.0", {"a": 1}),
        ("row1.2", {"a": 1}),
        ("row1.4", {"a": 1}),
    ]


def test_several_contexts_apply_to_the_rows_behind_them() -> None:
    assert shown(fed(whole(), *rows_between(A, B))) == [
        ("row1.0", {}),
        ("row1.2", {"a": 1}),
        ("row1.4", {"b": 2}),
    ]


def test_a_context_ends_with_its_transaction() -> None:
    batch = fed(whole(), event(1, 0, said=A), event(1, 1, last=True), event(2, 0, last=True))
    assert shown(batch) == [("row1.1", {"a": 1}), ("row2.0", {})]
    assert (batch.transactions, batch.position, batch.stream_seq) == (2, Position(2, 0), 20)
    assert (batch.months, batch.committed_at) == ({"2026-01", "2026-02"}, "2026-02-01T00:00:00Z")
    assert batch.open is None


def test_a_message_of_another_prefix_is_no_context() -> None:
    other = event(1, 0, said=A, prefix="_bemi2")
    assert shown(fed(whole(), other, event(1, 1, last=True))) == [("row1.1", {})]


def test_a_context_that_is_no_text_of_utf_8_is_kept_as_far_as_it_can_be_read() -> None:
    assert shown(fed(whole(), event(1, 0, said=b"\xff"), event(1, 1, last=True))) == [
        ("row1.1", {"_text": "\\xff"})
    ]


def test_nothing_is_given_out_before_a_transaction_ends() -> None:
    stitcher = whole()
    stitcher.add(event(1, 0), b"row")
    assert (stitcher.cut(), stitcher.ready, stitcher.rows, stitcher.size) == (None, None, 1, 3)
    stitcher.add(event(1, 1, last=True), b"row2")
    assert stitcher.ready is not None
    assert (stitcher.rows, stitcher.size) == (2, 7)
    assert stitcher.cut() is not None
    assert (stitcher.rows, stitcher.size, stitcher.cut()) == (0, 0, None)


@pytest.mark.parametrize("limits", [(2, 1 << 20), (100, 12)])
def test_a_transaction_over_the_limits_is_given_out_in_parts(limits: tuple[int, int]) -> None:
    stitcher = Stitcher(*limits)
    stitcher.add(event(1, 0), b"row1.0")
    assert stitcher.cut() is None
    batch = fed(stitcher, event(1, 1))
    assert (len(batch.lines), batch.position, batch.transactions) == (2, Position(1, 1), 0)
    assert (batch.open, batch.stream_seq) == (Open(1), 11)
    batch = fed(stitcher, event(1, 2, last=True))
    assert (shown(batch), batch.open, batch.patches) == ([("row1.2", {})], None, [])


def test_a_late_only_context_is_given_to_the_rows_that_were_written_before() -> None:
    stitcher = Stitcher(1, 1 << 20)
    first = fed(stitcher, event(1, 0))
    assert shown(first) == [("row1.0", {})]
    second = fed(stitcher, event(1, 1, said=A), event(1, 2))
    assert second.open == Open(1, A, 1)
    # A restart continues with what was remembered.
    again = Stitcher(1, 1 << 20, second.open)
    third = fed(again, event(1, 3, last=True))
    assert shown(third) == [("row1.3", {"a": 1})]
    assert [(one.lsn, one.before, json.loads(one.context)) for one in third.patches] == [
        (1, 1, {"a": 1})
    ]


def test_a_second_context_leaves_the_rows_before_the_first_without_one() -> None:
    stitcher = Stitcher(1, 1 << 20)
    fed(stitcher, event(1, 0))
    fed(stitcher, event(1, 1, said=A), event(1, 2))
    batch = fed(stitcher, event(1, 3, said=B), event(1, 4, last=True))
    assert (shown(batch), batch.patches) == ([("row1.4", {"b": 2})], [])


def test_a_transaction_whose_end_was_lost_ends_with_the_next_ones_begin() -> None:
    stitcher = whole()
    stitcher.add(event(1, 0, said=A), None)
    stitcher.add(event(1, 1), b"row1.1")
    batch = fed(stitcher, event(2, 0, last=True))
    assert shown(batch) == [("row1.1", {"a": 1}), ("row2.0", {})]


def test_a_batch_that_was_given_back_leaves_its_place_to_the_next() -> None:
    stitcher = whole()
    stitcher.add(event(1, 0, last=True), None)
    batch = stitcher.cut()
    assert batch is not None
    stitcher.give_back(batch)
    again = stitcher.cut()
    assert again is not None
    assert (again.position, again.stream_seq, again.transactions) == (Position(1, 0), 10, 1)
    stitcher.add(event(2, 0, last=True), None)
    stitcher.give_back(again)
    later = stitcher.cut()
    assert later is not None
    assert (later.position, later.transactions) == (Position(2, 0), 2)


def test_a_gap_is_in_the_batch_that_ends_next() -> None:
    stitcher = whole()
    stitcher.gap(7, "lost")
    assert stitcher.cut() is None
    assert fed(stitcher, event(1, 0, last=True)).gaps == [(7, "lost")]


def test_arrays_of_one_tables_events_are_refused() -> None:
    with pytest.raises(MixedDeliveryError):
        whole().add(event(1, 0, lane="s/t"), b"row")


def test_copy_gets_every_line_in_pieces_of_the_size_that_is_allowed() -> None:
    batch = Batch(lines=[b"aa", b"bb", b"cc"], contexts=[b"{}", b"{}", b"{}"])
    assert list(batch.copy_chunks(10)) == [b"aa{}\nbb{}\n", b"cc{}\n"]
    assert list(batch.copy_chunks(11)) == [b"aa{}\nbb{}\ncc{}\n"]
    assert list(Batch().copy_chunks()) == []


def test_the_contexts_of_a_transaction_say_nothing_of_the_next() -> None:
    batch = fed(
        whole(),
        event(1, 0, said=A),
        event(1, 1, said=B),
        event(1, 2, last=True),
        event(2, 0),
        event(2, 1, said=A),
        event(2, 2, last=True),
    )
    assert shown(batch) == [("row1.2", {"b": 2}), ("row2.0", {"a": 1}), ("row2.2", {"a": 1})]


def test_a_loss_between_transactions_leaves_none_open() -> None:
    stitcher = whole()
    stitcher.tear()
    assert stitcher.cut() is None
    stitcher.add(event(1, 0, last=True), b"row")
    stitcher.tear()
    assert stitcher.open is None
    batch = stitcher.cut()
    assert batch is not None
    assert batch.open is None
