"""A Kafka topic has every change once, for readers with `read_committed` despite kills.

`HEADRACE_SINK_KILLS` is the number of kills of the sink's process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from headrace.lsn import Position
from headrace.testing.kafka import KafkaServer
from headrace.testing.oracle import Change
from tests.support.kafka_reading import COMMITTED, UNCOMMITTED, records
from tests.support.sink_kills import POINTS, SinkLine

TOPIC = "changes"
# The last one has sent all records to the broker: it is where doubled ones would come from.
KAFKA_POINTS = (*POINTS, "sink.half_written", "sink.half_committed")


def plan(kafka: KafkaServer) -> dict[str, Any]:
    return {
        "name": "shop",
        "to": f"kafka://{kafka.bootstrap}",
        # One partition: its order is the order of the commits.
        "destination": TOPIC,
        "options": {"partitions": 1},
    }


def changes(kafka: KafkaServer, isolation: str = COMMITTED) -> list[Change]:
    """The changes of rows in the topic, in its order."""
    found = []
    for message in records(kafka.bootstrap, TOPIC, isolation):
        payload = json.loads(message.value() or b"")
        if payload["operation"] != "SCHEMA":
            position = Position(payload["tx"]["lsn"], payload["tx"]["seq"])
            found.append(Change(position, payload["operation"], payload["table"]))
    return found


async def count(kafka: KafkaServer) -> int:
    try:
        return len(await asyncio.to_thread(changes, kafka))
    except KeyError:
        # The topic does not exist yet.
        return 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_every_change_is_there_once_after_kills_of_the_sink(
    line: SinkLine, own_kafka: KafkaServer
) -> None:
    committed = await line.delivered_after_kills(
        plan(own_kafka), KAFKA_POINTS, lambda: count(own_kafka)
    )
    found = await asyncio.to_thread(changes, own_kafka)
    assert found == committed
    # The kills did hit transactions that brokers had already.
    assert len(await asyncio.to_thread(changes, own_kafka, UNCOMMITTED)) > len(committed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_every_change_is_there_once_after_kills_of_the_broker(
    line: SinkLine, own_kafka: KafkaServer
) -> None:
    server = line.database
    first = 0
    async with line.sink({**plan(own_kafka), "events_max": 50}) as process:
        for _ in range(3):
            before = await count(own_kafka)
            for _ in range(10):
                await server.execute(
                    f"INSERT INTO orders SELECT g, 0, 'n' FROM generate_series({first}, "
                    f"{first + 199}) g"
                )
                first += 200
            async with asyncio.timeout(120):
                while await count(own_kafka) <= before:  # noqa: ASYNC110  # another process commits
                    await asyncio.sleep(0.05)
            await own_kafka.kill()
            await server.execute(f"UPDATE orders SET n = n + 1 WHERE id > {first - 300}")
            await own_kafka.start()
        assert process.returncode is None, line.output()
    committed = await line.delivered(plan(own_kafka), lambda: count(own_kafka))
    assert await asyncio.to_thread(changes, own_kafka) == committed


@pytest.mark.slow
async def test_readers_see_whole_transactions_at_any_moment(
    line: SinkLine, own_kafka: KafkaServer
) -> None:
    server = line.database
    async with line.sink({**plan(own_kafka), "events_max": 30}):
        for first in range(0, 4000, 100):
            await server.execute(
                f"INSERT INTO orders SELECT g, 0, 'n' FROM generate_series({first}, {first + 99}) g"
            )
        seen = 0
        async with asyncio.timeout(120):
            while seen < 4000:
                found = [] if not await count(own_kafka) else changes(own_kafka)
                groups = itertools.groupby(found, key=lambda change: change.position.lsn)
                assert all(len(list(group)) == 100 for _, group in groups)
                seen = len(found)
