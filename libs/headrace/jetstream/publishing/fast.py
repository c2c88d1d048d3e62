"""Publishing by JetStream's fast ingest (ADR-50 of NATS, servers from 2.14): one acknowledgement
for many messages.

A batch is an ordered run of messages that the server knows by an id; what a message is to its batch
stands in its reply subject, `{inbox}.{batch}.{flow}.fail.{number}.{operation}.$FI`. The server
answers every `flow` messages, and once more when the batch is ended. In the gap mode `fail` a
message that is lost or refused ends its batch, and all behind it are refused.

Promises what `Ingest` promises: in order, without a hole or a double, fenced, whatever the
duplicate window. Three rules make it so (docs/adr/0010):

- every message names the stream's last sequence that must be before it, the first one's read from
  the server. A batch by itself is not enough: the server looks for a duplicate before it looks at
  what is expected, so a first message that it has seen would open a batch unfenced, and a failed
  write does not end a batch by itself;
- a batch begins only when the one before has its final answer, so that what it expects is known and
  not guessed;
- a batch's id is never used again.

Messages are handed over many at a time, at the latest when the caller says with `settle` that it
has no more at hand. Few of them are a batch of their own, acknowledged in one round trip; more
leave the batch open until nothing comes.

Never retries on its own what it doesn't know the fate of: that is an `IngestError`, as in `Ingest`.
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
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from headrace import log as logs
from headrace.errors import HeadraceError
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
# A batch of no more is ended with its last message; one with more stays open for what follows.
_SMALL_BATCH = 256


async def offers_fast_ingest(js: JetStreamContext, client: Client, stream: str) -> bool:
    """Whether this server and this stream take it."""
    version = client.connected_server_version
    if (version.major, version.minor) < (2, 14):
        return False
    return bool((await js.stream_info(stream)).config.allow_batched)


class FastIngestUnsupportedError(HeadraceError):
    """The server or the stream doesn't take fast ingest, and nothing else was asked for."""

    remedy = (
        "Use nats-server 2.14 or newer with allow_batched on the stream, or HEADRACE_INGEST=auto."
    )


class FastIngest(Pipe):
    """Messages one behind the other, from where the stream's tail is now."""

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
        # Refused for its place, and whether the server has said what it kept of the batch.
        self._broken = False
        self._over = False
        # So many messages of the batch the server took; whether it did and they are not seen in the
        # stream.
        self._taken = 0
        self._unproved = False
        self._proving: asyncio.Task[None] | None = None
        self._settled_at = 0

    @property
    def published(self) -> int:
        """How many were handed over."""
        return self._acked + self._pending

    @property
    def _pending(self) -> int:
        return len(self._sent) + len(self._unsent)

    async def open(self, tail: Tail) -> None:
        """Begin behind a tail that was read from the stream just now."""
        self._begin_behind(tail)
        self._subscription = await self._client.subscribe(f"{self._inbox}.>", cb=self._on_answer)
        if self._turns is not None:
            await self._turns.open(self._is_writing)
        await self._client.flush()

    def _is_writing(self) -> bool:
        return (self._open or bool(self._unsent)) and not self._broken

    async def close(self) -> None:
        if self._proving is not None:
            self._proving.cancel()
            await asyncio.wait({self._proving})
        if self._turns is not None:
            await self._turns.close()
        if not self._client.is_closed:
            try:
                await self._subscription.unsubscribe()
            except NatsError as error:
                log.debug("unsubscribe_failed", reason=str(error))

    async def publish(self, message: Message) -> None:
        """Take a message; waits while too many are under way."""
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
        """`publish` for several, one behind the other: many at once where nothing stands in the
        way.
        """
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
            # Answers come in only when the event loop turns.
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
        """Wait until everything published is stored."""
        while self._pending:
            await self._send(end=True)
            await self._progress()
        self._raise_failure()

    async def settle(self) -> None:
        """Called when there is nothing to publish: sends what is left, repairs, notices what is
        missing.
        """
        self._check_connection()
        if self._broken and self._over:
            await self._begin_again()
        elif self._sent and time.monotonic() - self._heard_at > self._ack_timeout_s:
            self._fail(self._late())
            self._raise_failure()
        idle = self.published == self._settled_at
        self._settled_at = self.published
        small = not self._open and len(self._unsent) <= _SMALL_BATCH
        await self._send(end=idle or small or self._unproved)

    async def _progress(self) -> None:
        """Wait for an answer, or repair."""
        self._raise_failure()
        if self._broken and self._over:
            await self._begin_again()
            return
        # Of so few messages the server says nothing until the batch is ended.
        await self._send(end=self._pending < 2 * self._flow or self._unproved)
        # Where another writes nothing was sent, and nothing is answered.
        if self._pending and not (self._broken and self._over):
            await self._answer()

    async def _send(self, *, end: bool) -> None:
        """Send what is unsent, unless a batch is ending; `end` the batch with it."""
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
        """Begin nothing while another writes; whether the batch that is open has to end for another
        that waits.
        """
        if not self._open:
            if self._unsent and turns.others_write:
                self._broken = True
                self._over = True
            return False
        return turns.is_over

    def _commands(self, *, end: bool) -> list[bytes]:
        """The bytes of everything unsent, which is sent with it; nothing here may wait."""
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
        known = self._known
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
                    self._id_header(message) if known else wire.MSG_ID,
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
            if self._turns is not None:
                await self._turns.keep()
        elif kind == "gap":
            self._fail(IngestError(f"JetStream misses message {answer.get('last_seq')} of a batch"))
        elif "error" in answer:
            self._refused(answer["error"], first=number == "1", final=kind is None)
        else:
            await self._ended(answer)
        self._room.set()

    async def _prove(self) -> None:
        """Keep what the server has taken of the batch, as far as it is seen in the stream.

        It stored the messages, or skipped them as duplicates. One that it skipped breaks the batch
        at the next one that it does not, so the last one speaks for all. While that one is read
        more are taken, and of those again the last one is read: a read for every answer would hold
        back what is sent.
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
            # Of a batch whose first message was refused nothing was kept; of another the server
            # says how much.
            self._over = self._over or (first and final)
        elif code == _UNKNOWN_BATCH and self._broken:
            return
        elif code == _UNKNOWN_BATCH:
            self._fail(IngestError("JetStream has forgotten a batch that was not ended"))
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
        """Something else was stored where a message belongs: go on behind the tail with what is not
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
        """Find the stream's end; where another writes there, wait for the turn, and read what it
        writes meanwhile.
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
