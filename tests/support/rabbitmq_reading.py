"""The content of RabbitMQ's streams and queues, by their clients' own decoders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiormq
from rstream import AMQPMessage, Consumer, ConsumerOffsetSpecification, OffsetType, amqp_decoder
from rstream.exceptions import LeaderNotAvailable

from headrace.testing.rabbitmq import PASSWORD, USER, RabbitServer

IDLE_S = 1.0
TIMEOUT_S = 90.0


async def stream_messages(
    server: RabbitServer, stream: str, enough: Callable[[list[AMQPMessage]], bool]
) -> list[AMQPMessage]:
    """The messages of a stream from its beginning, until there are enough and no more come."""
    found: list[AMQPMessage] = []
    news = asyncio.Event()

    def on_message(message: AMQPMessage, _: Any) -> None:
        found.append(message)
        news.set()

    reader = Consumer("localhost", server.stream_port, username=USER, password=PASSWORD)
    await reader.start()
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    try:
        await _subscribe(reader, stream, on_message, deadline)
        while True:
            news.clear()
            try:
                async with asyncio.timeout(IDLE_S):
                    await news.wait()
            except TimeoutError:
                if enough(found) or asyncio.get_running_loop().time() > deadline:
                    return found
    finally:
        await reader.close()


async def _subscribe(
    reader: Consumer, stream: str, on_message: Callable[[AMQPMessage, Any], None], deadline: float
) -> None:
    """Read a stream from its beginning. After its server's start, it has no leader for a moment."""
    first = ConsumerOffsetSpecification(OffsetType.FIRST, None)
    while True:
        try:
            await reader.subscribe(
                stream, on_message, decoder=amqp_decoder, offset_specification=first
            )
        except LeaderNotAvailable:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            return


def properties(message: AMQPMessage) -> dict[str, str]:
    """The application properties of a stream's message."""
    given = message.application_properties or {}
    return {name.decode(): value.decode() for name, value in given.items()}


def body(message: AMQPMessage) -> bytes:
    """The data of a stream's message."""
    return bytes(message.body)


async def queue_messages(server: RabbitServer, queue: str) -> list[Any]:
    """The messages of a queue, which stay there."""
    connection = await aiormq.connect(f"amqp://{USER}:{PASSWORD}@127.0.0.1:{server.port}/")
    found = []
    try:
        channel = await connection.channel()
        while (message := await channel.basic_get(queue)).delivery_tag:
            found.append(message)
    finally:
        # It returns them to the queue.
        await connection.close()
    return found


@contextlib.asynccontextmanager
async def consumed(server: RabbitServer, queue: str) -> AsyncIterator[list[Any]]:
    """The messages of a quorum queue, as they arrive at its only consumer."""
    connection = await aiormq.connect(f"amqp://{USER}:{PASSWORD}@127.0.0.1:{server.port}/")
    channel = await connection.channel()
    await channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    found: list[Any] = []

    async def on_message(message: Any) -> None:
        found.append(message)

    await channel.basic_consume(queue, on_message, no_ack=True)
    try:
        yield found
    finally:
        await connection.close()
