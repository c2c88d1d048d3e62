"""Publishers of RabbitMQ's streams: one for each stream, at the server that leads it.

Promises that `confirmed` returns only when servers have stored every message, and that a lost
connection is an error: nothing reconnects, because the next session finds out what arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import orjson
from rstream import (
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    amqp_decoder,
    exceptions,
    schema,
)
from rstream.client import Addr, Client, ClientPool

from headrace.sinks.port import SinkError
from headrace.sinks.rabbitmq_message import encoded
from headrace.sinks.rabbitmq_options import Address
from headrace.sinks.routing import Record

_FRAME_BYTES = 1024 * 1024
# Less what a frame and a message have around a value.
RECORD_BYTES_MAX = _FRAME_BYTES - 8192
# Of a publisher, by the property of each message: its name, and the message's number.
_PUBLISHER, _NUMBER, _ID = "headrace-publisher", "headrace-number", "headrace-id"
# A clock of a server or of an earlier process may differ from ours by this much.
_CLOCKS_MS = 10 * 60 * 1000
_MESSAGE_BYTES = 12
_HEARTBEAT_S = 60
_CONFIRM_TIMEOUT_S = 50.0
_READ_TIMEOUT_S = 20.0
_MARKER = b"marker "
_POSITION_ARGUMENTS = {
    "max-length-bytes": 4 * 1024 * 1024,
    "stream-max-segment-size-bytes": 1024 * 1024,
}


@dataclass(slots=True)
class Coverage:
    """The records before the marks: the last number of each stream, and when that was."""

    numbers: dict[str, int] = field(default_factory=dict)
    at_ms: int = 0
    # IDs of records that have a number, although they come after the marks.
    left_over: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, position: bytes) -> Self:
        """Read it from the marks' JSON."""
        body = orjson.loads(position)
        return cls(body["numbers"], body["at_ms"], body["left_over"])


@dataclass(slots=True, eq=False)
class _Publisher:
    """A publisher of one stream, and what it has not been confirmed yet."""

    client: Client
    id: int
    # The number of the last message that was sent.
    number: int = 0
    unconfirmed: set[int] = field(default_factory=set)
    # IDs of records that the stream has, although the marks do not cover them.
    left_over: set[str] = field(default_factory=set)


class _Client(Client):
    """A connection whose socket is closed even if the server has closed its end; rstream leaves
    that one open.
    """

    async def close(self) -> None:
        """Close it."""
        # The base class forgets it.
        connection = self._conn
        await super().close()
        if connection is not None:
            with contextlib.suppress(OSError):
                await connection.close()


class _Pool(ClientPool):
    """The connections of one session."""

    async def new(
        self,
        connection_name: str | None,
        addr: Addr,
        connection_closed_handler: Any = None,
        sasl_configuration_mechanism: Any = None,
        max_clients_by_connections: int = 256,
    ) -> Client:
        """Connect, and log in."""
        client = _Client(
            addr.host,
            addr.port,
            ssl_context=self.ssl_context,
            frame_max=self._frame_max,
            heartbeat=self._heartbeat,
            connection_name=connection_name,
            connection_closed_handler=connection_closed_handler,
            max_clients_by_connections=max_clients_by_connections,
            sasl_configuration_mechanism=(
                sasl_configuration_mechanism or self._sasl_configuration_mechanism
            ),
        )
        try:
            await client.start()
            await client.authenticate(self.vhost, self.username, self.password)
        # The pool doesn't know it yet, so nobody else would close it.
        except BaseException:
            await client.close()
            raise
        return client


class Publishers:
    """The publishers of one session."""

    def __init__(
        self,
        address: Address,
        reference: str,
        *,
        username: str,
        password: str,
        create: bool,
        bytes_max: int,
        load_balancer: bool,
    ) -> None:
        self._address = address
        self._reference = reference
        self._login: dict[str, Any] = {"username": username, "password": password}
        self._create = create
        self._arguments: dict[str, Any] = {}
        if bytes_max:
            # Without it, a stream keeps everything.
            self._arguments["max-length-bytes"] = bytes_max
        self._pool = _Pool(
            address.host,
            address.port,
            ssl_context=address.tls,
            vhost=address.vhost,
            frame_max=_FRAME_BYTES,
            heartbeat=_HEARTBEAT_S,
            load_balancer_mode=load_balancer,
            max_retries=20,
            **self._login,
        )
        self._load_balancer = load_balancer
        self._locator: Client | None = None
        self._of_stream: dict[str, _Publisher] = {}
        # Set at each confirmation, and at the end of a connection.
        self._news = asyncio.Event()
        self._failure = ""
        self.stored = Coverage()
        self._opened = -1

    async def connect(self) -> None:
        """Connect to the address."""
        self._locator = await self._pool.get(
            connection_name=self._reference, locator_request=True, connection_closed_handler=_ignore
        )

    async def publish(self, stream: str, records: Sequence[Record]) -> None:
        """Send the records that the stream does not have."""
        publisher = self._of_stream.get(stream) or await self._open_numbered(stream)
        frame: list[schema.Message] = []
        size = 0
        for record in records:
            # The stream has it already, from a session that ended before its marks were stored.
            if record.id in publisher.left_over:
                publisher.left_over.discard(record.id)
                continue
            publisher.number += 1
            body = self._message(record, publisher.number)
            if size + len(body) + _MESSAGE_BYTES > RECORD_BYTES_MAX:
                await self._send(publisher, frame)
                frame, size = [], 0
            frame.append(schema.Message(publisher.number, None, body))
            size += len(body) + _MESSAGE_BYTES
        await self._send(publisher, frame)

    def covered(self) -> dict[str, object]:
        """The coverage of the next marks, for `Coverage.of`."""
        numbers = {stream: one.number for stream, one in self._of_stream.items()}
        left_over = {stream: sorted(one.left_over) for stream, one in self._of_stream.items()}
        return {
            # Streams that this session has not written to keep their numbers.
            "numbers": self.stored.numbers | numbers,
            "at_ms": int(time.time() * 1000),
            "left_over": {
                stream: ids for stream, ids in (self.stored.left_over | left_over).items() if ids
            },
        }

    async def cover_everything(self) -> None:
        """Take what is stored as covered: the marks go back, and every record is sent again."""
        # The marks go back before what is stored: without this, the records sent again would be
        # taken for repeats.
        for stream in self.stored.numbers:
            if stream not in self._of_stream:
                await self._open_numbered(stream)
            self._of_stream[stream].left_over.clear()

    async def confirmed(self) -> None:
        """Wait until servers have stored everything that was sent."""
        async with asyncio.timeout(_CONFIRM_TIMEOUT_S):
            while any(one.unconfirmed for one in self._of_stream.values()):
                if self._failure:
                    raise ConnectionError(self._failure)
                self._news.clear()
                await self._news.wait()

    async def append(self, stream: str, body: bytes) -> None:
        """Store one message at the end of a stream with marks, and wait for its confirmation."""
        publisher = self._of_stream.get(stream)
        if publisher is None:
            # Without a name: nothing here is a repeat.
            publisher = await self._open(stream, _POSITION_ARGUMENTS, reference=None)
            self._of_stream[stream] = publisher
        publisher.number += 1
        await self._send(publisher, [schema.Message(publisher.number, None, body)])
        await self.confirmed()

    async def last_of(self, stream: str) -> bytes | None:
        """Return the last message of a stream with marks: the one before a marker that is stored
        now, because a stream does not tell where it ends.
        """
        # Random, because markers of earlier sessions are in the stream, too.
        marker = _MARKER + secrets.token_bytes(16)
        await self.append(stream, marker)
        last: list[bytes] = []
        done = asyncio.Event()

        def on_message(body: Any, _: Any) -> None:
            if body == marker:
                done.set()
            elif not done.is_set() and not body.startswith(_MARKER):
                last[:] = [bytes(body)]

        await self._read(stream, OffsetType.FIRST, None, bytes, on_message, done)
        return next(iter(last), None)

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    def _message(self, record: Record, number: int) -> bytes:
        properties = record.headers
        if record.key is not None:
            properties["headrace-key"] = record.key.decode()
        properties[_PUBLISHER] = self._reference
        properties[_NUMBER] = str(number)
        return encoded(properties, record.value)

    async def _open_numbered(self, stream: str) -> _Publisher:
        publisher = await self._open(stream, self._arguments, self._reference)
        # The server's own count of this publisher, which a lost answer can't falsify.
        publisher.number = await publisher.client.query_publisher_sequence(stream, self._reference)
        covered = self.stored.numbers.get(stream, 0)
        publisher.left_over = set(self.stored.left_over.get(stream, ()))
        # A session ended between its records and its marks. Their IDs tell which records not to
        # repeat.
        if publisher.number > covered:
            publisher.left_over |= await self._ids(stream, covered, publisher.number)
        self._of_stream[stream] = publisher
        return publisher

    async def _ids(self, stream: str, after: int, last: int) -> set[str]:
        """The IDs of the records with these numbers. It reads from the moment of the marks and,
        if a clock was wrong, from the beginning.
        """
        since_ms = self.stored.at_ms - _CLOCKS_MS
        found: dict[int, str] = {}
        done = asyncio.Event()

        def on_message(message: Any, _: Any) -> None:
            given = message.application_properties or {}
            if given.get(_PUBLISHER.encode()) == self._reference.encode():
                number = int(given[_NUMBER.encode()])
                if number > after:
                    found[number] = given[_ID.encode()].decode()
                # Numbers come in order, so all before it have been seen.
                if number >= last:
                    done.set()

        if since_ms > 0:
            await self._read(stream, OffsetType.TIMESTAMP, since_ms, amqp_decoder, on_message, done)
        if len(found) < last - after:
            done.clear()
            await self._read(stream, OffsetType.FIRST, None, amqp_decoder, on_message, done)
        if len(found) < last - after:
            raise SinkError(
                f"{stream} has lost records that were stored after the sink's last marks",
                remedy="Run `headrace sinks reset` for this sink, or write to a new stream.",
            )
        return set(found.values())

    async def _read(
        self,
        stream: str,
        start: OffsetType,
        offset: int | None,
        decoder: Callable[[bytes], Any],
        on_message: Callable[[Any, Any], None],
        done: asyncio.Event,
    ) -> None:
        """Read a stream until `done`."""
        reader = Consumer(
            self._address.host,
            self._address.port,
            vhost=self._address.vhost,
            ssl_context=self._address.tls,
            load_balancer_mode=self._load_balancer,
            **self._login,
        )
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await reader.start()
                await reader.subscribe(
                    stream,
                    on_message,
                    decoder=decoder,
                    offset_specification=ConsumerOffsetSpecification(start, offset),
                )
                await done.wait()
        finally:
            await reader.close()

    async def _open(
        self, stream: str, arguments: dict[str, Any], reference: str | None
    ) -> _Publisher:
        assert self._locator is not None, "connected"
        if not await self._locator.stream_exists(stream):
            await self._make(self._locator, stream, arguments)
        # Only the leader accepts messages.
        leader, _ = await self._locator.query_leader_and_replicas(stream)
        client = await self._pool.get(
            addr=Addr(leader.host, leader.port),
            connection_name=self._reference,
            connection_closed_handler=self._lost,
            stream=stream,
        )
        self._opened += 1
        publisher = _Publisher(client, self._opened)
        # Before the publisher exists: its first confirmation must find the handler.
        client.add_handler(schema.PublishConfirm, self._on_confirm, name=stream)
        client.add_handler(schema.PublishError, self._on_error, name=stream)
        await client.declare_publisher(stream, reference, publisher.id)
        return publisher

    async def _make(self, locator: Client, stream: str, arguments: dict[str, Any]) -> None:
        if not self._create:
            raise SinkError(
                f"{self._address} has no stream {stream}",
                remedy="Create it, or set `create = true`.",
            )
        # Another sink may have created it in this moment.
        with contextlib.suppress(exceptions.StreamAlreadyExists):
            await locator.create_stream(stream, arguments)

    async def _send(self, publisher: _Publisher, frame: list[schema.Message]) -> None:
        if self._failure:
            raise ConnectionError(self._failure)
        if not frame:
            return
        # Before sending: the confirmation may arrive while `send` still waits.
        publisher.unconfirmed.update(message.publishing_id for message in frame)
        await publisher.client.send_publish_frame(schema.Publish(publisher.id, frame))

    def _on_confirm(self, frame: schema.PublishConfirm) -> None:
        for publisher in self._of_stream.values():
            # A connection to a server is shared by the streams that it leads.
            if publisher.id == frame.publisher_id:
                publisher.unconfirmed.difference_update(frame.publishing_ids)
        self._news.set()

    def _on_error(self, frame: schema.PublishError) -> None:
        codes = sorted({error.response_code for error in frame.errors})
        self._failure = f"messages were not stored, response codes {codes}"
        self._news.set()

    def _lost(self, _: Any) -> None:
        self._failure = "the connection is lost"
        self._news.set()


def _ignore(_: Any) -> None:
    """A lost connection for queries shows in the next query."""
