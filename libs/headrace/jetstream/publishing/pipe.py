"""What all ways of publishing into a stream share: where they stand, the connection they began
with, how they fail.

Promises: what failed once goes on failing, since nobody knows what is stored; a connection that was
lost or replaced is noticed at the latest before the next message (the server may have come back
with an older store).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nats.aio.client import Client

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
from headrace.metrics.counting import Stats, count
from headrace.timing.waits import wait_for

log = logs.logger("ingest")

LOOK_AGAIN_S = 0.5
# More than the headers of any message take: only beyond it are they counted.
HEADERS_BYTES_MAX = 4096


# What one answer of the server acknowledged, in order: only its owner knows what the messages are.
OnStored = Callable[[Sequence[Message]], None]


def ignored(_: Sequence[Message]) -> None:
    """For an owner who does not want to hear of it."""


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be under way, and how long the server may take to acknowledge it."""

    messages_max: int
    bytes_max: int
    ack_timeout_s: float


class Pipe:
    """Messages one behind the other, from where the stream's tail is."""

    def __init__(
        self,
        client: Client,
        tail: StreamTail,
        stats: Stats,
        window: Window,
        on_stored: OnStored = ignored,
    ) -> None:
        self._client = client
        self._tail = tail
        self._stats = stats
        self._on_stored = on_stored
        self._messages_max = window.messages_max
        self._bytes_max = window.bytes_max
        self._ack_timeout_s = window.ack_timeout_s
        self._acked = 0
        self._stored_seq = 0
        # The stream's last sequence, as it was read or as an answer gave it.
        self._last_seq = 0
        self._created = ""
        self._reconnects = 0
        self._heard_at = time.monotonic()
        # Ids that the server's duplicate window knows though the messages are not in the stream:
        # they are stored without `Nats-Msg-Id`.
        self._known: set[str] = set()
        self._failure: IngestError | MessageTooLargeError | None = None
        self._room = asyncio.Event()

    @property
    def acked(self) -> int:
        """How many messages, counted from the first, are stored."""
        return self._acked

    @property
    def acked_at(self) -> float:
        """When the server answered last."""
        return self._heard_at

    @property
    def stored_seq(self) -> int:
        """The stream sequence of the last stored message that advances its source; 0 before the
        first.
        """
        return self._stored_seq

    def _begin_behind(self, tail: Tail) -> None:
        self._last_seq = tail.last_seq
        self._created = tail.created
        self._reconnects = self._client.stats["reconnects"]

    def _check_connection(self) -> None:
        """Raise if the connection is not the one of the start, or something failed already."""
        if not self._client.is_connected or self._client.stats["reconnects"] != self._reconnects:
            self._fail(IngestError("the NATS connection was lost"))
        self._raise_failure()

    def _check_patience(self) -> None:
        """Raise if what is under way should have been answered long ago."""
        if time.monotonic() - self._heard_at > self._ack_timeout_s:
            self._fail(self._late())
            self._raise_failure()

    def _late(self) -> IngestError:
        return IngestError(f"JetStream acknowledged nothing for {self._ack_timeout_s} s")

    def _fail(self, error: IngestError | MessageTooLargeError) -> None:
        self._failure = self._failure or error
        self._room.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _answer(self) -> None:
        """Wait for the next answer of the server, as long as there is reason to hope for one."""
        self._room.clear()
        deadline = time.monotonic() + self._ack_timeout_s
        while not self._room.is_set():
            self._check_connection()
            if not await wait_for(self._room, LOOK_AGAIN_S) and time.monotonic() >= deadline:
                self._fail(self._late())
        self._raise_failure()

    def _refuse_duplicates(self, messages: Sequence[Message]) -> None:
        """The server skipped these, by their ids: none of them counts as stored."""
        count(self._stats, "duplicates_refused", len(messages))
        log.warning("duplicates_refused", first=messages[0].msg_id, messages=len(messages))
        self._known.update([message.msg_id for message in messages])

    def _id_header(self, message: Message) -> str:
        if message.msg_id in self._known:
            return ID_HEADER
        return "Nats-Msg-Id"

    def _count(self, messages: Sequence[Message], last_seq: int) -> None:
        """These messages are stored, one behind the other, the last one there."""
        for behind, message in enumerate(reversed(messages)):
            if message.advances:
                self._stored_seq = last_seq - behind
                break
        count(self._stats, "published_bytes", sum([len(message.payload) for message in messages]))
        if self._known:
            self._known.difference_update([message.msg_id for message in messages])
        self._acked += len(messages)
        self._on_stored(messages)


async def check_tail(
    reader: StreamTail, tail: Tail, created: str, last_seq: int, own: tuple[int, str]
) -> None:
    """Raise unless one may go on behind this tail: what was stored is there, and nothing of another
    life.

    `last_seq` is the last sequence known to be stored, `own` sequence and id of the last message
    stored here.
    """
    if tail.created != created or tail.last_seq < last_seq:
        raise TailLostError("the stream's end is not what was acknowledged")
    if tail.position is not None or tail.ids_after:
        raise FencedError("another publisher of this source is writing to the stream")
    own_seq, own_id = own
    if own_seq and own_seq >= tail.first_seq and await reader.id_at(own_seq) not in (None, own_id):
        raise TailLostError(f"message {own_seq} of the stream is not the one that was acknowledged")
