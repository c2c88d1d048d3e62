"""nats-py's client on the simulated server: the same class, with another wire.

The parts that Headrace calls (subscriptions, requests, JetStream's context, buckets) are nats-py's
own code. Commands that are passed as bytes are parsed as a server would.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any

from nats import errors
from nats.aio.client import Client, ServerVersion
from nats.aio.msg import Msg
from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue

from headrace.jetstream.bulk import BulkParser
from tests.simulation.clockwork import Process
from tests.simulation.server import Connection, Server, header_bytes
from tests.simulation.stream import Headers, Stored

PAYLOAD_MAX = 1 << 20
_PENDING_MAX = 2 << 20


class SimClient(Client):
    def __init__(self, server: Server, process: Process | None, context: Context) -> None:
        super().__init__()
        self.server = server
        self.process = process
        self.context = context
        self.number = server.number()
        self.connection: Connection | None = None
        self._server_info = {"version": server.version}
        self._max_payload = PAYLOAD_MAX
        self._max_pending_size = _PENDING_MAX
        self._inbox_name = f"_INBOX.{self.number}"
        self._counter = itertools.count(1)
        self._requests: dict[str, asyncio.Future[Any]] = {}
        self._version: Any = None
        if process is not None:
            process.on_death.append(self.die)

    @property
    def connected_server_version(self) -> Any:
        if self._version is None:
            self._version = ServerVersion(self.server.version)
        return self._version

    def open(self) -> None:
        """The connection is open."""
        self.connection = Connection(self.server, self)
        self.server.connections[self.connection] = None
        self.server.inboxes[str(self.number)] = self.connection
        self.connection.send("sub", 0, f"{self._inbox_name}.r.*")
        for sid, sub in self._subs.items():
            self.connection.send("sub", sid, sub._subject)  # nats-py's own way
        self._status = Client.CONNECTED
        for command in self._pending:
            self.connection.send(*command)
        self._pending = []

    def lost(self, connection: Connection) -> None:
        """The connection broke: noticed some time later, fixed some time after that."""
        if connection is not self.connection or self._dead:
            return
        notice = self.server.chance.choice((0.0, 0.001, 0.3))
        self.server.loop.call_later(notice, self._notice, connection, context=self.context)

    @property
    def _dead(self) -> bool:
        return self.process is not None and self.process.dead

    def _notice(self, connection: Connection) -> None:
        if connection is self.connection and self._status == Client.CONNECTED:
            self._status = Client.RECONNECTING
            self._again()

    def _again(self) -> None:
        if self._status != Client.RECONNECTING:
            return
        if not self.server.up:
            self.server.loop.call_later(0.2, self._again, context=self.context)
            return
        self.stats["reconnects"] += 1
        self.open()

    def die(self) -> None:
        """The process was killed: what the kernel still has may arrive."""
        self._status = Client.CLOSED
        if self.connection is not None:
            after = self.server.chance.choice((0.0, 0.0003, 0.001, 1.0))
            self.connection.cut(self.server.loop.now + after)

    async def close(self) -> None:
        self._status = Client.CLOSED
        if self.connection is not None:
            self.connection.drop()

    # What goes out.

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, Any] | None = None,
    ) -> None:
        if self.is_closed:
            raise errors.ConnectionClosedError
        if len(payload) > self._max_payload:
            raise errors.MaxPayloadError
        self._put("pub", subject, reply, headers, bytes(payload))

    def _put(self, *command: Any) -> None:
        if self._status == Client.CONNECTED and self.connection is not None:
            self.connection.send(*command)
        else:
            self._pending.append(command)  # type: ignore[arg-type]  # commands, and not their bytes

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:  # noqa: ARG002  # nats-py's
        for command in commands_of(cmd):
            self._put(*command)

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # nats-py's
        """Everything is on its way immediately."""

    async def flush(self, timeout: int = 10) -> None:  # nats-py's
        if self.is_closed:
            raise errors.ConnectionClosedError
        key = f"PONG{next(self._counter)}"
        await self._answered(key, ("ping", key), timeout)

    def new_inbox(self) -> str:
        return f"{self._inbox_name}.{next(self._counter)}"

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # nats-py's
        old_style: bool = False,  # noqa: ARG002  # nats-py's
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        if self.is_closed:
            raise errors.ConnectionClosedError
        inbox = f"{self._inbox_name}.r.{next(self._counter)}"
        answer: Msg = await self._answered(
            inbox, ("pub", subject, inbox, headers, payload), timeout
        )
        if (answer.headers or {}).get("Status") == "503":
            raise errors.NoRespondersError
        return answer

    async def _answered(self, key: str, command: tuple[Any, ...], wait_s: float) -> Any:
        future = self._requests[key] = asyncio.get_running_loop().create_future()
        self._put(*command)
        try:
            async with asyncio.timeout(wait_s):
                return await future
        except TimeoutError:
            raise errors.TimeoutError from None
        finally:
            self._requests.pop(key, None)

    # What comes in.

    def hear(
        self, sid: int, subject: str, reply: str, headers: Headers | None, data: bytes
    ) -> None:
        if sid == 0:
            waiting = self._requests.get(subject)
            if waiting is not None and not waiting.done():
                waiting.set_result(self._message(subject, reply, headers, data))
            return
        sub: Any = self._subs.get(sid)
        if sub is not None:
            self._give(sid, sub, subject, reply, headers, data)

    def _message(self, subject: str, reply: str, headers: Headers | None, data: bytes) -> Msg:
        return Msg(self, subject, reply, data, dict(headers) if headers else None)

    def _give(
        self, sid: int, sub: Any, subject: str, reply: str, headers: Headers | None, data: bytes
    ) -> None:
        parser: Any = self._ps
        listener = parser.listeners.get(b"%d" % sid) if isinstance(parser, BulkParser) else None
        if listener is not None:
            head = _head(headers)
            listener([(subject.encode(), reply.encode(), head, data)])
            return
        sub._received += 1  # as nats-py does
        sub._pending_size += len(data)  # as above
        sub._pending_queue.put_nowait(self._message(subject, reply, headers, data))  # as above


def _head(headers: Headers | None) -> bytes:
    """A header as bytes; a status stands in its first line."""
    if not headers:
        return b""
    if "Status" not in headers:
        return header_bytes(headers)
    rest = {name: value for name, value in headers.items() if name != "Status"}
    return header_bytes(rest).replace(b"NATS/1.0", f"NATS/1.0 {headers['Status']}".encode(), 1)


def commands_of(data: bytes) -> list[tuple[Any, ...]]:
    """The commands in these bytes, as a server reads them."""
    found: list[tuple[Any, ...]] = []
    at = 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        words = data[at:end].decode().split(" ")
        at = end + 2
        if words[0] in ("SUB", "UNSUB"):
            found.append(_interest(words))
            continue
        size = int(words[-1])
        head = int(words[-2]) if words[0] == "HPUB" else 0
        headers = _headers(data[at : at + head]) if head else None
        found.append(("pub", words[1], words[2], headers, data[at + head : at + size]))
        at += size + 2
    return found


def _interest(words: list[str]) -> tuple[Any, ...]:
    if words[0] == "SUB":
        return ("sub", int(words[-1]), words[1])
    return ("unsub", int(words[1]))


def _headers(data: bytes) -> dict[str, str]:
    lines = data.decode().split("\r\n")[1:]
    return {
        name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name
    }


class Listing:
    """The first part of a bucket's watch: the last value of each key, then None."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = entries

    async def __aiter__(self) -> AsyncIterator[Any]:
        for entry in self._entries:
            yield entry
        yield None

    async def stop(self) -> None:
        """Nothing follows."""


async def watch(self: KeyValue, keys: str, **_: Any) -> Listing:
    """Replaces nats-py's method, which creates a consumer; this returns the same result."""
    client: Any = self._js._nc  # there is no public way
    # It takes a question and its answer, and may fail as they do.
    await self._js.stream_info(self._stream)
    found = client.server.last_of(self._stream, f"{self._pre}{keys}")
    if found is None:
        raise errors.TimeoutError
    return Listing([_entry(self, one) for one in found if "KV-Operation" not in one.headers])


def _entry(bucket: KeyValue, one: Stored) -> KeyValue.Entry:
    key = one.subject.removeprefix(bucket._pre)  # as above
    return KeyValue.Entry(bucket._name, key, one.payload, one.seq, None, None, None)  # as above


async def list_keys(self: KeyValue, filters: list[str] | None = None, **_: Any) -> list[str]:
    """As `watch`; nats-py's is made of it."""
    found = [
        entry.key
        for pattern in filters or [">"]
        async for entry in await watch(self, pattern)
        if entry is not None
    ]
    if not found:
        raise NoKeysError
    return found
