"""Reading by transactions against a real nats-server: whole, once, and never a part, whenever one
looks.
"""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from headrace.consumer import (
    MemoryWatermarks,
    MixedError,
    Subscription,
    Transaction,
    Transactions,
    follow,
)
from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.lsn import Position


def change(
    lsn: int, seq: int, *, last: bool, xid: int | None = None, table: str = "a", source: str = "s"
) -> events.Payload:
    return {
        "table": table,
        "schema": "public",
        "operation": "SCHEMA" if xid == 0 else "INSERT",
        "data": {"id": seq},
        "source": source,
        "tx": events.transaction(
            lsn if xid is None else xid, Position(lsn, seq), "2025-12-12T12:00:34Z", last=last
        ),
    }


async def put(client: Client, *payloads: events.Payload | list[events.Payload]) -> None:
    for body in payloads:
        table = body[0]["table"] if isinstance(body, list) else body["table"]
        await client.jetstream().publish(
            f"cdc.{table}.insert", events.encode(body, Encoding.MSGPACK)
        )


async def take(reader: Transactions, count: int) -> list[Transaction]:
    found: list[Transaction] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            if (transaction := await reader.next(0.2)) is not None:
                found.append(transaction)
                await reader.done(transaction)
    return found


def sizes(transactions: list[Transaction]) -> list[tuple[int, int]]:
    return [(transaction.lsn, len(transaction.events)) for transaction in transactions]


async def test_a_transaction_of_which_a_part_has_come_is_not_given_out_before_the_rest(
    client: Client,
) -> None:
    await put(client, change(10, 0, last=False), change(10, 1, last=False))
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        reader = Transactions(consumer)
        assert await reader.next(0.3) is None
        await put(client, change(10, 2, last=True))
        assert sizes(await take(reader, 1)) == [(10, 3)]


async def test_who_dies_inside_a_transaction_is_given_all_of_it_again_and_what_was_done_never(
    client: Client,
) -> None:
    marks = MemoryWatermarks()
    await put(client, change(10, 0, last=True), change(20, 0, last=False))
    async with follow(client, Subscription(), marks) as consumer:
        reader = Transactions(consumer)
        assert sizes(await take(reader, 1)) == [(10, 1)]
        assert await reader.next(0.3) is None
    await put(client, change(20, 1, last=True))
    async with follow(client, Subscription(), marks) as consumer:
        assert sizes(await take(Transactions(consumer), 1)) == [(20, 2)]
    async with follow(client, Subscription(), marks) as consumer:
        assert await Transactions(consumer).next(0.3) is None


async def test_what_the_catalog_told_ends_itself_or_belongs_where_it_stands(client: Client) -> None:
    await put(
        client,
        change(9, 0, last=False, xid=0),
        change(10, 0, last=False),
        change(9, 0, last=False, xid=0),
    )
    await put(client, change(10, 1, last=True))
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        assert sizes(await take(Transactions(consumer), 2)) == [(9, 1), (10, 3)]


async def test_a_transaction_whose_end_is_filtered_out_is_whole_when_the_next_begins(
    client: Client,
) -> None:
    marks = MemoryWatermarks()
    await put(
        client,
        change(10, 0, last=False),
        change(10, 1, last=True, table="b"),
        change(20, 0, last=True),
    )
    async with follow(client, Subscription(filters=("cdc.a.>",)), marks) as consumer:
        assert sizes(await take(Transactions(consumer), 2)) == [(10, 1), (20, 1)]


async def test_the_last_part_of_a_huge_transaction_whose_end_is_filtered_out_says_that_it_ends(
    client: Client,
) -> None:
    await put(
        client,
        *(change(10, seq, last=False) for seq in range(4)),
        change(10, 4, last=True, table="b"),
    )
    await put(client, change(20, 0, last=True))
    async with follow(client, Subscription(filters=("cdc.a.>",)), MemoryWatermarks()) as consumer:
        found = await take(Transactions(consumer, events_max=2), 3)
    assert [(one.lsn, len(one.events), one.ends) for one in found] == [
        (10, 2, False),
        (10, 2, True),
        (20, 1, True),
    ]


async def test_a_transaction_whose_rest_is_lost_in_a_gap_is_not_called_whole(
    client: Client,
) -> None:
    gap = {**change(15, 0, last=False, xid=0), "operation": events.GAP}
    await put(client, change(10, 0, last=False), gap, change(20, 0, last=True))
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        found = await take(Transactions(consumer), 3)
    assert [(one.lsn, len(one.events), one.ends) for one in found] == [
        (10, 1, False),
        (15, 1, True),
        (20, 1, True),
    ]


async def test_a_huge_transaction_comes_in_parts_that_say_so(client: Client) -> None:
    await put(client, *(change(10, seq, last=seq == 4) for seq in range(5)))
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        found = await take(Transactions(consumer, events_max=2), 3)
    assert [(len(one.events), one.ends) for one in found] == [(2, False), (2, False), (1, True)]


async def test_events_that_are_not_kept_together_are_refused_with_the_remedy(
    client: Client,
) -> None:
    await put(client, [change(10, 0, last=False), change(10, 1, last=True)])
    async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
        with pytest.raises(MixedError, match="arrays"):
            await take(Transactions(consumer), 1)
    await put(client, change(20, 0, last=False), change(30, 0, last=True, source="other"))
    async with follow(client, Subscription(start_seq=2), MemoryWatermarks()) as consumer:
        with pytest.raises(MixedError, match="other"):
            await take(Transactions(consumer), 1)
