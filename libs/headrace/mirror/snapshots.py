"""A table's snapshot as a consumer receives it: requested, awaited, read chunk by chunk.

Promises that a snapshot is complete: its meta message exists, and each chunk belongs to it. Never
mixes the chunks of two snapshots. Its end is read from the stream, which takes no permission to
subscribe to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import NotFoundError

from headrace.consumer.messages import events_of
from headrace.consumer.reference import whole
from headrace.contract import exact
from headrace.contract.events import REPLY_HEADER, decode
from headrace.contract.subjects_and_ids import (
    chunk_subject,
    meta_subject,
    snapshot_error_subject,
    snapshot_progress_subject,
    snapshot_request_subject,
)
from headrace.errors import HeadraceError
from headrace.jetstream.dictionaries import STATE_BUCKET, DictionaryReader
from headrace.lsn import parse_lsn
from headrace.timing.waits import heed_cancellation, wait_for

ANSWER_TIMEOUT_S = 30.0
LOOK_S = 0.5
# After this long without progress or a result, it is requested again.
SILENCE_S = 300.0
OPTIONS = b'{"values": "typed"}'

Progress = Callable[[int, int], None]


class SnapshotError(HeadraceError):
    """There is no snapshot at the moment."""

    retry = True
    remedy = "Ask again."


class SnapshotRefusedError(HeadraceError):
    """The table can't be snapshotted; the reason is the responder's, and says what to do."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A complete snapshot. `note`: the stream's last sequence before it was asked for; None if
    others had asked.
    """

    snapshot_id: str
    token: str
    lsn: int
    batch_count: int
    row_count: int
    source: str
    note: int | None


class Snapshots:
    def __init__(self, client: Client, stream: str, init: str, state: str = STATE_BUCKET) -> None:
        self._client = client
        self._js = client.jetstream()
        self._stream = stream
        self._init = init
        self._dictionaries = DictionaryReader(self._js, state)

    async def take(
        self, token: str, progress: Progress, options: bytes = OPTIONS
    ) -> StoredSnapshot:
        """Ask for a table, and wait for its snapshot; `progress` hears of rows and estimated rows
        meanwhile.
        """
        request = _Request(token, progress)
        # Subscribed before the request, or a quick answer would be missed.
        async with self._heard(request) as inbox:
            # Both before the request: what is in the streams by then is older than the snapshot.
            note = await self._last_seq(self._stream)
            after = await self._last_seq(self._init)
            # With the inbox in a header, the answer belongs to this very request, however late it
            # is processed.
            await self._client.publish(
                snapshot_request_subject(token), options, reply=inbox, headers={REPLY_HEADER: inbox}
            )
            await request.until_answered()
            body = await self._end(request, after + 1)
        return StoredSnapshot(
            str(body["snapshot_id"]),
            token,
            parse_lsn(str(body["lsn"])),
            int(body["batch_count"]),
            int(body["row_count"]),
            str(body["source"]),
            note if request.status == "accepted" else None,
        )

    @contextlib.asynccontextmanager
    async def _heard(self, request: _Request) -> AsyncIterator[str]:
        """Subscribe to the messages about a request; returns the inbox for its answer."""
        inbox = self._client.new_inbox()
        listeners: Mapping[str, Callable[[Msg], Awaitable[None]]] = {
            inbox: request.answered,
            snapshot_progress_subject(request.token): request.progressed,
        }
        async with contextlib.AsyncExitStack() as stack:
            for subject, callback in listeners.items():
                subscription = await self._client.subscribe(subject, cb=callback)
                stack.push_async_callback(_unsubscribed, subscription)
            yield inbox

    async def _last_seq(self, stream: str) -> int:
        return int((await self._js.stream_info(stream)).state.last_seq)

    async def _end(self, request: _Request, first: int) -> Mapping[str, Any]:
        """The meta message in the stream, after the sequence from before the request."""
        places = dict.fromkeys(
            (meta_subject(request.token), snapshot_error_subject(request.token)), first
        )
        while True:
            # News may be lost with a connection; the stream is read now and then in any case.
            await request.news_within(LOOK_S)
            heed_cancellation()
            for subject in places:
                async for sequence, body in self._messages(subject, places[subject]):
                    places[subject] = sequence + 1
                    # Snapshots of other requests end on these subjects, too.
                    if body.get("snapshot_id") == request.snapshot_id and "error" in body:
                        raise SnapshotError(
                            f"the snapshot failed: {str(body['error']).rstrip('.')}"
                        )
                    if body.get("snapshot_id") == request.snapshot_id:
                        return body

    async def _messages(
        self, subject: str, first: int
    ) -> AsyncIterator[tuple[int, Mapping[str, Any]]]:
        with contextlib.suppress(NotFoundError):
            while True:
                message = await self._js.get_msg(self._init, first, subject=subject, next=True)
                first = int(message.seq or 0) + 1
                yield first - 1, decode(message.data or b"")

    async def chunk(self, snapshot: StoredSnapshot, number: int) -> Sequence[Mapping[str, Any]]:
        """The rows of one chunk, nothing lost."""
        return exact.rows(await self.chunk_body(snapshot, number))

    async def chunk_body(self, snapshot: StoredSnapshot, number: int) -> Mapping[str, Any]:
        """One chunk as the contract defines it."""
        subject = chunk_subject(snapshot.token, snapshot.snapshot_id, number)
        try:
            # Any replica may answer: a chunk never changes once it is stored.
            message = await self._js.get_last_msg(self._init, subject, direct=True)
        except NotFoundError as error:
            raise SnapshotError(
                f"chunk {number} of {snapshot.snapshot_id} is no longer in the stream"
            ) from error
        return await whole(self._js, decode(message.data or b""))

    async def place(self, snapshot: StoredSnapshot) -> int:
        """The sequence behind which everything is that the snapshot lacks, in the stream as it is
        now.
        """
        if snapshot.note is not None:
            return snapshot.note
        # Without a note from before the request, only the stream's beginning can prove that nothing
        # is missing.
        first = int((await self._js.stream_info(self._stream)).state.first_seq)
        if first <= 1:
            return 0
        with contextlib.suppress(NotFoundError):
            message = await self._js.get_msg(self._stream, first)
            event = (
                await events_of(
                    self._dictionaries, message.data or b"", message.subject or "", first
                )
            )[0]
            # The stream begins before the snapshot, so it has everything after it.
            if event.source == snapshot.source and event.position.lsn < snapshot.lsn:
                return first - 1
        raise SnapshotError(
            "the stream does not reach back to a snapshot that others had requested"
        )


@dataclass(slots=True)
class _Request:
    """The messages about one request."""

    token: str
    progress: Progress
    snapshot_id: str = ""
    status: str = ""
    refusal: HeadraceError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    heard_at: float = field(default_factory=time.monotonic)

    async def answered(self, message: Msg) -> None:
        """An answer; another one if an interrupted snapshot started again."""
        if (message.headers or {}).get("Status"):
            self.refusal = SnapshotError(
                "no snapshot-responder answers", remedy="Start `headrace snapshot-responder`."
            )
        else:
            answer = decode(message.data)
            self.snapshot_id = str(answer["snapshot_id"])
            self.status = str(answer["status"])
            self.refusal = _refusal(self.token, answer)
        self.heard_at = time.monotonic()
        self.news.set()

    async def progressed(self, message: Msg) -> None:
        self.heard_at = time.monotonic()
        body = decode(message.data)
        rows = int(body["rows"])
        estimated = int(body["rows_estimated"])
        if rows >= estimated and (done := int(body.get("tasks_done", 0))):
            # A table that was never analyzed: assume as many rows for each task as there were so
            # far.
            estimated = rows * int(body["tasks"]) // done
        self.progress(rows, estimated)

    async def until_answered(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                # Progress of another request for the table wakes it up as well.
                while not self.status:
                    await self.news_within(ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise SnapshotError("the snapshot-responder did not answer in time") from error

    async def news_within(self, wait_s: float) -> None:
        """Wait until a message arrives, or the time is over."""
        await wait_for(self.news, wait_s)
        self.news.clear()
        if self.refusal is not None:
            raise self.refusal
        if time.monotonic() - self.heard_at > SILENCE_S:
            raise SnapshotError(f"nothing was received about a snapshot for {SILENCE_S:g} s")


def _refusal(token: str, answer: Mapping[str, Any]) -> HeadraceError | None:
    if answer.get("status") in {"accepted", "joined"}:
        return None
    reason = str(answer.get("reason")).rstrip(".")
    # Without an id nobody has judged it.
    if answer.get("snapshot_id"):
        return SnapshotRefusedError(f"no snapshot of {token}: {reason}")
    return SnapshotError(reason)


async def _unsubscribed(subscription: Subscription) -> None:
    with contextlib.suppress(nats.errors.Error):
        await subscription.unsubscribe()
