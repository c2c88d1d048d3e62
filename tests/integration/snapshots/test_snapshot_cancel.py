"""A snapshot is cancelled from outside: it ends with one error, and nothing of it comes any more."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest

from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import snapshot_cancel_subject
from headrace.testing.responder import RESULT_TIMEOUT_S, Consumer, SnapshotFailedError

pytestmark = pytest.mark.spark

QUIET_S = 2.0


async def cancel(consumer: Consumer, token: str, payload: bytes = b"") -> list[str]:
    answer = await consumer.client.request(snapshot_cancel_subject(token), payload, timeout=60)
    cancelled: list[str] = decode(answer.data)["cancelled"]
    return cancelled


async def stored(consumer: Consumer, subject: str) -> int:
    info = await consumer.client.jsm().stream_info("INIT", subjects_filter=subject)
    return sum((info.state.subjects or {}).values())


async def test_no_task_publishes_after_a_cancel_and_the_table_can_be_asked_for_again(
    consumer: Consumer,
) -> None:
    await consumer.fill("stopped", 150000)
    chunks = await consumer.client.subscribe("init.snap.stopped.>")
    await consumer.client.flush()
    answer = await consumer.ask("stopped")
    joined = await consumer.ask("stopped")
    assert joined["snapshot_id"] == answer["snapshot_id"]
    await chunks.next_msg(timeout=RESULT_TIMEOUT_S)
    assert await cancel(consumer, "stopped") == [answer["snapshot_id"]]
    late: list[Any] = []
    await consumer.client.flush()
    while chunks.pending_msgs:
        await chunks.next_msg(timeout=1)
    with pytest.raises(TimeoutError):
        late.append(await chunks.next_msg(timeout=QUIET_S))
    assert late == []
    with pytest.raises(SnapshotFailedError, match="cancelled"):
        await consumer.result(answer["snapshot_id"])
    assert await stored(consumer, "init.snap.stopped.>") == 0
    assert await stored(consumer, "init.meta.stopped") == 0
    info = await consumer.client.jetstream().stream_info("SNAPSHOT_REQUESTS")
    assert info.state.messages == 0
    assert len((await consumer.snapshot("stopped")).rows) == 150000


async def test_a_cancel_names_one_snapshot_and_leaves_the_others(consumer: Consumer) -> None:
    await consumer.fill("chosen_one", 60000)
    whole, part = await asyncio.gather(
        consumer.ask("chosen_one"), consumer.ask("chosen_one", {"columns": ["id"]})
    )
    named = msgpack.packb({"snapshot_id": whole["snapshot_id"]})
    assert await cancel(consumer, "chosen_one", named) == [whole["snapshot_id"]]
    assert len((await consumer.result(part["snapshot_id"])).rows) == 60000
    assert await cancel(consumer, "chosen_one") == []
    assert await cancel(consumer, "chosen_one", b"\xc1garbage") == []
