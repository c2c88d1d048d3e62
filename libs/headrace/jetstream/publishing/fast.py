"""Publishing by JetStream's fast ingest: one acknowledgement for many messages.

ADR-50 of NATS, servers from 2.14. A batch is an ordered sequence of messages that the server knows
by an id. The reply subject says what a message is to its batch:
`{inbox}.{batch}.{flow}.fail.{number}.{operation}.$FI`. The server answers every `flow` messages,
and once more when the batch is ended. In the gap mode `fail`, a lost or refused message ends its
batch, and all messages after it are refused.

Promises the same as `ChainPipe`: in order, without holes or duplicates, fenced, independent of the
duplicate window. Three rules ensure this (docs/adr/0010):

- every message names the stream's last sequence that must precede it, the first one's read from
  the server. A batch alone is not enough: the server checks for a duplicate before it checks the
  expected sequence, so a first message that it has seen would open a batch unfenced, and a failed
  write does not end a batch;
- a batch starts only after the final answer to the one before, so that its expected sequence is
  known and not guessed;
- a batch's id is never reused.

Messages are sent many at a time, at the latest when the caller signals with `catch_up` that it has
no more ready. A few of them form their own batch, acknowledged in one round trip; more of them leave
the batch open until no more arrive.

Never retries a message whose fate is unknown: that is an `IngestError`, as in `ChainPipe`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Sequence

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from headrace import log as logs
from headrace.contract.events import ID_HEADER
from headrace.errors import HeadraceError, describe
from headrace.jetstream.publishing import wire
from headrace.jetstream.publishing.errors import (
    CHAIN_CODES,
    IngestError,
    MessageTooLargeError,
    refusal,
)
from headrace.jetstream.publishing.message import Message
from headrace.jetstream.publishing.pipe import (
    HEADERS_BYTES_MAX,
    OnStored,
    Pipe,
    Window,
    check_tail,
    ignored,
)
from headrace.jetstream.publishing.stream_tail import StreamTail, Tail
from headrace.jetstream.publishing.turns import Turns
from headrace.metrics.counting import Stats, count
from headrace.process.failpoint import failpoint

log = logs.logger("ingest")

_START = 0
_APPEND = 1
_END = 2
_END_BARE = 3
_UNKNOWN_BATCH = 10208
# The server never acknowledges less often.
_FLOW_MAX = 500
_HANDED_OVER_AT_ONCE = 128
# A batch of at most this many is ended with its last message; a larger one stays open for more.
_SMALL_BATCH = 256


async def offers_fast_ingest(js: JetStreamContext, client: Client, stream: str) -> bool:
    """Whether this server and this stream support it."""
    version = client.connected_server_version
    if (version.major, version.minor) < (2, 14):
        return False
    return bool((await js.stream_info(stream)).config.allow_batched)


class FastIngestUnsupportedError(HeadraceError):
    """The server or the stream doesn't support fast ingest, and HEADRACE_INGEST requires it."""

    remedy = (
        "Use nats-server 2.14 or newer with allow_batched on the stream, or HEADRACE_INGEST=auto."
    )


class FastPipe(Pipe):
    """Publishes messages one after the other, from the stream's current tail."""

    def __init__(
        self,
        client: Client,
        tail: StreamTail,
        stats: Stats,
        window: Window,
        turns: Turns | None = None,
        on_stored: OnStored = ignored,
    ) -> None:
        super().__init__(client, tail, stats, window, on_stored)
        self._turns = turns
        self._payload_bytes_max = client.max_payload - HEADERS_BYTES_MAX
        self._flow = max(1, min(_FLOW_MAX, window.messages_max // 4))
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._life = secrets.token_hex(8)
        self._unsent: list[Message] = []
        self._sent: deque[Message] = deque()
        self._pending_bytes = 0
        self._own_seq = 0
        self._own_id = ""
        # The batch: its first message is stored behind `_base`; `_number` of its messages are sent,
        # `_kept` stored.
        self._batches = 0
        self._batch = ""
        self._own_subject = ""
        self._open = False
        self._ending = False
        self._base = 0
        self._number = 0
        self._kept = 0
        # Refused for its position, and whether the server has said what it stored of the batch.
        self._broken = False
        self._over = False
        # Messages of the batch that the server accepted; whether some of them don't show up in the
        # stream.
        self._taken = 0
        self._unproved = False
        self._proving: asyncio.Task[None] | None = None
        self._caught_up_at = 0
        # Until then ids are kept from the server's duplicate window.
        self._doubtful_until = 0.0

    @property
    def published(self) -> int:
        """The number of messages handed over."""
        return self._acked + self._pending

    @property
    def _pending(self) -> int:
        return len(self._sent) + len(self._unsent)

    async def open(self, tail: Tail) -> None:
        """Start after a tail that was just read from the stream."""
        self._begin_behind(tail)
        if tail.ids_in_doubt:
            # The server forgets an id some time after its window.
            self._doubtful_until = time.monotonic() + 2 * tail.duplicate_window_s
        self._subscription = await self._client.subscribe(f"{self._inbox}.>", cb=self._on_answer)
        if self._turns is not None:
            await self._turns.open(self._is_writing)
        await self._client.flush()

    def _id_header(self, message: Message) -> str:
        if time.monotonic() < self._doubtful_until:
            return ID_HEADER
        return super()._id_header(message)

    def _is_writing(self) -> bool:
        return (self._open or bool(self._unsent)) and not self._broken

    async def close(self) -> None:
        if self._proving is not None:
            self._proving.cancel()
            await asyncio.wait({self._proving})
        if self._turns is not None:
            await self._turns.close()
        if self._subscription is not None and not self._client.is_closed:
            try:
                await self._subscription.unsubscribe()
            except NatsError as error:
                log.debug("unsubscribe_failed", reason=str(error))

    async def publish(self, message: Message) -> None:
        """Take a message; waits while too many are in flight."""
        size = len(message.payload)
        unsent = self._unsent
        if (
            size > self._payload_bytes_max
            or self._failure is not None
            or self._pending_bytes + size > self._bytes_max
            or len(self._sent) + len(unsent) >= self._messages_max
        ):
            await self._await_room(message)
            unsent = self._unsent
        unsent.append(message)
        self._pending_bytes += size
        await self._send_soon()

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """`publish` for several messages: all together if nothing prevents it."""
        for at in range(0, len(messages), _HANDED_OVER_AT_ONCE):
            part = messages[at : at + _HANDED_OVER_AT_ONCE]
            sizes = [len(message.payload) for message in part]
            size = sum(sizes)
            if (
                self._failure is not None
                or self._pending_bytes + size > self._bytes_max
                or len(self._sent) + len(self._unsent) + len(part) > self._messages_max
                or max(sizes) > self._payload_bytes_max
            ):
                for message in part:
                    await self.publish(message)
                continue
            self._unsent += part
            self._pending_bytes += size
            await self._send_soon()

    async def _send_soon(self) -> None:
        if len(self._unsent) >= _HANDED_OVER_AT_ONCE and not self._ending and not self._broken:
            await self._send(end=False)
            # Answers arrive only when the event loop runs.
            await asyncio.sleep(0)

    async def _await_room(self, message: Message) -> None:
        size = len(message.payload)
        if size > self._payload_bytes_max:
            raise MessageTooLargeError(
                f"message {message.msg_id} of {size} bytes is over max_payload"
            )
        while self._pending and (
            self._pending >= self._messages_max or self._pending_bytes + size > self._bytes_max
        ):
            await self._progress()
        self._raise_failure()

    async def drain(self) -> None:
        while self._pending:
            await self._send(end=True)
            await self._progress()
        self._raise_failure()

    async def catch_up(self) -> None:
        """Called when there is nothing to publish: sends the rest, repairs, detects losses."""
        self._check_connection()
        if self._broken and self._over:
            await self._begin_again()
        elif self._sent and time.monotonic() - self._heard_at > self._ack_timeout_s:
            self._fail(self._late())
            self._raise_failure()
        idle = self.published == self._caught_up_at
        self._caught_up_at = self.published
        small = not self._open and len(self._unsent) <= _SMALL_BATCH
        await self._send(end=idle or small or self._unproved)

    async def _progress(self) -> None:
        """Wait for an answer, or repair."""
        self._raise_failure()
        if self._broken and self._over:
            await self._begin_again()
            return
        # With so few messages the server says nothing until the batch is ended.
        await self._send(end=self._pending < 2 * self._flow or self._unproved)
        # While another source writes, nothing was sent, so no answer will come.
        if self._pending and not (self._broken and self._over):
            await self._answer()

    async def _send(self, *, end: bool) -> None:
        """Send the unsent messages, unless a batch is ending; with `end`, end the batch too."""
        if self._turns is not None and not self._ending and not self._broken:
            end = self._keep_to_turns(self._turns) or end
        if self._ending or self._broken or not (self._unsent or (end and self._open)):
            return
        self._check_connection()
        commands = self._commands(end=end)
        failpoint("publisher.before_publish")
        try:
            await wire.hand_over(self._client, commands)
            failpoint("publisher.after_publish")
        except NatsError as error:
            self._fail(IngestError(f"messages could not be sent: {error}"))
            self._raise_failure()

    def _keep_to_turns(self, turns: Turns) -> bool:
        """Start nothing while another source writes; whether the open batch must end for a waiting
        source.
        """
        if not self._open:
            if self._unsent and turns.others_write:
                self._broken = True
                self._over = True
            return False
        return turns.is_over

    def _commands(self, *, end: bool) -> list[bytes]:
        """The bytes of all unsent messages, which count as sent afterwards; nothing here may wait."""
        if not self._sent:
            self._heard_at = time.monotonic()
        if not self._open:
            self._open = True
            self._number = 0
            self._kept = 0
            self._base = self._last_seq
            self._taken = 0
            self._unproved = False
            self._batches += 1
            self._batch = f"{self._life}-{self._batches}"
        prefix = f"{self._inbox}.{self._batch}.{self._flow}.fail"
        number = self._number
        base = self._base
        commands = []
        last = len(self._unsent) - 1
        # A skipped duplicate goes unnoticed if another source's message took its place.
        doubt = self._known or time.monotonic() < self._doubtful_until
        for index, message in enumerate(self._unsent):
            if end and index == last:
                operation = _END
            else:
                operation = _APPEND if number else _START
            reply = f"{prefix}.{number + 1}.{operation}.$FI"
            commands.append(
                wire.command(
                    message,
                    reply,
                    base + number,
                    self._id_header(message) if doubt else wire.MSG_ID,
                )
            )
            number += 1
        if not self._unsent:
            commands.append(wire.bare(self._own_subject, f"{prefix}.{number + 1}.{_END_BARE}.$FI"))
        else:
            self._own_subject = self._unsent[-1].subject
        self._sent.extend(self._unsent)
        self._unsent.clear()
        self._number = number
        self._ending = end
        return commands

    async def _on_answer(self, message: Msg) -> None:
        _, batch, _, _, number, _, _ = message.subject.rsplit(".", 6)
        if batch != self._batch or not self._open:
            return
        self._heard_at = time.monotonic()
        if (message.headers or {}).get("Status") == "503":
            self._fail(
                IngestError("no stream takes these subjects: it is missing or has no leader")
            )
            return
        answer = orjson.loads(message.data)
        kind = answer.get("type")
        if kind == "ack":
            self._taken = max(self._taken, int(answer["seq"]))
            if self._proving is None or self._proving.done():
                self._proving = asyncio.create_task(self._prove(), name="flow")
                self._proving.add_done_callback(self._proved)
            if self._turns is not None:
                await self._turns.keep()
        elif kind == "gap":
            self._fail(IngestError(f"JetStream lacks message {answer.get('last_seq')} of a batch"))
        elif "error" in answer:
            self._refused(answer["error"], first=number == "1", final=kind is None)
        else:
            await self._ended(answer)
        self._room.set()

    async def _prove(self) -> None:
        """Record what the server has accepted of the batch, as far as the stream shows it.

        The server stored the messages, or skipped them as duplicates. A skipped message breaks the
        batch at the next one that isn't skipped, so the last one proves all. While it is read, more
        messages are accepted; then the last of those is read. One read per answer would slow down
        sending.
        """
        looked = ("", 0)
        while self._taken > self._kept and (place := (self._batch, self._taken)) != looked:
            looked = place
            index = self._taken - self._kept - 1
            if index >= len(self._sent):
                return
            wanted = self._sent[index].msg_id
            there = None
            try:
                there = await self._tail.id_at(self._base + self._taken)
            except NatsError as error:
                log.debug("flow_not_checked", reason=str(error))
            batch, number = looked
            if batch != self._batch or not self._open or self._over or number <= self._kept:
                continue
            if there == wanted:
                self._keep(number)
            else:
                # Only the batch's end tells more.
                self._unproved = True
            self._room.set()

    def _proved(self, task: asyncio.Task[None]) -> None:
        """Fail with what ended the task: nobody awaits it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(IngestError(f"the stream could not be read: {describe(error)}"))

    def _keep(self, up_to: int) -> None:
        """The batch's messages up to this number are stored."""
        new = up_to - self._kept
        if new < 0 or new > len(self._sent):
            self._fail(
                IngestError(f"message {up_to} of a batch was acknowledged, of {self._number} sent")
            )
            return
        take = self._sent.popleft
        kept = [take() for _ in range(new)]
        if kept:
            self._own_seq = self._base + up_to
            self._own_id = kept[-1].msg_id
        self._kept = up_to
        self._pending_bytes -= sum([len(message.payload) for message in kept])
        self._count(kept, self._base + up_to)

    def _refused(self, error: dict[str, object], *, first: bool, final: bool) -> None:
        code = error.get("err_code")
        if code in CHAIN_CODES:
            if not self._broken:
                count(self._stats, "batches_broken")
            self._broken = True
            # If the first message was refused, nothing was stored; else the server says how much
            # was.
            self._over = self._over or (first and final)
        elif code == _UNKNOWN_BATCH and self._broken:
            return
        elif code == _UNKNOWN_BATCH:
            self._fail(IngestError("JetStream lost a batch that was not ended"))
        else:
            self._fail(refusal(error))

    async def _ended(self, answer: dict[str, object]) -> None:
        """The final answer to a batch: how much of it is stored, and where its last message is."""
        seq = int(str(answer["seq"]))
        taken = int(str(answer.get("count", 1)))
        # It counts what it skipped as a duplicate; each message is stored behind the one before, or
        # not at all.
        if answer.get("duplicate"):
            kept = 0
        else:
            kept = max(0, min(taken, seq - self._base))
        self._keep(kept)
        if kept < taken and self._failure is None:
            self._refuse_duplicates([self._sent[index] for index in range(taken - kept)])
            self._broken = True
        self._last_seq = self._base + kept
        if self._broken:
            self._over = True
            return
        if not self._ending or kept != self._number:
            self._fail(
                IngestError(f"JetStream ended a batch after {kept} of {self._number} messages")
            )
            return
        self._open = False
        self._ending = False
        if self._turns is not None and self._turns.pass_on(more=bool(self._unsent)):
            # As after a refusal: what is left goes behind what the other writes.
            self._broken = bool(self._unsent)
            self._over = self._broken
            await self._turns.tell()
        elif self._unsent:
            await self._send(end=len(self._unsent) <= _SMALL_BATCH)

    async def _begin_again(self) -> None:
        """Another message was stored at this position: continue after the tail with what isn't
        stored.
        """
        await self._go_behind_others()
        self._unsent = [*self._sent, *self._unsent]
        self._sent.clear()
        self._open = False
        self._ending = False
        self._broken = False
        self._over = False
        await self._send(end=len(self._unsent) <= _SMALL_BATCH)

    async def _go_behind_others(self) -> None:
        """Find the stream's end; if another source writes, wait for the turn and read its messages
        meanwhile.
        """
        if self._turns is None:
            await self._check(await self._tail.after(self._last_seq))
            return
        await self._turns.want()
        async with self._tail.watched(self._last_seq) as look:
            before = -1
            while before < 0 or await self._turns.wait(self._last_seq - before):
                self._check_connection()
                before = self._last_seq
                await self._check(await look())

    async def _check(self, tail: Tail) -> None:
        await check_tail(
            self._tail, tail, self._created, self._last_seq, (self._own_seq, self._own_id)
        )
        self._last_seq = tail.last_seq
