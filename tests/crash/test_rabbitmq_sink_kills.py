"""A RabbitMQ stream has every change once, and a queue has it at least once despite kills."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from rstream.exceptions import ServerError

from headrace.lsn import Position
from headrace.testing.oracle import Change
from headrace.testing.rabbitmq import RabbitServer
from tests.support.rabbitmq_reading import body, consumed, stream_messages
from tests.support.sink_kills import POINTS, SinkLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STREAM_POINTS = (*POINTS, "sink.half_committed", "sink.half_committed")
QUEUE_POINTS = (*POINTS, "sink.half_written")
TARGET = "changes"


def change(payload: dict[str, Any]) -> Change:
    tx = payload["tx"]
    return Change(Position(tx["lsn"], tx["seq"]), payload["operation"], payload["table"])


def stream_plan(server: RabbitServer) -> dict[str, Any]:
    return {
        "name": "shop",
        "to": f"rabbitmq-stream://localhost:{server.stream_port}",
        "destination": TARGET,
    }


async def in_stream(server: RabbitServer) -> list[Change]:
    """The changes of rows in the stream, in its order."""
    try:
        found = await stream_messages(server, TARGET, bool)
    except (ServerError, OSError, ExceptionGroup):
        # It does not exist yet.
        return []
    payloads = [json.loads(body(message)) for message in found]
    return [change(one) for one in payloads if one["operation"] != "SCHEMA"]


async def test_a_stream_has_every_change_once_after_kills_of_the_sink(
    line: SinkLine, own_rabbitmq: RabbitServer
) -> None:
    async def count() -> int:
        return len(await in_stream(own_rabbitmq))

    committed = await line.delivered_after_kills(stream_plan(own_rabbitmq), STREAM_POINTS, count)
    assert await in_stream(own_rabbitmq) == committed


async def test_a_stream_has_every_change_once_after_kills_of_the_server(
    line: SinkLine, own_rabbitmq: RabbitServer
) -> None:
    async def count() -> int:
        return len(await in_stream(own_rabbitmq))

    plan = stream_plan(own_rabbitmq)
    async with line.sink({**plan, "events_max": 20}) as process:
        for first in (0, 1000):
            await insert(line, first)
            async with asyncio.timeout(90):
                while await count() <= first:  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.1)
            await insert(line, first + 500)
            await own_rabbitmq.kill()
            await own_rabbitmq.start()
        assert process.returncode is None, line.output()
    committed = await line.delivered(plan, count)
    assert await in_stream(own_rabbitmq) == committed


async def insert(line: SinkLine, first: int) -> None:
    for start in range(first, first + 500, 50):
        await line.database.execute(
            f"INSERT INTO orders SELECT g, 0, 'n' FROM generate_series({start}, {start + 49}) g"
        )


async def test_a_queue_has_every_change_after_kills_of_the_sink(
    line: SinkLine, own_rabbitmq: RabbitServer
) -> None:
    plan = {
        "name": "shop",
        "to": f"rabbitmq://127.0.0.1:{own_rabbitmq.port}",
        "destination": TARGET,
    }

    async with consumed(own_rabbitmq, TARGET) as messages:

        def arrived() -> dict[str, dict[str, Any]]:
            """By the ID of the message: its first arrival."""
            found: dict[str, dict[str, Any]] = {}
            for message in messages:
                payload = json.loads(message.body)
                if payload["operation"] != "SCHEMA":
                    found.setdefault(message.header.properties.message_id, payload)
            return found

        async def count() -> int:
            return len(arrived())

        committed = await line.delivered_after_kills(plan, QUEUE_POINTS, count)
        # In the order of their first arrival.
        assert [change(one) for one in arrived().values()] == committed
        assert len(messages) > len(committed), "the kills have interrupted something"
