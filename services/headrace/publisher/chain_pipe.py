"""Publishing into a stream: pipelined, acknowledged, in order, without holes, fenced.

Each message names its predecessor (`Nats-Expected-Last-Msg-Id`), and the first one the stream's
last sequence as read from the server. So JetStream itself refuses a message whose predecessor is
missing (a failed store, a full stream) and everything from a superseded publisher: nothing can be
stored out of order, twice or after a hole, independent of the duplicate window (docs/adr/0005).
Another source's message in between breaks the chain harmlessly: the unstored rest is published
again after it.

Never retries a message whose fate is unknown: a lost acknowledgement, a connection that was lost or
replaced (the server may have come back with an older store) and a lost tail are an `IngestError`,
and the publisher restarts from its resume point in the stream.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import orjson
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.jetstream.publishing.errors import (
    CHAIN_CODES,
    IngestError,
    MessageTooLargeError,
    refusal,
)
from headrace.jetstream.publishing.message import Message
from headrace.jetstream.publishing.pipe import HEADERS_BYTES_MAX, Pipe, Window, check_tail
from headrace.jetstream.publishing.stream_tail import Tail
from headrace.process.failpoint import failpoint

log = logs.logger("ingest")


class ChainPipe(Pipe):
    """Publishes one chain of messages, from the stream's current tail."""

    def __post_init__(self, window: Window) -> None:
        super().__post_init__(window)
        self._inbox = self._client.new_inbox()
        # Indexes count messages of this chain from 0: those below `_acked` are stored, those below
        # `_sent` are sent in the current generation, of which those below `_refused_to` are
        # answered.
        self._pending: deque[Message] = deque()
        self._pending_bytes = 0
        self._sent = 0
        self._refused_to = 0
        self._broken = False
        self._own_seq = 0
        self._own_id = ""
        self._head = True
        # The head is sent and not acknowledged.
        self._unproved = False
        self._last_id = ""
        self._generation = 0

    @property
    def published(self) -> int:
        return self._acked + len(self._pending)

    async def open(self, tail: Tail) -> None:
        """Start the chain after a tail that was just read from the stream."""
        self._begin_behind(tail)
        self._subscription = await self._client.subscribe(f"{self._inbox}.*.*", cb=self._on_ack)
        await self._client.flush()

    async def close(self) -> None:
        await self._unsubscribe()

    async def publish(self, message: Message) -> None:
        """Queue a message; waits while the window is full."""
        size = len(message.payload)
        self._check_size(message)
        # A message larger than the window is sent as the only one.
        while self._pending and (
            len(self._pending) >= self._messages_max or self._pending_bytes + size > self._bytes_max
        ):
            await self._progress()
        self._raise_failure()
        self._pending.append(message)
        self._pending_bytes += size
        # In a broken chain it would be refused; the repair sends it with the others.
        if not self._broken:
            await self._send(message)

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """`publish` for several messages in sequence."""
        for message in messages:
            await self.publish(message)

    async def drain(self) -> None:
        while self._pending:
            await self._progress()
        self._raise_failure()

    async def catch_up(self) -> None:
        """Called when there is nothing to publish: repairs a broken chain, detects losses."""
        self._check_connection()
        if self._broken:
            await self._rechain()
        elif self._pending:
            self._check_patience()

    def _check_size(self, message: Message) -> None:
        room = self._client.max_payload - len(message.payload)
        if room < HEADERS_BYTES_MAX and room < _headers_bytes(message, self._last_id):
            raise MessageTooLargeError(
                f"message {message.msg_id} of {len(message.payload)} bytes is over max_payload"
            )

    async def _progress(self) -> None:
        """Wait for an acknowledgement, or repair the chain."""
        self._raise_failure()
        if self._broken:
            await self._rechain()
        else:
            await self._answer()

    async def _send(self, message: Message) -> None:
        """Send the first unsent message, unless the chain breaks before it."""
        self._check_connection()
        if self._unproved and not self._head:
            # After a head that is skipped as a duplicate, the server may accept this one: the last
            # id that it knows may belong to a message that was removed.
            await self._all_stored()
            if self._broken:
                return
        headers = {self._id_header(message): message.msg_id, **message.headers}
        if self._head:
            headers["Nats-Expected-Last-Sequence"] = str(self._last_seq)
            self._head = False
            self._unproved = True
        else:
            headers["Nats-Expected-Last-Msg-Id"] = self._last_id
        # Nothing was in flight: patience begins with this message.
        if self._sent == self._acked:
            self._heard_at = time.monotonic()
        self._last_id = message.msg_id
        reply = f"{self._inbox}.{self._generation}.{self._sent}"
        self._sent += 1
        failpoint("publisher.before_publish")
        try:
            await self._client.publish(
                message.subject, message.payload, reply=reply, headers=headers
            )
            failpoint("publisher.after_publish")
        except NatsError as error:
            self._fail(IngestError(f"a message could not be sent: {error}"))
            self._raise_failure()

    async def _on_ack(self, message: Msg) -> None:
        _, generation, index = message.subject.rsplit(".", 2)
        # An answer to a chain that was given up: the same messages have been sent again.
        if int(generation) != self._generation:
            return
        self._heard_at = time.monotonic()
        status = (message.headers or {}).get("Status")
        answer = {} if status else orjson.loads(message.data)
        if status == "503":
            self._fail(
                IngestError("no stream takes these subjects: it is missing or has no leader")
            )
        elif "error" in answer:
            self._refused(int(index), answer["error"])
        else:
            self._stored(int(index), answer)
        self._room.set()

    def _stored(self, index: int, answer: dict[str, object]) -> None:
        if answer.get("duplicate"):
            # The id is in the server's duplicate window, but the message is not at its position: it
            # was removed from the stream, or another source's message has the id. If it is ours
            # after all, reading the tail shows it.
            self._refuse_duplicates((self._pending[index - self._acked],))
            self._broken = True
            self._refused_to = index + 1
            return
        if index != self._acked or self._broken:
            self._fail(IngestError(f"message {index} was acknowledged, expected {self._acked}"))
            return
        message = self._pending.popleft()
        self._pending_bytes -= len(message.payload)
        seq = int(str(answer["seq"]))
        self._last_seq = seq
        self._unproved = False
        self._own_seq = seq
        self._own_id = message.msg_id
        self._count((message,), seq)

    def _refused(self, index: int, error: dict[str, object]) -> None:
        code = error.get("err_code")
        if code in CHAIN_CODES:
            self._broken = True
            self._refused_to = index + 1
            return
        self._fail(refusal(error))

    async def _rechain(self) -> None:
        """The chain broke at a refused message, so all later ones are refused too: publish them
        again, after the tail.
        """
        await self._all_answered()
        tail = await self._tail.after(self._last_seq)
        await check_tail(
            self._tail, tail, self._created, self._last_seq, (self._own_seq, self._own_id)
        )
        self._generation += 1
        self._broken = False
        self._sent = self._acked
        self._refused_to = 0
        self._last_seq = tail.last_seq
        self._head = True
        self._unproved = False
        # Acknowledgements arrive meanwhile, and the chain may break again: the rest stays for the
        # next time.
        for message in tuple(self._pending):
            if self._broken:
                return
            await self._send(message)
            if message.msg_id in self._known:
                # Without an id on the server it can't be named as predecessor: the next one names
                # its sequence.
                await self._all_stored()
                self._head = True

    async def _all_stored(self) -> None:
        """Wait until every message that was sent is stored, or one is refused."""
        while self._acked < self._sent and not self._broken:
            await self._answer()

    async def _all_answered(self) -> None:
        """Wait until every message that was sent is answered."""
        while max(self._acked, self._refused_to) < self._sent:
            await self._answer()


def _headers_bytes(message: Message, last_id: str) -> int:
    """The maximum size of a message's headers, as NATS counts them."""
    fixed = len("NATS/1.0\r\nNats-Msg-Id: \r\nNats-Expected-Last-Sequence: \r\n\r\n") + 20
    given = sum(
        len(key.encode()) + len(value.encode()) + 4 for key, value in message.headers.items()
    )
    return fixed + given + len(message.msg_id) + len(last_id)
