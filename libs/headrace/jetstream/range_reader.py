"""Reads a range of a stream, from one sequence to another, at the speed of the connection.

Another source's part of a shared stream has to be read before a publisher continues after it, and
may be large. Promises: every message of the range in order, or an error; a bounded part of it in
memory, except for a single message larger than the limit. Leaves no consumer behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from headrace.errors import HeadraceError
from headrace.jetstream import bulk
from headrace.jetstream.pull_budget import place, status
from headrace.timing.waits import wait_for

# Of one request: what bounds the memory.
_MESSAGES_MAX = 1000
_BYTES_MAX = 4 << 20
_PATIENCE_S = 2.0


class StretchError(HeadraceError):
    """A range of a stream could not be read."""

    retry = True


# A message of the stream: its sequence, its header (including NATS/1.0), its payload.
Found = tuple[int, bytes, bytes]


@dataclass(slots=True)
class Stretch:
    """A server-side consumer that starts at `first_seq`; reads up to a sequence, then further."""

    client: Client
    stream: str
    first_seq: int
    # The last message that was read.
    at: int = field(init=False)
    _name: str = field(default_factory=lambda: secrets.token_hex(11))
    _inbox: str = ""
    _listening: bulk.Listening | None = None
    # Unread messages; the inbox of the current request, and when the request is complete.
    _came: list[bulk.Arrival] = field(default_factory=list)
    _requests: int = 0
    _reply: bytes = b""
    _wanted: int = 0
    _last_seq: int = 0
    _too_small: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    # The number of messages that the consumer has delivered, of those that were read.
    _given: int = 0

    def __post_init__(self) -> None:
        self.at = self.first_seq - 1

    async def read(self, last_seq: int) -> AsyncIterator[list[Found]]:
        """The messages up to here, some at a time; ends early if the server has no more for a
        while.
        """
        if self._listening is None and self.at < last_seq:
            await self._open()
        while self.at < last_seq:
            if not self._came:
                await self._ask(min(_MESSAGES_MAX, last_seq - self.at), last_seq)
            found = self._taken(last_seq)
            if not found:
                return
            yield found

    async def _open(self) -> None:
        self._inbox = self.client.new_inbox()
        self._listening = await bulk.listen(self.client, f"{self._inbox}.*", self._hear)
        await self.client.jetstream().add_consumer(self.stream, config=self._config())

    async def close(self) -> None:
        """Give the consumer up: a stream may have no more than 1,000, and one that is shared is
        read often.
        """
        listening = self._listening
        self._listening = None
        if listening is None or not self.client.is_connected:
            return
        with contextlib.suppress(NatsError, OSError):
            async with asyncio.timeout(_PATIENCE_S):
                await listening.end()
                await self.client.jetstream().delete_consumer(self.stream, self._name)

    def _config(self) -> ConsumerConfig:
        return ConsumerConfig(
            name=self._name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.first_seq,
            ack_policy=AckPolicy.NONE,
            # The server deletes the consumer of a reader that died.
            inactive_threshold=30.0,
            # Nothing of it needs to survive its reader: it is not worth a write to the disk, or a
            # replica.
            mem_storage=True,
            num_replicas=1,
        )

    async def _ask(self, messages: int, last_seq: int) -> None:
        """Request this many messages; if the first is too large for that, one of any size."""
        await self._asked({"batch": messages, "max_bytes": _BYTES_MAX}, last_seq)
        if not self._came and self._too_small:
            await self._asked({"batch": 1}, last_seq)

    async def _asked(self, request: dict[str, int], last_seq: int) -> None:
        self._wanted = request["batch"]
        self._last_seq = last_seq
        self._too_small = False
        self._news.clear()
        self._requests += 1
        # An inbox for each request, since a late status of an earlier one must not end this one.
        self._reply = f"{self._inbox}.{self._requests}".encode()
        body = orjson.dumps({**request, "expires": int(_PATIENCE_S * 1e9)})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self._name}"
        await self.client.publish(subject, body, reply=self._reply.decode())
        # The server ends the request itself after the patience; the rest is for its answer.
        await wait_for(self._news, 2 * _PATIENCE_S)

    def _taken(self, last_seq: int) -> list[Found]:
        """The messages up to here; if some were removed, requests may have fetched later ones."""
        found: list[Found] = []
        for _, reply, header, payload in self._came:
            seq, number, _ = place(reply)
            # Later messages are left for the next range.
            if seq > last_seq:
                self.at = last_seq
                break
            # The consumer counts its messages separately from the sequence: removed ones leave a
            # jump in the sequences, but none in this count. A jump here is a loss.
            self._given += 1
            if number != self._given:
                # The server does not repeat messages that it sent into a lost connection.
                raise StretchError(f"stream {self.stream} could not be read beyond {self.at}")
            found.append((seq, header, payload))
            self.at = seq
        del self._came[: len(found)]
        return found

    def _hear(self, arrivals: list[bulk.Arrival]) -> None:
        for arrival in arrivals:
            # Messages have an acknowledgement subject as their reply; statuses come to the
            # request's inbox.
            if arrival[1].startswith(b"$JS.ACK."):
                self._came.append(arrival)
            elif arrival[0] == self._reply and (said := status(arrival[2])) is not None:
                # It may arrive late, for an earlier request: that one was complete, and this is its
                # status.
                self._too_small = said.is_too_small
                self._news.set()
        if len(self._came) >= self._wanted or (
            self._came and place(self._came[-1][1])[0] >= self._last_seq
        ):
            # All of it, or all that is left of it if messages were removed.
            self._news.set()


def fields(header: bytes) -> dict[str, str]:
    """A message's headers by name."""
    lines = header.decode(errors="replace").split("\r\n")[1:]
    return {
        name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name
    }
