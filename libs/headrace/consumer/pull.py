"""Reads a stream from a sequence on, with a server-side consumer that is recreated after any doubt.

Promises: messages in stream order, each once, and every message that the server delivered: if one
was counted and didn't arrive (a broken connection, a server that died, a deleted consumer, missing
heartbeats), it is requested again. If the stream has been replaced by another one, or by an older
copy, that is a `RetentionGapError`. Requested and unread messages are bounded in number and bytes.
Never decodes a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from dataclasses import dataclass, field

import orjson
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamInfo
from nats.js.errors import NotFoundError

from headrace import log as logs
from headrace.errors import DecodeError, HeadraceError
from headrace.jetstream import bulk
from headrace.jetstream.pull_budget import Room, place, status
from headrace.timing.backoff import Backoff
from headrace.timing.waits import wait_for

log = logs.logger("consumer")

# Requested and unread messages together: what bounds the memory of a reader that is slower than the
# server.
MESSAGES_MAX = 4000
BYTES_MAX = 4 << 20
# The messages read at a time.
READ_MESSAGES = 500
READ_BYTES = 1 << 20
EXPIRES_S = 30.0
HEARTBEAT_S = 5.0
# Two heartbeats are missing: one may be late on a busy machine.
SILENCE_S = 2.5 * HEARTBEAT_S
LOOK_S = 1.0
RETRY_S = 0.1
RETRY_S_MAX = 2.0
# A server that is unavailable for longer is reported to the caller instead of being waited for.
TROUBLE_S = 10.0
# The server deletes an ephemeral consumer that nobody asks for this long.
INACTIVE_S = 60.0
ACK_WAIT_S = 300.0
# More messages than any transaction that is read whole.
ACK_PENDING_MAX = 250_000
# The bytes that the server counts beyond the payload: subject, reply subject and headers.
_OVERHEAD_BYTES = 64 * 1024
# The consumer's metadata names the reader that created it, by which a takeover is recognized.
_READER = "headrace_reader"


class StreamMissingError(HeadraceError):
    """The change stream doesn't exist."""

    remedy = (
        "Start the suite (`headrace up`), or `headrace init`; HEADRACE_STREAM names the stream."
    )


class RetentionGapError(HeadraceError):
    """The stream no longer contains messages that this consumer has not seen."""

    remedy = "Bootstrap the tables again from a snapshot, then follow from its LSN."

    def __init__(
        self, first_lost: int, last_lost: int, *, rewritten: bool = False, damaged: bool = False
    ) -> None:
        if rewritten:
            super().__init__(
                "the stream was replaced by another one, or by an older copy, from sequence "
                f"{first_lost} on"
            )
        elif damaged:
            super().__init__(
                f"stream sequences {first_lost} to {last_lost} are missing from the middle of the "
                "stream: its store is damaged, or someone deleted them"
            )
        else:
            super().__init__(
                f"stream sequences {first_lost} to {last_lost} were discarded before they were read"
            )
        # The first stream sequence that is lost.
        self.first_lost = first_lost
        # The last stream sequence that is lost.
        self.last_lost = last_lost
        # Whether messages that were read differ from the stream's: then positions tell new events,
        # and sequences don't.
        self.rewritten = rewritten
        # Whether they are missing from the middle, where retention removes nothing.
        self.damaged = damaged


class ReaderTakenOverError(HeadraceError):
    """Another reader has opened this durable consumer."""

    remedy = (
        "Only one reader at a time can follow under a name: stop one of them, or use another name."
    )


# A message of the stream: its sequence, its subject, its payload, its header (including NATS/1.0).
Delivered = tuple[int, bytes, bytes, bytes]


@dataclass(slots=True)
class Pull:
    """An open reader; `start_seq` is the first message wanted, None for the first available one."""

    client: Client
    stream: str
    filters: tuple[str, ...]
    durable: str | None
    start_seq: int | None
    messages_max: int = MESSAGES_MAX
    bytes_max: int = BYTES_MAX
    _js: JetStreamContext = field(init=False)
    _room: Room = field(init=False)
    _name: str = ""
    _inbox: str = ""
    _listening: bulk.Listening | None = None
    # When the stream was created, to recognize another stream of the same name.
    _created: object = None
    _held: deque[Delivered] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    # The last message that arrived, and when it was stored; a message that is done may be
    # acknowledged.
    _received: int = 0
    _stored: bytes = b""
    _done: int = 0
    # No filter matches messages between the last one and this sequence.
    _passed: int = 0
    # Of the current consumer: its number of delivered messages, and the inbox of acknowledgements.
    _given: int = 0
    _replies: deque[tuple[int, bytes]] = field(default_factory=deque)
    # Why the current consumer is no longer trusted, None while it is; whether the stream was found
    # to contain another message where the last one was read.
    _doubt: str | None = None
    _rewritten: bool = False
    # The client's number of reconnects when the consumer was created.
    _reconnects: int = 0
    _heard_at: float = 0.0
    # Since when creating a new consumer has failed, and when to try again.
    _trouble_since: float | None = None
    _retry_at: float = 0.0
    _backoff: Backoff = field(default_factory=lambda: Backoff(RETRY_S, RETRY_S_MAX))

    def __post_init__(self) -> None:
        self._js = self.client.jetstream()
        # A request must have room for the largest possible message.
        size = max(self.bytes_max, 2 * (self.client.max_payload + _OVERHEAD_BYTES))
        self._room = Room(self.messages_max, size)
        if self.start_seq is not None:
            self._received = self.start_seq - 1
            self._done = self._received

    @property
    def has_more(self) -> bool:
        """Whether an unread message has arrived."""
        return bool(self._held)

    @property
    def in_doubt(self) -> bool:
        """Whether no message will arrive before there is a new consumer."""
        return self._doubt is not None

    async def open(self, created: object) -> None:
        """Create the consumer and request its first messages; `created` identifies the stream."""
        self._created = created
        await self._make()

    async def close(self) -> None:
        """Close the consumer; a durable one stays, for the next time."""
        await self._leave()
        if self.durable is None and self.client.is_connected:
            await self._drop()

    async def read(self, wait_s: float) -> list[Delivered]:
        """Some of the messages that have arrived, in order; empty if none arrives in time."""
        if not self._held:
            await self._wait(wait_s)
        held = self._held
        size = 0
        found: list[Delivered] = []
        # In parts, so that the next request is sent while the first messages are processed.
        while held and len(found) < READ_MESSAGES and size < READ_BYTES:
            found.append(held.popleft())
            size += len(found[-1][2])
        self._room.read(len(found), size)
        try:
            if not self.in_doubt:
                await self._ask()
        except BaseException:
            # A caller that saw a failure must see it again at its next call.
            held.extendleft(reversed(found))
            self._room.hold(len(found), size)
            raise
        return found

    async def done(self, stream_seq: int) -> None:
        """All messages up to this one may be acknowledged."""
        self._done = stream_seq
        reply = b""
        # With AckPolicy.ALL, one acknowledgement covers all earlier messages.
        while self._replies and self._replies[0][0] <= stream_seq:
            reply = self._replies.popleft()[1]
        if reply:
            await self.client.publish(reply.decode(), b"+ACK")

    def passed(self, stream_seq: int) -> None:
        """All wanted messages up to here have arrived: if the rest is discarded, nothing is
        missing.
        """
        self._passed = max(self._passed, stream_seq)

    async def outstanding(self) -> int | None:
        """The number of unread messages in the stream; None while some are on their way."""
        if self.in_doubt:
            return None
        try:
            info = await self._js.consumer_info(self.stream, self._name)
        except NotFoundError:
            return None
        # Only if everything delivered has arrived and was read does `num_pending` count what is
        # left.
        given = info.delivered.consumer_seq if info.delivered else 0
        if given == self._given and not self._held:
            return int(info.num_pending or 0)
        return None

    async def _wait(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while not self._held:
            await self._attend()
            left = min(deadline - time.monotonic(), LOOK_S)
            if left <= 0 or self._held:
                return
            self._news.clear()
            await wait_for(self._news, left)
            # Heartbeats come only while a request is open.
            if self._room.asked and time.monotonic() - self._heard_at > SILENCE_S:
                self._suspect("nothing was received, not even a heartbeat")

    def _suspect(self, why: str) -> None:
        """From here on, messages are ignored until there is a new consumer."""
        self._doubt = self._doubt or why
        self._news.set()

    def _check_connection(self) -> None:
        """On a new connection, messages of the old consumer may be from an older store with the
        same counts.
        """
        if self._doubt is None and self.client.stats["reconnects"] != self._reconnects:
            self._suspect("the connection was lost")

    async def _attend(self) -> None:
        """Repair what can be repaired now."""
        self._check_connection()
        # Raised here and not where it was found: the listener runs inside nats-py's parser, and
        # must not raise.
        if self._rewritten:
            raise RetentionGapError(self._received, self._received, rewritten=True)
        if self._doubt is None:
            await self._ask()
        elif self.client.is_connected and time.monotonic() >= self._retry_at:
            await self._again(self._doubt)

    async def _again(self, why: str) -> None:
        """A new consumer, from where the last one was."""
        log.info("consumer_again", stream=self.stream, reason=why, stream_seq=self._received)
        try:
            # The order matters: stop listening, so that nothing of the old consumer arrives any
            # more; check the stream while `_received` is final; delete the old consumer, because a
            # durable name must be free.
            await self._leave()
            await self._check_stream()
            await self._give_up()
            await self._make()
        except (NatsError, OSError):
            now = time.monotonic()
            self._trouble_since = self._trouble_since or now
            if now - self._trouble_since > TROUBLE_S:
                raise
            self._retry_at = now + self._backoff.pause_s()
        else:
            self._trouble_since = None
            self._retry_at = 0.0
            self._backoff.reset()

    async def _info(self) -> StreamInfo:
        try:
            return await self._js.stream_info(self.stream)
        except NotFoundError as error:
            raise StreamMissingError(f"stream {self.stream} does not exist") from error

    async def _check_stream(self) -> None:
        """Messages that were read must match the stream's; unread ones must still exist."""
        info = await self._info()
        if info.created != self._created or (self._stored and info.state.last_seq < self._received):
            raise RetentionGapError(
                min(self._received, info.state.last_seq) + 1, self._received, rewritten=True
            )
        # Messages that no filter matches may be discarded without a loss.
        at = max(self._received, self._passed)
        if (self.start_seq is not None or self._stored) and info.state.first_seq > at + 1:
            raise RetentionGapError(at + 1, info.state.first_seq - 1)

    async def _give_up(self) -> None:
        """Delete the old consumer, unless another reader has created one under this name since."""
        if self.durable is None:
            await self._drop()
            return
        try:
            info = await self._js.consumer_info(self.stream, self._name)
        except NotFoundError:
            return
        # Another reader follows under this name now. Taking it back would make both take turns
        # forever.
        if (info.config.metadata or {}).get(_READER) != self._inbox:
            raise ReaderTakenOverError(
                f"{self._name} of stream {self.stream} is another reader's now"
            )
        with contextlib.suppress(NotFoundError):
            await self._js.delete_consumer(self.stream, self._name)

    async def _drop(self) -> None:
        """Delete an ephemeral consumer, without waiting for the answer: the server would delete it
        after a minute anyway.
        """
        with contextlib.suppress(NatsError, OSError):
            subject = f"$JS.API.CONSUMER.DELETE.{self.stream}.{self._name}"
            await self.client.publish(subject, reply=self._inbox)

    async def _make(self) -> None:
        """Create a consumer and its own inbox: messages of the one before are lost in its old
        inbox.

        It starts with the last message that arrived, to check that the stream still contains it, or
        earlier with a message that isn't done yet, so that it can be acknowledged.
        """
        self._inbox = self.client.new_inbox()
        self._name = self.durable or secrets.token_hex(11)
        # Noted first: a reconnect during the following steps must cast doubt on the new consumer.
        self._reconnects = self.client.stats["reconnects"]
        self._listening = await bulk.listen(self.client, self._inbox, self._hear)
        await self._js.add_consumer(self.stream, config=self._config())
        # The new consumer counts from one.
        self._given = 0
        self._doubt = None
        self._replies.clear()
        self._room.forget()
        await self._ask()

    def _config(self) -> ConsumerConfig:
        config = ConsumerConfig(
            name=self._name,
            durable_name=self.durable,
            filter_subjects=list(self.filters) or None,
            deliver_policy=DeliverPolicy.ALL,
            metadata={_READER: self._inbox},
        )
        if self.durable is None:
            config.ack_policy = AckPolicy.NONE
            config.inactive_threshold = INACTIVE_S
        else:
            # One acknowledgement covers all earlier messages, so progress costs little.
            config.ack_policy = AckPolicy.ALL
            config.ack_wait = ACK_WAIT_S
            config.max_ack_pending = ACK_PENDING_MAX
        if start := self._start():
            config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = start
        return config

    def _start(self) -> int:
        """The first sequence to deliver; 0 for the first available one."""
        if not self._stored:
            return self.start_seq or 0
        if self.durable:
            # Unacknowledged messages must be delivered again, since only this consumer can
            # acknowledge them.
            return min(self._done + 1, self._received)
        return self._received

    async def _leave(self) -> None:
        listening = self._listening
        self._listening = None
        if listening is not None:
            with contextlib.suppress(NatsError, OSError):
                await listening.end()

    async def _ask(self) -> None:
        """Keep as much requested as the limits allow."""
        if (room := self._room.ask()) is None:
            return
        messages, size = room
        wanted = {
            "batch": messages,
            "expires": int(EXPIRES_S * 1e9),
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
        }
        self._heard_at = time.monotonic()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self._name}"
        body = orjson.dumps({**wanted, "max_bytes": size} if size else wanted)
        await self.client.publish(subject, body, reply=self._inbox)

    def _hear(self, arrivals: list[bulk.Arrival]) -> None:
        """Take the messages of one socket read."""
        self._check_connection()
        self._heard_at = time.monotonic()
        before = len(self._held)
        came = self._given
        size = 0
        try:
            for subject, reply, header, payload in arrivals:
                # The rest belongs to a consumer in which a message is missing.
                if self._doubt is not None:
                    break
                if reply:
                    # As the server counts them against the request.
                    size += len(payload) + len(header) + len(subject) + len(reply)
                    self._take(subject, reply, payload, header)
                else:
                    # A status ends its request: the messages before it must be subtracted first.
                    self._room.arrived(self._given - came, size)
                    came = self._given
                    size = 0
                    self._answered(header)
        except DecodeError as error:
            self._suspect(str(error))
        self._room.arrived(self._given - came, size)
        if len(self._held) > before:
            self._news.set()

    def _take(self, subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
        stream_seq, number, stored = place(reply)
        # The consumer numbers its deliveries without gaps, even with filters, so a jump is a lost
        # message.
        if number != self._given + 1:
            self._suspect(f"message {number} of the consumer arrived, expected {self._given + 1}")
            return
        self._given = number
        if self.durable is not None:
            self._replies.append((stream_seq, reply))
        if stream_seq > self._received:
            self._received = stream_seq
            self._stored = stored
            self._held.append((stream_seq, subject, payload, header))
            self._room.hold(1, len(payload))
        elif stream_seq == self._received and stored != self._stored != b"":
            # Requested to check that it still exists; earlier ones are delivered again to be
            # acknowledged.
            self._rewritten = True
            self._suspect("the stream contains another message at the position of the last one")

    def _answered(self, header: bytes) -> None:
        """A status message of the server about a request."""
        said = status(header)
        if said is not None and said.is_heartbeat:
            # The last message before a quiet period leaves no later number behind: only a heartbeat
            # reveals its loss.
            if said.given is not None and said.given > self._given:
                self._suspect(
                    f"the consumer has delivered {said.given} messages, and {self._given} arrived"
                )
        elif said is not None and said.pending is not None and said.ends_request:
            self._room.ended(*said.pending, too_small=said.is_too_small)
            # Room for another request.
            self._news.set()
        else:
            self._suspect(f"the server answered {said}")
            # Deleted by another reader that opens the same name: don't touch the consumer that it
            # creates.
            self._retry_at = time.monotonic() + (RETRY_S_MAX if self.durable else 0)
