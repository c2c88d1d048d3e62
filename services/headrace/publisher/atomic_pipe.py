"""Publishing in atomic batches: a group of messages is stored completely or not at all.

ADR-50 of NATS, servers from 2.12. One group is in flight at a time, while the next is being built;
its first message names the stream's last sequence, so that the server refuses a group of a
superseded publisher. Another source's message in between makes it refuse too: then the group is
published again after it. No group is sent before the previous one is stored: the server compares
sequences, and another source's messages could bring the stream to where a refused group would have
ended. An unknown fate is an `IngestError`, and the publisher restarts from its resume point.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence

import orjson
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from headrace import log as logs
from headrace.contract.events import ID_HEADER
from headrace.errors import HeadraceError
from headrace.jetstream.publishing import wire
from headrace.jetstream.publishing.errors import (
    CHAIN_CODES,
    FencedError,
    IngestError,
    TailLostError,
    refusal,
)
from headrace.jetstream.publishing.message import Message
from headrace.jetstream.publishing.pipe import Pipe, Window
from headrace.jetstream.publishing.stream_tail import Tail
from headrace.process.failpoint import failpoint

log = logs.logger("atomic")

# Error codes of JetStream: an id of the group is in the duplicate window; batches are not allowed;
# too many of them are open; this one is too long.
_DUPLICATE = 10201
_DISABLED = 10174
_TOO_MANY = 10210
_TOO_LONG = 10199
# Other publishers end their groups within milliseconds.
_PAUSE_S = 0.1


class AtomicUnsupportedError(HeadraceError):
    """The server or the stream doesn't support atomic batches."""

    remedy = (
        "Use nats-server 2.12 or newer and set allow_atomic on the stream, which may be done while "
        "it is in use; or "
        "choose another --delivery."
    )


class GroupTooLongError(HeadraceError):
    """The server accepts fewer messages in a group than the suite is configured for."""

    remedy = (
        "Lower HEADRACE_ATOMIC_MESSAGES_MAX to what nats-server takes (1000, unless its "
        "configuration has another "
        "jetstream.limits.batch.max_msgs), or raise it there, then restart."
    )


class AtomicPipe(Pipe):
    """Publishes groups of messages, each atomic."""

    def __post_init__(self, window: Window) -> None:
        super().__post_init__(window)
        # The group that is being built, and the one in flight.
        self._group: list[Message] = []
        self._group_bytes = 0
        self._flying: list[Message] = []
        self._flight: asyncio.Task[None] | None = None
        self._duplicates = False

    @property
    def published(self) -> int:
        """The number of messages handed over, including those of the group that is being built."""
        return self._acked + len(self._flying) + len(self._group)

    @property
    def _group_header(self) -> str:
        # An id may still be in the server's duplicate window; consumers find it in the other
        # header, too.
        if self._duplicates:
            return ID_HEADER
        return self._header

    @property
    def flying(self) -> bool:
        """Whether a group is in flight."""
        return self._flight is not None and not self._flight.done()

    def fits(self, messages: int, size: int) -> bool:
        """Whether this many more messages fit into the group that is being built."""
        return (
            len(self._group) + messages <= self._messages_max
            and self._group_bytes + size <= self._bytes_max
        )

    def fits_alone(self, messages: int, size: int) -> bool:
        """Whether this many messages fit into a separate group."""
        # A single message needs no batch, and only NATS limits its size.
        return messages <= self._messages_max and (size <= self._bytes_max or messages == 1)

    async def open(self, tail: Tail) -> None:
        """Start after a tail that was just read from the stream."""
        # Checked first: a server without batches would store their messages one by one.
        if not tail.atomic:
            raise AtomicUnsupportedError(
                "--delivery transaction: the change stream doesn't support atomic batches"
            )
        self._begin_behind(tail)

    async def close(self) -> None:
        """The stream shows later what became of a group in flight."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait({self._flight})
            if not self._flight.cancelled() and (error := self._flight.exception()):
                log.debug("group_abandoned", reason=str(error))

    async def publish(self, message: Message) -> None:
        """Add to the group; sends a full one first."""
        self._raise_failure()
        if self._group and not self.fits(1, len(message.payload)):
            await self.flush()
        self._group.append(message)
        self._group_bytes += len(message.payload)

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """`publish` for several messages in sequence."""
        self._raise_failure()
        size = sum([len(message.payload) for message in messages])
        if self.fits(len(messages), size):
            self._group += messages
            self._group_bytes += size
            return
        for message in messages:
            await self.publish(message)

    async def flush(self) -> None:
        """Send the group as soon as the previous one is stored."""
        # One group in flight at a time: behind a refused one, another source's messages could bring
        # the stream to the sequence that the next one expects.
        await self._land()
        if self._group:
            assert not self._flying, "two groups in flight"
            self._check_connection()
            self._flying = self._group
            self._group = []
            self._group_bytes = 0
            self._flight = asyncio.create_task(self._store(self._flying), name="atomic group")

    async def drain(self) -> None:
        await self.flush()
        await self._land()
        self._raise_failure()

    async def catch_up(self) -> None:
        """Called when there is nothing to publish: detects a lost connection, and the result of a
        group.
        """
        if not self.flying:
            await self._land()
        self._check_connection()

    def _raise_failure(self) -> None:
        super()._raise_failure()
        if self._flight is not None and self._flight.done():
            self._flight.result()

    async def _land(self) -> None:
        """Wait until the group in flight is stored; raises its error, then at every call."""
        if self._flight is not None:
            # A caller that is cancelled leaves the group to `close`. After an error the flight
            # stays: every later call must raise it too.
            await asyncio.shield(self._flight)
            self._flight = None

    async def _store(self, group: list[Message]) -> None:
        while True:
            failpoint("publisher.before_atomic")
            answer = await self._send(group)
            failpoint("publisher.after_atomic")
            error = answer.get("error")
            if answer.get("duplicate"):
                # The reason for refusing a group is reported only for a single message.
                error = {"err_code": _DUPLICATE, "description": "a single message is a duplicate"}
            if error is None:
                self._stored(group, int(str(answer["seq"])))
                return
            assert isinstance(error, dict)
            await self._refused(group, error)
            self._check_connection()

    def _stored(self, group: Sequence[Message], last_seq: int) -> None:
        self._count(group, last_seq)
        self._heard_at = time.monotonic()
        self._last_seq = last_seq
        self._flying = []
        self._duplicates = False

    async def _send(self, group: list[Message]) -> dict[str, object]:
        # Never used again: the server would add to a batch that it still knows.
        batch = secrets.token_hex(16)
        size = len(group)
        last = group[-1]
        try:
            for part in wire.parts(self._commands(group, batch)):
                await wire.hand_over(self._client, b"".join(part), len(part))
                failpoint("publisher.inside_atomic")
            headers = self._headers(last, batch, size, size)
            reply = await self._client.request(
                last.subject, last.payload, timeout=self._ack_timeout_s, headers=headers
            )
        except NoRespondersError as error:
            raise IngestError(
                "no stream takes these subjects: it is missing or has no leader"
            ) from error
        except NatsError as error:
            raise IngestError(f"a group of messages was not acknowledged: {error!r}") from error
        answer = orjson.loads(reply.data or b"{}")
        if isinstance(answer, dict):
            return answer
        return {}

    def _commands(self, group: Sequence[Message], batch: str) -> Iterator[bytes]:
        """The bytes of all messages but the last, which is answered."""
        id_header = self._group_header
        for number, message in enumerate(group[:-1], start=1):
            if number == 1 or message.headers:
                headers = self._headers(message, batch, number, len(group))
                yield wire.with_headers(message.subject, "", headers, message.payload)
            else:
                yield wire.grouped(message, id_header, batch, number)

    def _headers(self, message: Message, batch: str, number: int, size: int) -> dict[str, str]:
        headers = dict(message.headers)
        headers[self._group_header] = message.msg_id
        if number == 1:
            headers["Nats-Expected-Last-Sequence"] = str(self._last_seq)
        if size > 1:
            headers["Nats-Batch-Id"] = batch
            headers["Nats-Batch-Sequence"] = str(number)
            if number == size:
                headers["Nats-Batch-Commit"] = "1"
        return headers

    async def _refused(self, group: Sequence[Message], error: dict[str, object]) -> None:
        """Nothing of the group was stored: repair what can be repaired."""
        code = error.get("err_code")
        if code in CHAIN_CODES:
            await self._behind_the_tail()
        elif code == _DUPLICATE and not self._duplicates:
            await self._behind_the_tail()
            self._stats.count("duplicates_refused", len(group))
            log.warning("duplicates_refused", first=group[0].msg_id, messages=len(group))
            self._duplicates = True
        elif code == _DISABLED:
            raise AtomicUnsupportedError(
                f"the stream refuses atomic batches: {error.get('description')}"
            )
        elif code == _TOO_LONG:
            raise GroupTooLongError(
                f"nats-server refuses a group of {len(group)}: {error.get('description')}"
            )
        elif code == _TOO_MANY:
            await asyncio.sleep(_PAUSE_S)
        else:
            raise refusal(error)

    async def _behind_the_tail(self) -> None:
        began = time.monotonic()
        tail = await self._tail.after(self._last_seq)
        # As `check_tail`, without the content of a known message: nothing of this group is stored.
        if tail.created != self._created or tail.last_seq < self._last_seq:
            raise TailLostError("the stream's end is not what was acknowledged")
        if tail.position is not None or tail.ids_after:
            raise FencedError("another publisher of this source is writing to the stream")
        log.debug("group_moved", behind=tail.last_seq, seconds=round(time.monotonic() - began, 3))
        self._last_seq = tail.last_seq
