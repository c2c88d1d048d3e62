"""Publishing into a stream: pipelined, acknowledged, in order, without a hole, fenced.

Each message names its predecessor (`Nats-Expected-Last-Msg-Id`), and the first one the stream's last sequence as read
from the server. So JetStream itself refuses a message whose predecessor is missing (a failed store, a full stream) and
everything of a publisher that was superseded: nothing can be stored out of order, doubled or behind a hole, whatever
the duplicate window (docs/adr/0005). Another source's message in between breaks the chain harmlessly: the unstored
rest is published again behind it.

Never retries on its own what it doesn't know the fate of: a lost acknowledgement or connection is an `IngestError`,
and the publisher finds its place again in the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.failpoint import failpoint
from headrace.jetstream.tail import StreamTail
from headrace.metrics import Stats, count

log = logs.logger("ingest")

_WRONG_LAST_ID, _WRONG_LAST_SEQ = 10070, 10071
LOOK_AGAIN_S = 0.5
_CHAIN_CODES = frozenset({_WRONG_LAST_ID, _WRONG_LAST_SEQ, 10164})


class IngestError(HeadraceError):
    """Messages could not be published; which of them are stored must be read from the stream."""

    retry = True


class FencedError(IngestError):
    """Another publisher of the same source has written to the stream."""


class StreamFullError(IngestError):
    """The stream refuses messages for lack of room."""

    remedy = "The slot holds what is not delivered. Give the stream room (max_bytes), or shorten its retention."


@dataclass(slots=True)
class Outgoing:
    """A message to be stored."""

    subject: str
    msg_id: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Ingest:
    """One chain of messages, from where the stream's tail is now."""

    def __init__(
        self,
        client: Client,
        tail: StreamTail,
        stats: Stats,
        *,
        messages_max: int,
        bytes_max: int,
        ack_timeout_s: float,
    ) -> None:
        self._client = client
        self._tail = tail
        self._stats = stats
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._ack_timeout_s = ack_timeout_s
        self._inbox = client.new_inbox()
        self._pending: deque[Outgoing] = deque()
        self._pending_bytes = 0
        # Indices count messages of this chain from 0; all below `_acked` are stored.
        self._acked = 0
        self._broken_at: int | None = None
        self._resolved_to = 0
        self._failure: IngestError | None = None
        self._room = asyncio.Event()
        self._heard_at = time.monotonic()
        self._last_seq = 0
        self._stored_seq = 0
        self._head = True
        self._last_id = ""
        self._generation = 0

    @property
    def acked(self) -> int:
        """How many messages, counted from the first, are stored."""
        return self._acked

    @property
    def published(self) -> int:
        return self._acked + len(self._pending)

    @property
    def stored_seq(self) -> int:
        """The stream sequence of the last message of this chain that was stored; 0 before the first."""
        return self._stored_seq

    async def open(self, last_seq: int) -> None:
        """Begin the chain behind stream sequence `last_seq`, as read from the stream just now."""
        self._last_seq = last_seq
        self._subscription = await self._client.subscribe(f"{self._inbox}.*.*", cb=self._on_ack)
        await self._client.flush()

    async def close(self) -> None:
        if not self._client.is_closed:
            try:
                await self._subscription.unsubscribe()
            except NatsError as error:
                log.debug("unsubscribe_failed", reason=str(error))

    async def publish(self, message: Outgoing) -> None:
        """Queue a message; waits while the window is full."""
        size = len(message.payload)
        while self._pending and (
            len(self._pending) >= self._messages_max or self._pending_bytes + size > self._bytes_max
        ):
            await self._progress()
        self._raise_failure()
        self._pending.append(message)
        self._pending_bytes += size
        if self._broken_at is None:
            await self._send(self._acked + len(self._pending) - 1, message)

    async def drain(self) -> None:
        """Wait until everything published is stored."""
        while self._pending:
            await self._progress()
        self._raise_failure()

    async def settle(self) -> None:
        """Called when there is nothing to publish: repairs a broken chain, notices a missing acknowledgement."""
        self._raise_failure()
        if self._broken_at is not None:
            await self._rechain()
        elif self._pending and time.monotonic() - self._heard_at > self._ack_timeout_s:
            self._fail(self._late())
            self._raise_failure()

    def _late(self) -> IngestError:
        return IngestError(f"JetStream acknowledged nothing for {self._ack_timeout_s} s")

    def _fail(self, error: IngestError) -> None:
        self._failure = self._failure or error
        self._room.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _progress(self) -> None:
        """Wait for an acknowledgement, or repair the chain."""
        self._raise_failure()
        if self._broken_at is not None:
            await self._rechain()
            return
        await self._answer()

    async def _answer(self) -> None:
        """Wait for the next answer of the server, as long as there is reason to hope for one."""
        self._room.clear()
        deadline = time.monotonic() + self._ack_timeout_s
        while not self._room.is_set():
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._room.wait()
            except TimeoutError:
                if not self._client.is_connected:
                    self._fail(IngestError("the NATS connection was lost"))
                elif time.monotonic() >= deadline:
                    self._fail(self._late())
        self._raise_failure()

    async def _send(self, index: int, message: Outgoing) -> None:
        headers = {"Nats-Msg-Id": message.msg_id, **message.headers}
        if self._head:
            headers["Nats-Expected-Last-Sequence"] = str(self._last_seq)
            self._head = False
        else:
            headers["Nats-Expected-Last-Msg-Id"] = self._last_id
        if len(self._pending) == 1:
            self._heard_at = time.monotonic()
        self._last_id = message.msg_id
        if not self._client.is_connected:
            self._fail(IngestError("the NATS connection was lost"))
            self._raise_failure()
        failpoint("publisher.before_publish")
        try:
            reply = f"{self._inbox}.{self._generation}.{index}"
            await self._client.publish(message.subject, message.payload, reply=reply, headers=headers)
        except NatsError as error:
            self._fail(IngestError(f"a message could not be sent: {error}"))
            self._raise_failure()

    async def _on_ack(self, message: Msg) -> None:
        _, generation, index = message.subject.rsplit(".", 2)
        if int(generation) != self._generation:
            return
        self._heard_at = time.monotonic()
        status = (message.headers or {}).get("Status")
        answer = {} if status else orjson.loads(message.data)
        if status == "503":
            self._fail(IngestError("no stream takes these subjects: it is missing or has no leader"))
        elif "error" in answer:
            self._refused(int(index), answer["error"])
        else:
            self._stored(int(index), answer)
        self._room.set()

    def _stored(self, index: int, answer: dict[str, object]) -> None:
        if index != self._acked or self._broken_at is not None:
            self._fail(IngestError(f"message {index} was acknowledged where {self._acked} was due"))
            return
        if answer.get("duplicate"):
            # The duplicate window knows an id that the stream's tail no longer shows: it was stored, then removed.
            log.warning("duplicate_refused", msg_id=self._pending[0].msg_id)
            self._broken_at = index + 1
            self._resolved_to = index + 1
        else:
            self._last_seq = self._stored_seq = int(str(answer["seq"]))
        message = self._pending.popleft()
        self._pending_bytes -= len(message.payload)
        self._acked += 1
        count(self._stats, "cdc_events")
        count(self._stats, "published_bytes", len(message.payload))

    def _refused(self, index: int, error: dict[str, object]) -> None:
        if error.get("err_code") not in _CHAIN_CODES:
            text = str(error.get("description"))
            kind = StreamFullError if "maximum" in text or "insufficient" in text else IngestError
            self._fail(kind(f"JetStream refused a message: {text}"))
            return
        if self._broken_at is None:
            self._broken_at = index
        self._resolved_to = index + 1

    async def _rechain(self) -> None:
        """The chain broke at a message that was refused, so all behind it are: publish them again, behind the tail."""
        assert self._broken_at is not None
        await self._all_resolved()
        tail = await self._tail.after(self._last_seq)
        if tail.position is not None or tail.ids_after:
            raise FencedError("another publisher of this source is writing to the stream")
        self._generation += 1
        self._broken_at = None
        self._resolved_to = 0
        self._last_seq = tail.last_seq
        self._head = True
        for offset, message in enumerate(tuple(self._pending)):
            await self._send(self._acked + offset, message)

    async def _all_resolved(self) -> None:
        """Wait until every message that was sent has its answer."""
        while self._pending and self._resolved_to < self._acked + len(self._pending):
            await self._answer()
