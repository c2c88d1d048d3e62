"""The responder's metrics show a snapshot's progress while it runs, and its result afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.msg import Msg

from headrace.bus import participation, subjects
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import snapshot_progress_subject
from headrace.metrics.counters import Stats
from headrace.testing.responder import Consumer

pytestmark = pytest.mark.spark


async def test_a_snapshot_is_seen_running_with_its_progress_and_then_completed(
    consumer: Consumer,
) -> None:
    await consumer.publish("(id int PRIMARY KEY, note text)", "watched")
    await consumer.sql.execute(
        "INSERT INTO watched SELECT g, 'note' FROM generate_series(1, 50000) g; ANALYZE watched"
    )
    seen: list[Stats] = []

    async def note(message: Msg) -> None:
        seen.append(participation.decode_stats(message.data).stats)

    await consumer.client.subscribe(subjects.stats("snapshots", "snapshot-responder"), cb=note)
    async with asyncio.timeout(120):
        # Reports come once a second; a snapshot on a warm Spark may fall between two.
        while not (running := [stats for stats in seen if stats.get("snapshot_progress_rows")]):
            assert len((await consumer.snapshot("watched")).rows) == 50_000
        while seen[-1]["snapshots_running"]:  # noqa: ASYNC110  # reports come when they come
            await asyncio.sleep(0.05)
    assert [stats for stats in running if stats["snapshot_estimated_rows"] == {"watched": 50_000}]
    assert seen[-1]["spark_state"] == {"stopped": 0.0, "starting": 0.0, "running": 1.0}
    took = seen[-1]["snapshot_seconds"]
    assert isinstance(took, list)
    assert took[0] > 0
    assert seen[-1]["snapshot_progress_rows"] == {}


async def test_progress_has_sparks_own_account_of_its_tasks_too(consumer: Consumer) -> None:
    await consumer.publish("(id int PRIMARY KEY, note text)", "tracked")
    await consumer.sql.execute(
        "INSERT INTO tracked SELECT g, repeat('x', 1000) FROM generate_series(1, 40000) g"
    )
    seen: list[dict[str, Any]] = []

    async def note(message: Msg) -> None:
        seen.append(decode(message.data))

    await consumer.client.subscribe(snapshot_progress_subject("tracked"), cb=note)
    async with asyncio.timeout(120):
        # Reported once a second; a snapshot on a warm Spark may fall between two.
        while not any(0 < told["tasks_done"] <= told["tasks"] for told in seen):
            await consumer.snapshot("tracked")
    assert {told["tasks"] for told in seen} <= {0, 16}
