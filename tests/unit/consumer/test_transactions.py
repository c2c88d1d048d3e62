"""Whole transactions of a followed stream, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.consumer import (
    MemoryWatermarks,
    MixedError,
    Subscription,
    Watermark,
    follow,
)
from headrace.consumer.transactions import Transactions
from headrace.lsn import Position
from tests.support.virtual_nats import VirtualNats


def put(
    nats: VirtualNats,
    lsn: int,
    seq: int,
    *,
    last: bool = False,
    xid: int | None = None,
    **more: Any,
) -> None:
    tx = {"xid": lsn if xid is None else xid, "lsn": lsn, "ts": None, "seq": seq, "last": last}
    names = {"table": "a", "schema": "public", "source": "s", "operation": "INSERT"}
    nats.server.put("cdc.a.insert", json.dumps({**names, "data": {}, "tx": tx, **more}).encode())


def reading(
    nats: VirtualNats, use: Callable[[Transactions], Awaitable[Any]], **options: Any
) -> tuple[Any, dict[str, Watermark]]:
    """The result, and the watermarks afterwards."""
    store = MemoryWatermarks()

    async def work() -> Any:
        async with follow(nats.client(), Subscription(), store) as consumer:
            return await use(Transactions(consumer, **options)), await store.load()

    found: tuple[Any, dict[str, Watermark]] = nats.do(work())
    return found


async def all_of(transactions: Transactions) -> list[tuple[list[tuple[int, int]], bool]]:
    """The positions of each transaction, and whether it ends."""
    found = []
    while (one := await transactions.next(3.0)) is not None:
        found.append(([(event.position.lsn, event.position.seq) for event in one.events], one.ends))
        await transactions.done(one)
    return found


def test_a_transaction_is_returned_with_its_last_event(nats: VirtualNats) -> None:
    put(nats, 10, 0)
    put(nats, 10, 1)
    put(nats, 10, 2, last=True)
    put(nats, 20, 0, last=True)
    found, marks = reading(nats, all_of)
    assert found == [([(10, 0), (10, 1), (10, 2)], True), ([(20, 0)], True)]
    assert marks == {"s": Watermark(Position(20, 0), 4)}


def test_a_part_waits_for_its_rest(nats: VirtualNats) -> None:
    async def use(transactions: Transactions) -> Any:
        assert await transactions.next(1.0) is None
        put(nats, 10, 1, last=True)
        one = await transactions.next(1.0)
        assert one is not None
        assert one.lsn == 10
        await transactions.done(one)
        return len(one.events)

    put(nats, 10, 0)
    assert reading(nats, use) == (2, {"s": Watermark(Position(10, 1), 2)})


def test_nothing_is_marked_before_the_transaction_is_done(nats: VirtualNats) -> None:
    async def use(transactions: Transactions) -> None:
        await transactions.next(1.0)

    put(nats, 10, 0)
    put(nats, 10, 1, last=True)
    assert reading(nats, use) == (None, {})


def test_a_transaction_whose_end_is_filtered_out_ends_with_the_next_one(nats: VirtualNats) -> None:
    put(nats, 10, 0)
    put(nats, 10, 1)
    put(nats, 20, 0)
    put(nats, 20, 1, last=True)
    found, _ = reading(nats, all_of)
    assert found == [([(10, 0), (10, 1)], True), ([(20, 0), (20, 1)], True)]


def test_a_catalog_event_belongs_to_the_transaction_around_it(nats: VirtualNats) -> None:
    put(nats, 10, 0)
    put(nats, 12, 0, xid=0, operation="SCHEMA")
    put(nats, 10, 1, last=True)
    put(nats, 30, 0, xid=0, operation="SCHEMA")
    put(nats, 40, 0, last=True)
    found, _ = reading(nats, all_of)
    assert found == [
        ([(10, 0), (12, 0), (10, 1)], True),
        ([(30, 0)], True),
        ([(40, 0)], True),
    ]


def test_a_large_transaction_comes_in_parts(nats: VirtualNats) -> None:
    for seq in range(4):
        put(nats, 10, seq, last=seq == 3)
    found, _ = reading(nats, all_of, events_max=2)
    assert found == [([(10, 0), (10, 1)], False), ([(10, 2), (10, 3)], True)]


def test_a_transaction_as_large_as_the_limit_is_whole_if_the_next_one_ends_it(
    nats: VirtualNats,
) -> None:
    put(nats, 10, 0)
    put(nats, 10, 1)
    put(nats, 20, 0, last=True)
    found, _ = reading(nats, all_of, events_max=2)
    assert found == [([(10, 0), (10, 1)], True), ([(20, 0)], True)]


def test_a_gap_cuts_off_what_came_before_it(nats: VirtualNats) -> None:
    put(nats, 10, 0)
    put(nats, 15, 0, xid=0, operation="GAP")
    put(nats, 20, 0, last=True)
    found, _ = reading(nats, all_of)
    assert found == [([(10, 0)], False), ([(15, 0)], True), ([(20, 0)], True)]


def test_iterating_gives_every_transaction(nats: VirtualNats) -> None:
    async def use(transactions: Transactions) -> list[int]:
        found = []
        async for one in transactions:
            found.append(one.lsn)
            await transactions.done(one)
            if len(found) == 2:
                return found
        raise AssertionError

    put(nats, 10, 0, last=True)
    put(nats, 20, 0, last=True)
    assert reading(nats, use)[0] == [10, 20]


def test_interleaved_sources_and_arrays_are_refused(nats: VirtualNats) -> None:
    put(nats, 10, 0)
    put(nats, 10, 0, source="other")
    with pytest.raises(MixedError, match="events of other are inside a transaction of s"):
        reading(nats, all_of)


def test_arrays_are_refused(nats: VirtualNats) -> None:
    tx = {"xid": 1, "lsn": 1, "ts": None, "seq": 0, "last": True}
    one = {"table": "a", "schema": "public", "source": "s", "operation": "INSERT", "tx": tx}
    nats.server.put("cdc.a.batch", json.dumps([one]).encode())
    with pytest.raises(MixedError, match=r"cdc\.a\.batch contains arrays"):
        reading(nats, all_of)


def test_a_consumer_that_waits_can_be_cancelled_and_used_again(nats: VirtualNats) -> None:
    async def use(transactions: Transactions) -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await transactions.next(30.0)
        put(nats, 10, 1, last=True)
        one = await transactions.next(3.0)
        assert one is not None
        return len(one.events)

    put(nats, 10, 0)
    assert reading(nats, use)[0] == 2
