"""Tickets: a task asks the responder for a chunk's number, and for the leave to publish it.

One core NATS subject per snapshot; it is answered only while the snapshot is running, so that a task of a cancelled
snapshot, or of a responder that died, publishes nothing more.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

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
_RETRY_S = 0.25


class SnapshotOverError(HeadraceError):
    """The snapshot isn't running any more; nothing of it may be published."""


def tickets_subject(slot: str, snapshot_id: str) -> str:
    return f"headrace.{slot}.snapshot.{snapshot_id}"


@dataclass(slots=True)
class TicketOffice:
    """The responder's side: answers for as long as it is open."""

    client: Client
    subject: str
    numbers: ChunkNumbers
    _subscription: Subscription | None = None

    async def open(self) -> None:
        self._subscription = await self.client.subscribe(self.subject, cb=self._answer)

    async def close(self) -> None:
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            try:
                await subscription.unsubscribe()
            except NatsError as error:
                log.debug("unsubscribe_failed", reason=str(error))

    async def _answer(self, message: Msg) -> None:
        if self._subscription is None or not message.reply:
            return
        try:
            page_range, index, rows, size = (int(part) for part in msgpack.unpackb(message.data))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            log.warning("ticket_request_ignored", reason=str(error))
            return
        number = self.numbers.number(page_range, index, rows, size)
        await message.respond(bytes(msgpack.packb(number)))


async def ask(client: Client, subject: str, page_range: int, index: int, rows: int, size: int) -> int:
    """The number of a chunk; `SnapshotOverError` when nobody gives it out."""
    request = bytes(msgpack.packb([page_range, index, rows, size]))
    deadline = time.monotonic() + TICKET_PATIENCE_S
    while True:
        try:
            answer = await client.request(subject, request, timeout=TICKET_TIMEOUT_S)
            return int(msgpack.unpackb(answer.data))
        except (NatsError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise SnapshotOverError("the snapshot was cancelled, or its responder is gone") from error
            await asyncio.sleep(_RETRY_S)
