"""Whole transactions from a stream's events: the assembly, what is ahead, and how far a source is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgpack
import pytest

from headrace.consumer.event import Event, of_message
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.mirror import ahead as ahead_module
from headrace.mirror.ahead import Ahead
from headrace.mirror.assembly import Assembly
from headrace.mirror.reach import Reach
from tests.support.virtual_nats import STREAMS, VirtualNats


def body(
    lsn: int, seq: int = 0, *, last: bool = False, xid: int | None = None, **more: Any
) -> dict[str, Any]:
    tx = {"xid": lsn if xid is None else xid, "lsn": lsn, "ts": None, "seq": seq, "last": last}
    names = {"table": "a", "schema": "public", "source": "s", "operation": "INSERT"}
    return {**names, "data": {}, "tx": tx, **more}


def event(stream_seq: int, lsn: int, seq: int = 0, **more: Any) -> Event:
    (made,) = of_message(json.dumps(body(lsn, seq, **more)).encode(), "cdc.a.insert", stream_seq)
    return made


def array(stream_seq: int, *lsns: int, complete: int = 0, table: str = "a") -> list[Event]:
    bodies = [body(lsn, table=table) for lsn in lsns]
    header = f"Headrace-Complete: {complete}\r\n".encode() if complete else b""
    return of_message(json.dumps(bodies).encode(), "cdc.a.batch", stream_seq, header)


def assembled(*events: Event) -> Assembly:
    made = Assembly()
    for one in events:
        made.take(one)
    return made


def numbers(events: list[Event]) -> list[int]:
    return [one.stream_seq for one in events]


# The assembly.


def test_a_transaction_is_ready_with_its_last_event() -> None:
    assembly = assembled(event(1, 10, 0), event(2, 10, 1))
    assert assembly.ready() == []
    assert assembly.first_seq == 1
    assert assembly.size == 2
    assembly.take(event(3, 10, 2, last=True))
    assert numbers(assembly.ready()) == [1, 2, 3]
    assert assembly.size == 0
    assert assembly.ready() == []
    assert Assembly().first_seq is None


def test_a_later_event_of_the_source_ends_a_transaction() -> None:
    assembly = assembled(event(1, 10), event(2, 20))
    assert numbers(assembly.ready()) == [1]
    assert assembly.first_seq == 2


def test_an_event_that_is_not_taken_ends_transactions_too() -> None:
    assembly = assembled(event(1, 10))
    assembly.precede(event(2, 10, 1))
    assert assembly.ready() == []
    assembly.precede(event(2, 11))
    assert numbers(assembly.ready()) == [1]
    assembly = assembled(event(1, 10))
    assembly.follow(event(2, 10, 1))
    assert assembly.ready() == []
    assembly.follow(event(2, 10, 1, last=True))
    assert numbers(assembly.ready()) == [1]


def test_the_end_of_one_source_ends_nothing_of_another() -> None:
    assembly = assembled(event(1, 10), event(2, 99, last=True, source="t"))
    assert numbers(assembly.ready()) == [2]
    assert assembly.first_seq == 1


def test_what_is_outside_transactions_is_ready_at_once_and_ends_what_is_before_it() -> None:
    assembly = assembled(event(1, 10), event(2, 10, 1, xid=0, operation="SCHEMA", last=True))
    assert numbers(assembly.ready()) == [2], "inside a transaction that its publisher began again"
    assembly.take(event(3, 11, xid=0, operation="SCHEMA"))
    assert numbers(assembly.ready()) == [1, 3]


def test_a_gap_ends_nothing() -> None:
    assembly = assembled(event(1, 10), event(2, 50, xid=0, operation="GAP", last=True))
    assert numbers(assembly.ready()) == [2]
    assert not assembly.is_whole("s", 10)


def test_arrays_end_nothing_but_what_they_call_complete() -> None:
    assembly = assembled(*array(1, 10, 20), *array(2, 30, table="b"))
    assert assembly.ready() == []
    assembly.take(array(3, 12, complete=20)[0])
    assert numbers(assembly.ready()) == [1, 3]
    assert assembly.first_seq == 1
    assert assembly.is_whole("s", 19)
    assert not assembly.is_whole("s", 20)


def test_a_statement_about_less_takes_nothing_back() -> None:
    assembly = assembled(*array(1, 10, complete=30), *array(2, 15, complete=20))
    assert assembly.is_whole("s", 29)
    assert numbers(assembly.ready()) == [1, 2]


def test_a_bound_holds_back_later_transactions() -> None:
    assembly = assembled(*(event(n, 10 * n, last=True) for n in range(1, 5)))
    assert numbers(assembly.ready(30)) == [1, 2]
    assert assembly.ready(30) == []
    assert numbers(assembly.ready(31)) == [3]
    assert numbers(assembly.ready()) == [4]


def test_what_waits_is_known_by_its_lsn() -> None:
    assembly = assembled(event(1, 10), event(2, 10, 1))
    assert assembly.waits("s", 10)
    assert not assembly.waits("s", 11)
    assert assembly.lacks("s", 11)
    assert not assembly.lacks("s", 10)
    assert not assembly.waits("t", 10)
    assert not assembly.lacks("t", 11)


def test_a_part_is_the_oldest_transaction_of_the_fullest_source() -> None:
    assembly = assembled(
        event(1, 5, source="t"), *array(2, 20, 20, 10), event(3, 20, 1), event(4, 10, 1)
    )
    part = assembly.part()
    assert [(one.source, one.position.lsn) for one in part] == [("s", 10), ("s", 10)]
    assert assembly.size == 4
    assert assembly.first_seq == 1


def test_a_gap_tears_what_is_open_before_it() -> None:
    assembly = assembled(event(1, 10), event(2, 30), event(3, 5, source="t"))
    assembly.ready()
    assembly.tear("s", 30)
    assert numbers(assembly.ready()) == []
    assert assembly.first_seq == 2
    assembly.tear("s", None)
    assert assembly.first_seq == 3
    assembly.tear("unknown", None)
    assert assembly.size == 1


# What is ahead.


def put(nats: VirtualNats, *tables: str) -> None:
    for name in tables:
        lsn = nats.server.streams["CDC"].last_seq + 1
        operation = "GAP" if name == "_gap" else "INSERT"
        one = body(lsn, table="" if name == "_gap" else name, operation=operation)
        nats.server.put(f"cdc.{name}.insert", json.dumps(one).encode())


def looking(nats: VirtualNats, after: int, times: int = 1) -> tuple[list[int], int]:
    """The sequences that a mirror of table `a` finds ahead, and how far it looked."""

    async def work() -> tuple[list[int], int]:
        client = nats.client()
        reader = DictionaryReader(client.jetstream(), STREAMS.state)
        found = Ahead(client, "CDC", reader, frozenset({"a"}))
        seqs = []
        for _ in range(times):
            async for events in found.read(after):
                seqs += [one.stream_seq for one in events]
        return seqs, found.at

    return nats.do(work())


def test_messages_of_other_tables_are_read_up_to_one_for_the_mirror(nats: VirtualNats) -> None:
    put(nats, "a", "b", "c", "a", "b")
    assert looking(nats, 1) == ([2, 3], 3)
    assert looking(nats, 4) == ([5], 5)
    assert looking(nats, 5) == ([], 5)
    assert looking(nats, 0) == ([], 0)


def test_what_was_read_is_not_read_again(nats: VirtualNats) -> None:
    put(nats, "a", "b", "c")
    assert looking(nats, 1, times=3) == ([2, 3], 3)


def test_a_gap_is_for_every_mirror(nats: VirtualNats) -> None:
    put(nats, "a", "b", "_gap", "c")
    assert looking(nats, 1) == ([2], 2)


@pytest.mark.parametrize("count", [32, 33, 200])
def test_many_messages_are_read_in_bulk(nats: VirtualNats, count: int) -> None:
    put(nats, "a", *["b"] * count, "a", "c")
    assert looking(nats, 1) == (list(range(2, count + 2)), count + 1)
    nats.past(1.0)
    assert nats.server.streams["CDC"].consumers == {}, "its consumer is given up"


def test_a_stretch_is_bounded(nats: VirtualNats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_module, "SINGLE_MESSAGES", 2)
    monkeypatch.setattr(ahead_module, "STRETCH_MESSAGES", 5)
    put(nats, "a", *["b"] * 20)
    assert looking(nats, 1) == (list(range(2, 9)), 8)
    assert looking(nats, 1, times=2) == (list(range(2, 16)), 15)


@pytest.mark.parametrize("single", [32, 1])
def test_nothing_behind_a_missing_message_is_believed(
    nats: VirtualNats, monkeypatch: pytest.MonkeyPatch, single: int
) -> None:
    monkeypatch.setattr(ahead_module, "SINGLE_MESSAGES", single)
    put(nats, "a", "b", "b", "b", "b", "b")
    nats.server.streams["CDC"].delete(4)
    assert looking(nats, 1) == ([2, 3], 3)
    # Retention removes from the front.
    for first_seq in (3, 6):
        nats.server.discard("CDC", first_seq)
        assert looking(nats, 1) == ([], 1)
    assert looking(nats, 5) == ([6], 6)


def test_a_stream_that_keeps_some_messages_per_subject_skips_sequences(nats: VirtualNats) -> None:
    put(nats, "a", "b", "c", "d")
    nats.server.streams["CDC"].per_subject = 1
    put(nats, "c")
    assert looking(nats, 1) == ([2, 4, 5], 5)


def test_a_server_that_is_away_is_asked_again_later(nats: VirtualNats) -> None:
    put(nats, "a", "b")
    nats.server.unanswered.add("STREAM.MSG.GET")
    assert looking(nats, 1) == ([], 1)


# How far a source is.


def keep(nats: VirtualNats, lsn: int, seq: int, source: str = "s") -> None:
    """Store what a publisher has confirmed."""
    subject = f"$KV.{STREAMS.state}.progress.{source}"
    nats.server.put(subject, msgpack.packb({"confirmed_lsn": lsn, "stream_seq": seq}))


def test_a_source_is_as_far_as_its_progress_says(nats: VirtualNats) -> None:
    async def work() -> list[bool]:
        reach = Reach(nats.client().jetstream(), STREAMS.state)
        return [
            await reach.is_behind("s", 50, 7),
            await reach.is_behind("s", 50, 6),
            await reach.is_behind("s", 51, 7),
            await reach.is_behind("t", 1, 7),
        ]

    nats.past(1.0)
    keep(nats, 50, 7)
    assert nats.do(work()) == [True, False, False, False]


def test_progress_is_read_now_and_then(nats: VirtualNats) -> None:
    async def work() -> list[tuple[bool, int]]:
        reach = Reach(nats.client().jetstream(), STREAMS.state)
        found = []
        for pause_s in (0.0, 0.05, 0.3, 0.0):
            await asyncio.sleep(pause_s)
            known = await reach.is_behind("s", 50, 7)
            found.append((known, nats.server.asked.count("DIRECT.GET")))
            keep(nats, 50, 7)
        return found

    nats.past(1.0)
    assert nats.do(work()) == [(False, 1), (False, 1), (True, 2), (True, 2)]


@pytest.mark.parametrize("stored", [b"\xc1", b"text", msgpack.packb({"confirmed_lsn": 50})])
def test_progress_that_is_malformed_says_nothing(nats: VirtualNats, stored: bytes) -> None:
    async def work() -> bool:
        return await Reach(nats.client().jetstream(), STREAMS.state).is_behind("s", 1, 7)

    nats.server.put(f"$KV.{STREAMS.state}.progress.s", stored)
    assert not nats.do(work())


def test_a_server_that_does_not_answer_is_asked_less_often(nats: VirtualNats) -> None:
    async def work() -> int:
        reach = Reach(nats.client().jetstream(timeout=0.1), STREAMS.state)
        for _ in range(40):
            assert not await reach.is_behind("s", 1, 7)
            await asyncio.sleep(0.25)
        return nats.server.asked.count("DIRECT.GET")

    nats.past(10.0)
    nats.server.unanswered.add("DIRECT.GET")
    assert nats.do(work()) == 2
