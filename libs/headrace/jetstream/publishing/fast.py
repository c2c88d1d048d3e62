"""Publishing by JetStream's fast ingest: one acknowledgement for many messages.

ADR-50 of NATS, servers from 2.14. A batch is an ordered sequence of messages that the server knows
by an id. The server answers every `flow` messages, and once more when the batch is ended. In the
gap mode `fail`, a lost or refused message ends its batch, and all messages after it are refused.

Promises the same as `ChainPipe`: in order, without holes or duplicates, fenced, independent of the
duplicate window. The rules that ensure this are in `fast_batch`.

Messages are sent many at a time, at the latest when the caller signals with `catch_up` that it has
no more ready. A few of them form their own batch, acknowledged in one round trip; more of them
leave the batch open until no more arrive.

Never retries a message whose fate is unknown: that is an `IngestError`, as in `ChainPipe`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
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
from headrace.jetstream.publishing.fast_batch import FastBatch
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
from headrace.metrics.counters import Counters
from headrace.process.failpoint import failpoint

log = logs.logger("ingest")

# The server's error code for a batch that it doesn't know, or that it has ended.
_UNKNOWN_BATCH = 10208
# The server never acknowledges less often.
_FLOW_MAX = 500
# Sent as soon as this many are ready, so that the server works while more are prepared.
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
        stats: Counters,
        window: Window,
        turns: Turns | None = None,
        on_stored: OnStored = ignored,
        header: str = wire.MSG_ID,
    ) -> None:
        super().__init__(client, tail, stats, window, on_stored, header)
        self._turns = turns
        # Refused here: the server would end the batch, and the rest of it would have to be
        # repeated.
        self._payload_bytes_max = client.max_payload - HEADERS_BYTES_MAX
        # Several answers fit into the window; with only one, publishing would stop for each round
        # trip.
        flow = max(1, min(_FLOW_MAX, window.messages_max // 4))
        # Handed over by the caller and not sent; sent and not known to be stored. A message leaves
        # `_sent` only when the stream shows it, so that after a refusal both together are what must
        # be published.
        self._unsent: list[Message] = []
        self._sent: deque[Message] = deque()
        self._pending_bytes = 0
        # Sequence and id of the last message that this pipe stored: `check_tail` compares them with
        # the stream.
        self._own_seq = 0
        self._own_id = ""
        self._batch = FastBatch(client.new_inbox(), flow)
        # Reads back the last accepted message; at most one at a time.
        self._proving: asyncio.Task[None] | None = None
        # `published` at the last call of `catch_up`, to recognize that nothing was added since.
        self._caught_up_at = 0

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
        self._subscription = await self._client.subscribe(
            f"{self._batch.inbox}.>", cb=self._on_answer
        )
        if self._turns is not None:
            await self._turns.open(self._is_writing)
        await self._client.flush()

    def _id_header(self, message: Message) -> str:
        if self.ids_in_doubt:
            return ID_HEADER
        return super()._id_header(message)

    def _is_writing(self) -> bool:
        return (self._batch.open or bool(self._unsent)) and not self._batch.broken

    async def close(self) -> None:
        if self._proving is not None:
            self._proving.cancel()
            await asyncio.wait({self._proving})
        if self._turns is not None:
            await self._turns.close()
        await self._unsubscribe()

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
        if (
            len(self._unsent) >= _HANDED_OVER_AT_ONCE
            and not self._batch.ending
            and not self._batch.broken
        ):
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
        if self._batch.broken and self._batch.over:
            await self._begin_again()
        elif self._sent and time.monotonic() - self._heard_at > self._ack_timeout_s:
            self._fail(self._late())
            self._raise_failure()
        # An open batch is acknowledged only every `flow` messages. Without an end, the last
        # messages of a burst would stay unconfirmed, and hold back the slot, until more arrive.
        idle = self.published == self._caught_up_at
        self._caught_up_at = self.published
        small = not self._batch.open and len(self._unsent) <= _SMALL_BATCH
        await self._send(end=idle or small or self._batch.unproved)

    async def _progress(self) -> None:
        """Wait for an answer, or repair."""
        self._raise_failure()
        if self._batch.broken and self._batch.over:
            await self._begin_again()
            return
        # With so few messages the server says nothing until the batch is ended.
        await self._send(end=self._pending < 2 * self._batch.flow or self._batch.unproved)
        # While another source writes, nothing was sent, so no answer will come.
        if self._pending and not (self._batch.broken and self._batch.over):
            await self._answer()

    async def _send(self, *, end: bool) -> None:
        """Send the unsent messages, unless a batch is ending; with `end`, end the batch too."""
        if self._turns is not None and not self._batch.ending and not self._batch.broken:
            end = self._keep_to_turns(self._turns) or end
        # Only the final answer to this batch says where the next one may start (docs/adr/0010).
        if (
            self._batch.ending
            or self._batch.broken
            or not (self._unsent or (end and self._batch.open))
        ):
            return
        self._check_connection()
        # From here until the bytes are in the client's buffer nothing may wait: a second sender
        # would take the same numbers.
        waiting = len(self._unsent)
        commands = self._commands(end=end)
        failpoint("publisher.before_publish")
        try:
            await wire.hand_over(self._client, commands, max(1, waiting - len(self._unsent)))
            failpoint("publisher.after_publish")
        except NatsError as error:
            self._fail(IngestError(f"messages could not be sent: {error}"))
            self._raise_failure()

    def _keep_to_turns(self, turns: Turns) -> bool:
        """Start nothing while another source writes; whether the open batch must end for a waiting
        source.
        """
        if not self._batch.open:
            # Treated like a refusal of a batch that stored nothing: the repair waits for the turn,
            # and reads what the other source writes.
            if self._unsent and turns.others_write:
                self._batch.broken = True
                self._batch.over = True
            return False
        return turns.is_over

    def _commands(self, *, end: bool) -> bytes:
        """The bytes of all unsent messages, which then count as sent; nothing here may wait."""
        # The server's silence counts only while it owes an answer.
        if not self._sent:
            self._heard_at = time.monotonic()
        if not self._batch.open:
            self._batch.start(self._last_seq)
        messages = self._batch.next_of(self._unsent)
        del self._unsent[: len(messages)]
        self._sent.extend(messages)
        # A skipped duplicate goes unnoticed if another source's message took its place.
        if self._header == wire.MSG_ID and (self._known or self.ids_in_doubt):
            return self._batch.commands(messages, self._id_header, end=end)
        return self._batch.commands(messages, end=end, header=self._header)

    async def _on_answer(self, message: Msg) -> None:
        # The inbox may contain dots, so the fields are counted from the end.
        _, batch, _, _, number, _, _ = message.subject.rsplit(".", 6)
        # A late answer to an earlier batch, whose final answer has said everything already.
        if batch != self._batch.id or not self._batch.open:
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
            self._batch.taken = max(self._batch.taken, int(answer["seq"]))
            if self._proving is None or self._proving.done():
                self._proving = asyncio.create_task(self._prove(), name="flow")
                self._proving.add_done_callback(self._proved)
            if self._turns is not None:
                await self._turns.keep()
        elif kind == "gap":
            # The server did not receive a message that was sent. The stored messages are unknown,
            # so nothing is repaired here.
            self._fail(IngestError(f"JetStream lacks message {answer.get('last_seq')} of a batch"))
        elif "error" in answer:
            # An error for one message, or, without a type, the final answer to a batch that was
            # refused.
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
        # `looked` ends the loop if the server could not answer: the next acknowledgement tries
        # again.
        while (
            self._batch.taken > self._batch.kept
            and (place := (self._batch.id, self._batch.taken)) != looked
        ):
            looked = place
            index = self._batch.taken - self._batch.kept - 1
            if index >= len(self._sent):
                return
            wanted = self._sent[index].msg_id
            there = None
            try:
                there = await self._tail.id_at(self._batch.base + self._batch.taken)
            except NatsError as error:
                log.debug("flow_not_checked", reason=str(error))
            # While the stream was read, the batch may have ended, or another one started. The
            # result then says nothing about the current one.
            batch, number = looked
            if (
                batch != self._batch.id
                or not self._batch.open
                or self._batch.over
                or number <= self._batch.kept
            ):
                continue
            if there == wanted:
                self._keep(number)
            else:
                # Only the batch's end tells more.
                self._batch.unproved = True
            self._room.set()

    def _proved(self, task: asyncio.Task[None]) -> None:
        """Fail with what ended the task: nobody awaits it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(IngestError(f"the stream could not be read: {describe(error)}"))

    def _keep(self, up_to: int) -> None:
        """The batch's messages up to this number are stored."""
        new = up_to - self._batch.kept
        # Never adjusted silently: an impossible count means that the pipe and the server disagree
        # about what is stored, and only reading the stream again decides that.
        if new < 0 or new > len(self._sent):
            self._fail(
                IngestError(
                    f"message {up_to} of a batch was acknowledged, of {self._batch.number} sent"
                )
            )
            return
        take = self._sent.popleft
        kept = [take() for _ in range(new)]
        if kept:
            self._own_seq = self._batch.base + up_to
            self._own_id = kept[-1].msg_id
        self._batch.kept = up_to
        self._pending_bytes -= sum([len(message.payload) for message in kept])
        self._count(kept, self._batch.base + up_to)

    def _refused(self, error: dict[str, object], *, first: bool, final: bool) -> None:
        code = error.get("err_code")
        # Something else was stored at the expected position: another source's message, or an
        # successor's. Reading the stream's end tells which.
        if code in CHAIN_CODES:
            if not self._batch.broken:
                self._stats.count("batches_broken")
            self._batch.broken = True
            # If the first message was refused, nothing was stored; else the server says how much
            # was.
            self._batch.over = self._batch.over or (first and final)
        elif code == _UNKNOWN_BATCH and self._batch.broken:
            # The server has ended the batch at its first refusal; each later message is answered
            # like this.
            return
        elif code == _UNKNOWN_BATCH:
            # Not after a refusal, so the server itself has forgotten the batch: it restarted, or
            # elected another leader. What it stored is unknown.
            self._fail(IngestError("JetStream lost a batch that was not ended"))
        else:
            self._fail(refusal(error))

    async def _ended(self, answer: dict[str, object]) -> None:
        """The final answer to a batch: how much of it is stored, and where its last message is."""
        seq = int(str(answer["seq"]))
        taken = int(str(answer.get("count", 1)))
        kept = self._batch.stored(seq, taken, is_duplicate=bool(answer.get("duplicate")))
        self._keep(kept)
        # The rest was skipped as duplicates of messages that are no longer in the stream. They are
        # published again, with ids that the server doesn't compare.
        if kept < taken and self._failure is None:
            self._refuse_duplicates([self._sent[index] for index in range(taken - kept)])
            self._batch.broken = True
        self._last_seq = self._batch.base + kept
        if self._batch.broken:
            self._batch.over = True
            return
        # Ended without a request and without a refusal: treated as unknown, not as stored.
        if not self._batch.ending or kept != self._batch.number:
            self._fail(
                IngestError(
                    f"JetStream ended a batch after {kept} of {self._batch.number} messages"
                )
            )
            return
        self._batch.open = False
        self._batch.ending = False
        if self._turns is not None and self._turns.pass_on(more=bool(self._unsent)):
            # As after a refusal: what is left goes behind what the other writes.
            self._batch.broken = bool(self._unsent)
            self._batch.over = self._batch.broken
            await self._turns.tell()
        elif self._unsent:
            await self._send(end=len(self._unsent) <= _SMALL_BATCH)

    async def _begin_again(self) -> None:
        """Another message was stored at this position: continue after the tail with what isn't
        stored.
        """
        reached = self._last_seq
        await self._go_behind_others()
        # If nothing was stored there, the server has the wrong end of the stream for batches.
        self._batch.alone = self._last_seq == reached
        # The final answer has removed from `_sent` what is stored, so this is exactly the rest, in
        # order.
        self._unsent = [*self._sent, *self._unsent]
        self._sent.clear()
        self._batch.open = False
        self._batch.ending = False
        self._batch.broken = False
        self._batch.over = False
        await self._send(end=len(self._unsent) <= _SMALL_BATCH)

    async def _go_behind_others(self) -> None:
        """Find the stream's end; if another source writes, wait for the turn and read its messages
        meanwhile.
        """
        if self._turns is None:
            await self._check(await self._tail.after(self._last_seq))
            return
        # The announcement comes first: what the writing source adds meanwhile is read in the loop.
        await self._turns.want()
        async with self._tail.watched(self._last_seq) as look:
            before = -1
            # At least one look at the end, after the turn has come too: only messages that were
            # read may be published behind.
            while before < 0 or await self._turns.wait(self._last_seq - before):
                self._check_connection()
                before = self._last_seq
                await self._check(await look())

    async def _check(self, tail: Tail) -> None:
        await check_tail(
            self._tail, tail, self._created, self._last_seq, (self._own_seq, self._own_id)
        )
        self._last_seq = tail.last_seq
