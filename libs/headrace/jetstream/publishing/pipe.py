"""The common part of all ways to publish into a stream: position, connection, failure.

Promises: after a failure every call fails, because it is unknown what is stored; a connection that
was lost or replaced is detected before the next message at the latest (the server may have come
back with an older store).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.contract.events import ID_HEADER
from headrace.jetstream.publishing.errors import (
    FencedError,
    IngestError,
    MessageTooLargeError,
    TailLostError,
)
from headrace.jetstream.publishing.message import Message
from headrace.jetstream.publishing.stream_tail import StreamTail, Tail
from headrace.jetstream.publishing.wire import MSG_ID
from headrace.metrics.counters import Counters
from headrace.timing.waits import wait_for

log = logs.logger("ingest")

# A lost connection produces no answer: while waiting for one, the connection is checked at this
# interval.
LOOK_AGAIN_S = 0.5
# More than the headers of any message take: they are counted only above this size.
HEADERS_BYTES_MAX = 4096


# The messages that one answer acknowledged, in order: only the owner knows what they contain.
OnStored = Callable[[Sequence[Message]], None]


def ignored(_: Sequence[Message]) -> None:
    """For an owner that doesn't need the acknowledgements."""


@dataclass(frozen=True, slots=True)
class Window:
    """Limits on messages in flight, and how long the server may take to acknowledge them."""

    messages_max: int
    bytes_max: int
    ack_timeout_s: float


@dataclass(eq=False, repr=False)
class Pipe(ABC):
    """Messages in sequence, starting at the stream's tail."""

    _client: Client
    _tail: StreamTail
    _stats: Counters
    window: InitVar[Window]
    _on_stored: OnStored = ignored
    # The header of the messages' ids. The server remembers only those in its own.
    _header: str = MSG_ID

    def __post_init__(self, window: Window) -> None:
        self._messages_max = window.messages_max
        self._bytes_max = window.bytes_max
        self._ack_timeout_s = window.ack_timeout_s
        # The number of messages that are stored, of all that were handed over.
        self._acked = 0
        # Schema events and the like don't advance their source, so this may be less than
        # `_last_seq`.
        self._stored_seq = 0
        # The stream's last sequence, from a read or from an answer.
        self._last_seq = 0
        # When the stream was created: a recreated stream has the same name and may reach the same
        # sequences.
        self._created = ""
        # The client's number of reconnects at the start. Behind a reconnect may be another server,
        # with an older store: nothing known before it can be relied on.
        self._reconnects = 0
        # The time of the server's last answer, or of the first message since it owed one.
        self._heard_at = time.monotonic()
        # Ids that the server's duplicate window knows though their messages are not in the stream:
        # these messages are stored without `Nats-Msg-Id`.
        self._known: set[str] = set()
        # Until then the window may know more such ids.
        self._doubtful_until = 0.0
        # The first failure; it is permanent. The owner reads the stream's tail and starts another
        # pipe, since only the stream says what was stored (docs/adr/0005).
        self._failure: IngestError | MessageTooLargeError | None = None
        # Set by every answer, and by a failure.
        self._room = asyncio.Event()
        self._subscription: Subscription | None = None

    @property
    @abstractmethod
    def published(self) -> int:
        """How many messages were handed over."""

    @abstractmethod
    async def open(self, tail: Tail) -> None:
        """Start after a tail that was just read from the stream."""

    @abstractmethod
    async def close(self) -> None:
        """Hear no more answers: the stream shows how messages under way ended."""

    @abstractmethod
    async def publish(self, message: Message) -> None:
        """Hand a message over; waits while too many are in flight."""

    @abstractmethod
    async def publish_all(self, messages: Sequence[Message]) -> None:
        """`publish` for several messages in sequence."""

    @abstractmethod
    async def catch_up(self) -> None:
        """Called when nothing is at hand: sends the rest, repairs, notices what is missing."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until everything handed over is stored."""

    @property
    def acked(self) -> int:
        """The number of messages, counted from the first, that are stored."""
        return self._acked

    @property
    def acked_at(self) -> float:
        """The time of the server's last answer."""
        return self._heard_at

    @property
    def stored_seq(self) -> int:
        """The stream sequence of the last stored message that advances its source; 0 before the
        first.
        """
        return self._stored_seq

    @property
    def ids_in_doubt(self) -> bool:
        """Whether the server may know ids of messages that it lost, and would skip them."""
        return time.monotonic() < self._doubtful_until

    def _begin_behind(self, tail: Tail) -> None:
        if tail.ids_in_doubt:
            # The server forgets an id some time after its window.
            self._doubtful_until = time.monotonic() + 2 * tail.duplicate_window_s
        self._last_seq = tail.last_seq
        self._created = tail.created
        self._reconnects = self._client.stats["reconnects"]

    async def _unsubscribe(self) -> None:
        if self._subscription is not None and not self._client.is_closed:
            try:
                await self._subscription.unsubscribe()
            except NatsError as error:
                log.debug("unsubscribe_failed", reason=str(error))

    def _check_connection(self) -> None:
        """Raise if this isn't the connection of the start any more, or something has failed
        already.
        """
        if not self._client.is_connected or self._client.stats["reconnects"] != self._reconnects:
            self._fail(IngestError("the NATS connection was lost"))
        self._raise_failure()

    def _check_patience(self) -> None:
        """Raise if messages in flight should have been acknowledged long ago."""
        if time.monotonic() - self._heard_at > self._ack_timeout_s:
            self._fail(self._late())
            self._raise_failure()

    def _late(self) -> IngestError:
        return IngestError(f"JetStream acknowledged nothing for {self._ack_timeout_s} s")

    def _fail(self, error: IngestError | MessageTooLargeError) -> None:
        # The first one is the cause; later ones usually follow from it.
        self._failure = self._failure or error
        self._room.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _answer(self) -> None:
        """Wait for the server's next answer, as long as one can be expected."""
        self._room.clear()
        deadline = time.monotonic() + self._ack_timeout_s
        while not self._room.is_set():
            self._check_connection()
            if not await wait_for(self._room, LOOK_AGAIN_S) and time.monotonic() >= deadline:
                self._fail(self._late())
        self._raise_failure()

    def _refuse_duplicates(self, messages: Sequence[Message]) -> None:
        """The server skipped these by their ids: none of them counts as stored."""
        self._stats.count("duplicates_refused", len(messages))
        log.warning("duplicates_refused", first=messages[0].msg_id, messages=len(messages))
        self._known.update([message.msg_id for message in messages])

    def _id_header(self, message: Message) -> str:
        if message.msg_id in self._known:
            return ID_HEADER
        return self._header

    def _count(self, messages: Sequence[Message], last_seq: int) -> None:
        """These messages are stored in sequence, the last one at this sequence."""
        # A run of messages has consecutive sequences, so each one's sequence follows from the last.
        for behind, message in enumerate(reversed(messages)):
            if message.advances:
                self._stored_seq = last_seq - behind
                break
        self._stats.count("published_bytes", sum([len(message.payload) for message in messages]))
        if self._known:
            self._known.difference_update([message.msg_id for message in messages])
        self._acked += len(messages)
        self._on_stored(messages)


async def check_tail(
    reader: StreamTail, tail: Tail, created: str, last_seq: int, own: tuple[int, str]
) -> None:
    """Raise unless publishing may continue after this tail: it contains all that was stored, and
    nothing of another publisher.

    `last_seq` is the last sequence known to be stored, `own` sequence and id of the last message
    stored by this pipe.
    """
    # An older copy of the stream, or another stream: continuing would leave a hole where the
    # acknowledged messages were.
    if tail.created != created or tail.last_seq < last_seq:
        raise TailLostError("the stream's end is not what was acknowledged")
    # A message of this source that this pipe didn't write: another publisher has taken over and is
    # ahead.
    if tail.position is not None or tail.ids_after:
        raise FencedError("another publisher of this source is writing to the stream")
    own_seq, own_id = own
    # An older copy that was written to again may be long enough. The content of one known message
    # gives it away; a message that has aged out proves nothing.
    if own_seq and own_seq >= tail.first_seq and await reader.id_at(own_seq) not in (None, own_id):
        raise TailLostError(f"message {own_seq} of the stream is not the one that was acknowledged")
