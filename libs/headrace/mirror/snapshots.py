"""A table's snapshot as a consumer gets it: asked for, waited for, read chunk by chunk.

Promises that a snapshot which it names is whole: its meta message is there, and each chunk is of it. Never mixes the
chunks of two.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from headrace.consumer.reference import whole
from headrace.contract.events import decode
from headrace.contract.naming import (
    chunk_subject,
    meta_subject,
    snapshot_error_subject,
    snapshot_progress_subject,
    snapshot_request_subject,
)
from headrace.errors import HeadraceError
from headrace.lsn import parse_lsn

ANSWER_TIMEOUT_S = 10.0
FETCH_S = 2.0
# With neither progress nor a result for so long, it is asked again.
SILENCE_S = 300.0
OPTIONS = b'{"values": "typed"}'

Progress = Callable[[int, int], None]


class SnapshotError(HeadraceError):
    """There is no snapshot now."""

    retry = True
    remedy = "Ask again."


class RefusedError(HeadraceError):
    """The table can't be snapshotted."""

    remedy = "Name a table of the publication."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot. `note`: the stream's last sequence before it was asked for; None if others had asked."""

    snapshot_id: str
    token: str
    lsn: int
    batch_count: int
    row_count: int
    source: str
    note: int | None


class Snapshots:
    def __init__(self, client: Client, stream: str, init: str) -> None:
        self._client = client
        self._js = client.jetstream()
        self._stream = stream
        self._init = init

    async def take(self, token: str, progress: Progress, options: bytes = OPTIONS) -> Snapshot:
        """Ask for a table, and wait for its snapshot; `progress` hears of rows and estimated rows meanwhile."""
        config = ConsumerConfig(
            filter_subjects=[meta_subject(token), snapshot_error_subject(token)],
            deliver_policy=DeliverPolicy.NEW,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=60,
        )
        results = await self._js.pull_subscribe("", stream=self._init, config=config)

        silence = _Silence()

        async def tell(message: Msg) -> None:
            silence.broken()
            body = decode(message.data)
            progress(int(body["rows"]), int(body["rows_estimated"]))

        heard = await self._client.subscribe(snapshot_progress_subject(token), cb=tell)
        try:
            note = int((await self._js.stream_info(self._stream)).state.last_seq)
            answer = await self._ask(token, options)
            body = await _result(results, str(answer["snapshot_id"]), silence)
        finally:
            with contextlib.suppress(nats.errors.Error):
                await heard.unsubscribe()
                await results.unsubscribe()
        return Snapshot(
            str(body["snapshot_id"]),
            token,
            parse_lsn(str(body["lsn"])),
            int(body["batch_count"]),
            int(body["row_count"]),
            str(body["source"]),
            note if answer["status"] == "accepted" else None,
        )

    async def _ask(self, token: str, options: bytes) -> Mapping[str, Any]:
        try:
            message = await self._client.request(snapshot_request_subject(token), options, timeout=ANSWER_TIMEOUT_S)
        except nats.errors.NoRespondersError as error:
            raise SnapshotError(
                "no snapshot-responder answers", remedy="Start `headrace snapshot-responder`."
            ) from error
        except (TimeoutError, nats.errors.TimeoutError) as error:
            raise SnapshotError("the snapshot-responder did not answer in time") from error
        answer: Mapping[str, Any] = decode(message.data)
        if answer.get("status") not in {"accepted", "joined"}:
            raise RefusedError(f"no snapshot of {token}: {str(answer.get('reason')).rstrip('.')}")
        return answer

    async def chunk(self, snapshot: Snapshot, number: int) -> Sequence[Mapping[str, Any]]:
        """The rows of one chunk."""
        subject = chunk_subject(snapshot.token, snapshot.snapshot_id, number)
        try:
            message = await self._js.get_last_msg(self._init, subject, direct=True)
        except NotFoundError as error:
            raise SnapshotError(f"chunk {number} of {snapshot.snapshot_id} is not in the stream any more") from error
        payload = await whole(self._js, decode(message.data or b""))
        rows: Sequence[Mapping[str, Any]] = payload["data"]
        return rows

    async def place(self, snapshot: Snapshot) -> int:
        """The sequence behind which everything is that the snapshot lacks, in the stream as it is now."""
        if snapshot.note is not None:
            return snapshot.note
        first = int((await self._js.stream_info(self._stream)).state.first_seq)
        if first <= 1:
            return 0
        with contextlib.suppress(NotFoundError):
            message = await self._js.get_msg(self._stream, first)
            decoded = decode(message.data or b"")
            event = decoded[0] if isinstance(decoded, list) else decoded
            if event["source"] == snapshot.source and int(event["tx"]["lsn"]) < snapshot.lsn:
                return first - 1
        raise SnapshotError("the stream does not reach back to a snapshot that others had asked for")


class _Silence:
    def __init__(self) -> None:
        self.broken()

    def broken(self) -> None:
        self._since = time.monotonic()

    def check(self) -> None:
        if time.monotonic() - self._since > SILENCE_S:
            raise SnapshotError(f"nothing was heard of a snapshot for {SILENCE_S:g} s")


async def _result(results: Any, snapshot_id: str, silence: _Silence) -> Mapping[str, Any]:
    while True:
        silence.check()
        with contextlib.suppress(TimeoutError, nats.errors.TimeoutError):
            for message in await results.fetch(10, timeout=FETCH_S):
                body: Mapping[str, Any] = decode(message.data)
                if body.get("snapshot_id") == snapshot_id:
                    if "error" in body:
                        raise SnapshotError(f"the snapshot failed: {str(body['error']).rstrip('.')}")
                    return body
