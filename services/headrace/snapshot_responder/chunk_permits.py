"""Permits: a task asks the responder for a chunk's number, and for permission to publish it.

One core NATS subject per snapshot. Permission is given only while the snapshot is running, so that
a task of a cancelled snapshot, or of a responder that died, publishes nothing more. With a rate
limit, permission is given no faster than the rate: tasks buffer few chunks, so PostgreSQL waits
with them.

An answer is a chunk's number, or seconds to wait before asking again, or False: the snapshot is
over.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import msgpack
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.snapshot_responder.numbering import ChunkNumbers

log = logs.logger("snapshot-responder")

TICKET_TIMEOUT_S = 5.0
TICKET_PATIENCE_S = 20.0
# Tasks ask again at least this often, so that they notice the end of a snapshot soon.
WAIT_S_MAX = 2.0
_RETRY_S = 0.25


class SnapshotOverError(HeadraceError):
    """The snapshot is no longer running; nothing of it may be published."""


@dataclass(slots=True)
class Throttle:
    """Bytes of rows per second that all snapshots of the responder together may read from the
    source.
    """

    bytes_per_s: float | None
    # When the next chunk may be published, by the sizes of all earlier ones; the reserved turn of
    # each chunk that was asked for and is not published yet.
    _free_at: float = 0.0
    _turns: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def wait_s(self, chunk: tuple[str, int, int], size: int, now: float) -> float:
        """How long a chunk still has to wait for its turn."""
        if self.bytes_per_s is None:
            return 0.0
        # A chunk keeps its turn while its task asks again, and after a retry: otherwise the tasks
        # would overtake one another forever.
        turn = self._turns.get(chunk)
        if turn is None:
            turn = max(now, self._free_at)
            self._turns[chunk] = turn
            self._free_at = turn + size / self.bytes_per_s
        if turn <= now:
            del self._turns[chunk]
        return max(turn - now, 0.0)

    def forget(self, subject: str) -> None:
        """A snapshot is over: release what it reserved and did not use."""
        self._turns = {chunk: turn for chunk, turn in self._turns.items() if chunk[0] != subject}
        # Without this, the reservations of a cancelled snapshot would delay the next one.
        if not self._turns:
            self._free_at = 0.0


@dataclass(slots=True)
class ChunkPermits:
    """The responder's side: gives permission while it is open, and reports the end for a while
    afterwards.
    """

    client: Client
    subject: str
    numbers: ChunkNumbers
    throttle: Throttle = field(default_factory=lambda: Throttle(None))
    # Whether chunks may be published; the subscription outlives it, to refuse those that ask too
    # late.
    _open: bool = False
    _subscription: Subscription | None = None
    _closing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._open = True
        self._subscription = await self.client.subscribe(self.subject, cb=self._answer)

    def close(self) -> None:
        """From here on no chunk may be published."""
        self._open = False
        self.throttle.forget(self.subject)
        self._closing = asyncio.create_task(self._unsubscribe(), name="permits-close")

    async def _unsubscribe(self) -> None:
        # A task that asks now gets a clear refusal; without an answer it would try until its
        # patience ends.
        await asyncio.sleep(TICKET_PATIENCE_S)
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except NatsError as error:
                log.debug("unsubscribe_failed", reason=str(error))

    async def _answer(self, message: Msg) -> None:
        if not message.reply:
            return
        try:
            page_range, index, rows, size = (int(part) for part in msgpack.unpackb(message.data))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            log.warning("ticket_request_ignored", reason=str(error))
            return
        await message.respond(bytes(msgpack.packb(self._decide(page_range, index, rows, size))))

    def _decide(self, page_range: int, index: int, rows: int, size: int) -> int | float | bool:
        if not self._open:
            return False
        # A chunk that was permitted before may be in the stream already: repeating it costs the
        # source nothing.
        known = self.numbers.has(page_range, index)
        if known:
            wait_s = 0.0
        else:
            wait_s = self.throttle.wait_s((self.subject, page_range, index), size, time.monotonic())
        if wait_s > 0:
            # A float even if it is a whole number: an int would be a chunk's number.
            return float(wait_s)
        return self.numbers.number(page_range, index, rows, size)


async def ask(
    client: Client, subject: str, page_range: int, index: int, rows: int, size: int
) -> int:
    """The number of a chunk, once its turn has come; `SnapshotOverError` if nobody answers."""
    request = bytes(msgpack.packb([page_range, index, rows, size]))
    deadline = time.monotonic() + TICKET_PATIENCE_S
    while True:
        try:
            answer = msgpack.unpackb(
                (await client.request(subject, request, timeout=TICKET_TIMEOUT_S)).data
            )
        except (NatsError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise SnapshotOverError("the responder of the snapshot is gone") from error
            # The responder may be reconnecting to NATS. The same chunk gets the same number later.
            await asyncio.sleep(_RETRY_S)
            continue
        if answer is False:
            raise SnapshotOverError("the snapshot is over")
        # After the test for False, which is an int as well.
        if isinstance(answer, int):
            return answer
        # The responder answers, so it is alive; patience is for one that doesn't.
        deadline = time.monotonic() + TICKET_PATIENCE_S
        await asyncio.sleep(min(answer, WAIT_S_MAX))
