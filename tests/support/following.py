"""A consumer of a change stream that is written by hand, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from headrace.consumer import (
    Consumer,
    MemoryWatermarks,
    RetentionGapError,
    Subscription,
    Watermark,
    follow,
)
from tests.support.virtual_nats import VirtualNats

ALL = Subscription()
ONLY_A = Subscription(filters=("cdc.a.>",))


def body(lsn: int, seq: int = 0, table: str = "a", **more: Any) -> dict[str, Any]:
    tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": seq, "last": True}
    names = {"table": table, "schema": "public", "source": "s", "operation": "INSERT"}
    return {**names, "data": {"id": lsn}, "tx": tx, **more}


def put(nats: VirtualNats, *lsns: int, table: str = "a", **more: Any) -> None:
    """A message for each LSN."""
    for lsn in lsns:
        nats.server.put(f"cdc.{table}.insert", json.dumps(body(lsn, table=table, **more)).encode())


def put_array(nats: VirtualNats, *bodies: dict[str, Any], complete: int = 0) -> None:
    headers = {"Headrace-Complete": str(complete)} if complete else None
    subject = f"cdc.{bodies[0]['table']}.batch"
    nats.server.put(subject, json.dumps(list(bodies)).encode(), headers)


def reading(
    nats: VirtualNats,
    use: Callable[[Consumer], Awaitable[Any]],
    subscription: Subscription = ALL,
    marks: Mapping[str, Watermark] | MemoryWatermarks | None = None,
) -> Any:
    """Follow, and use the consumer."""

    async def work() -> Any:
        store = marks if isinstance(marks, MemoryWatermarks) else MemoryWatermarks()
        for lane, mark in ({} if isinstance(marks, MemoryWatermarks) else marks or {}).items():
            await store.save(lane, mark)
        async with follow(nats.client(), subscription, store) as consumer:
            return await use(consumer)

    return nats.do(work())


async def rest(consumer: Consumer) -> list[int]:
    """The LSNs of all events that come, each marked as done."""
    await asyncio.sleep(1.0)
    found = []
    while (event := await consumer.next(7.0)) is not None:
        found.append(event.position.lsn)
        await consumer.done(event)
    return found


def lost(nats: VirtualNats, subscription: Subscription = ALL, **more: Any) -> RetentionGapError:
    with pytest.raises(RetentionGapError) as found:
        reading(nats, rest, subscription, **more)
    return found.value
