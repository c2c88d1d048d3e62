"""RabbitMQ queues as a sink, over AMQP 0.9.1: every record at least once.

Messages are persistent, and every one is confirmed by the server before the marks move on. A
message's ID is the record's, the same at each attempt. Records are published in order; after a
crash, those since the last marks come again, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ProbableAuthenticationError,
    PublishError,
)
from pamqp.commands import Basic

from headrace.consumer.watermark import Watermark
from headrace.process.failpoint import failpoint
from headrace.sinks.port import Promise, RefusedError, SinkAwayError, SinkError, SinkOptions
from headrace.sinks.rabbitmq_options import Address, RabbitOptions
from headrace.sinks.routing import Record, RoutedTransaction
from headrace.sinks.target_options import read_options

PORT, TLS_PORT = 5672, 5671
# Messages that wait for their confirmation.
UNCONFIRMED_MAX = 500
# Below the 60 s that a call of a sink may take, so that the error names RabbitMQ.
CONFIRM_TIMEOUT_S = 50.0
_PERSISTENT = 2
_HEARTBEAT_S = 30


@dataclass(frozen=True, slots=True)
class RabbitQueueOptions(RabbitOptions):
    """The options of a sink in RabbitMQ queues."""

    # Publish to this exchange, with the destination as the routing key. Without one, the
    # destination is a queue's name.
    exchange: str = ""
    content_type: str = "application/json"


class RabbitQueueSink:
    """One session of a sink in RabbitMQ queues. Its marks are stored elsewhere."""

    promise: ClassVar[Promise] = Promise.AT_LEAST_ONCE

    def __init__(self, options: SinkOptions) -> None:
        self._options = read_options(RabbitQueueOptions, options)
        self._name = options.name
        tls = bool(self._options.tls or self._options.ca_file or self._options.certificate_file)
        self._where = Address.of(options, self._options, TLS_PORT if tls else PORT)
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._queues: set[str] = set()

    async def open(self) -> Mapping[str, Watermark]:
        """Connect, and check the exchange."""
        where = self._where
        scheme = "amqp"
        if where.tls:
            scheme = "amqps"
        login = f"{quote(self._options.username, '')}:{quote(self._options.password, '')}"
        url = f"{scheme}://{login}@{where.host}:{where.port}/{quote(where.vhost, '')}"
        with self._translated("open"):
            self._connection = aiormq.Connection(
                f"{url}?heartbeat={_HEARTBEAT_S}&name=headrace-{quote(self._name)}",
                context=where.tls,
            )
            await self._connection.connect()
            self._channel = await self._connection.channel(publisher_confirms=True)
            if self._options.exchange:
                await self._channel.exchange_declare(self._options.exchange, passive=True)
        return {}

    async def check(self) -> str:
        """Log in, and look for the exchange."""
        await self.open()
        return "the server accepts the login"

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Publish the records, and return when the server has confirmed all of them."""
        records = [record for one in transactions for record in one.records]
        with self._translated("write"):
            for destination in {record.destination for record in records} - self._queues:
                await self._need(destination)
            for start in range(0, len(records), UNCONFIRMED_MAX):
                await self._publish(records[start : start + UNCONFIRMED_MAX])
                failpoint("sink.half_written")

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Nothing is left to do."""

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(AMQPError, OSError):
                await self._connection.close()

    @property
    def _open_channel(self) -> AbstractChannel:
        assert self._channel is not None, "the sink is open"
        return self._channel

    async def _need(self, destination: str) -> None:
        """See that there is a queue, unless an exchange decides that."""
        # Before the outcome: an error ends the session, and this set with it.
        self._queues.add(destination)
        if self._options.exchange:
            return
        await self._open_channel.queue_declare(
            destination,
            passive=not self._options.create,
            durable=True,
            # A classic queue is on one node, and gone with its disk.
            arguments={"x-queue-type": "quorum"},
        )

    async def _publish(self, records: Sequence[Record]) -> None:
        # Tasks start in order, and each writes its message before it waits.
        async with asyncio.timeout(CONFIRM_TIMEOUT_S), asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(self._send(record), name="rabbitmq publish")

    async def _send(self, record: Record) -> None:
        headers = record.headers
        if record.key is not None:
            headers["headrace-key"] = record.key.decode()
        try:
            await self._open_channel.basic_publish(
                record.value,
                exchange=self._options.exchange,
                routing_key=record.destination,
                properties=Basic.Properties(
                    headers=dict(headers),
                    message_id=record.id,
                    delivery_mode=_PERSISTENT,
                    content_type=self._options.content_type,
                    app_id="headrace",
                ),
                # Otherwise a message that no queue takes is confirmed and lost.
                mandatory=True,
            )
        except PublishError as error:
            raise RefusedError(record, "no queue is bound for it") from error

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except BaseExceptionGroup as group:
            # One lost connection fails all messages that wait, so the first error says it all.
            raise self._error(group.exceptions[0], doing) from group
        # aiormq raises a RuntimeError for a channel that is closed.
        except (AMQPError, OSError, RuntimeError) as error:
            raise self._error(error, doing) from error

    def _error(self, error: BaseException, doing: str) -> BaseException:
        if isinstance(error, SinkError) or not isinstance(error, Exception):
            return error
        said = f"{self._where} did not {doing} for sink {self._name}: {error!r}"
        if isinstance(error, AuthenticationError | ProbableAuthenticationError):
            return SinkError(
                f"{self._where} did not accept the login of sink {self._name}",
                remedy="Check username, password and the virtual host.",
            )
        if isinstance(error, ChannelAccessRefused):
            return SinkError(said, remedy="Give the user configure and write permissions.")
        if isinstance(error, ChannelNotFoundEntity):
            return SinkError(said, remedy="Create the queue or exchange, or set `create = true`.")
        if isinstance(error, ChannelPreconditionFailed):
            return SinkError(said, remedy="Remove the queue, or name another in the template.")
        return SinkAwayError(said)
