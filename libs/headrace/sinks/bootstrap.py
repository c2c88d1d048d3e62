"""Copies the tables of a new sink: a snapshot of each at an exact LSN, then the changes after it.

Promises: a row of a snapshot is an INSERT with `snapshot: true`, written and committed chunk by
chunk, with how far the copy is in the marks: a restart continues with the next chunk of the same
snapshot. A change that committed before a table's LSN is in its snapshot, and is not delivered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace import log as logs
from headrace.consumer import Event, Watermark
from headrace.consumer.watermark import Watermarks
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import split_table_token
from headrace.lsn import ORIGIN, Position
from headrace.mirror.published import Published
from headrace.mirror.snapshots import SnapshotError, Snapshots, StoredSnapshot
from headrace.process.failpoint import failpoint
from headrace.settings import StreamSettings
from headrace.sinks.port import SEEN

log = logs.logger("sink")

COPY = "copy"

# Writes events as one transaction, and commits them with the marks.
Deliver = Callable[[Sequence[Event], Watermarks], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Copy:
    """A table's copy, as the marks have it."""

    token: str
    # Empty before the snapshot is taken.
    snapshot_id: str = ""
    lsn: int = 0
    chunks_done: int = 0
    chunks: int = 0

    @property
    def is_done(self) -> bool:
        return bool(self.snapshot_id) and self.chunks_done >= self.chunks

    @property
    def lane(self) -> str:
        return f"{COPY}/{self.token}/{self.snapshot_id}"

    @property
    def mark(self) -> Watermark:
        return Watermark(Position(self.lsn, self.chunks_done), self.chunks)


def copies(marks: Mapping[str, Watermark]) -> list[Copy]:
    """The copies that the marks name."""
    found = []
    for lane, mark in marks.items():
        kind, _, rest = lane.partition("/")
        if kind == COPY and rest:
            token, _, snapshot_id = rest.partition("/")
            found.append(
                Copy(token, snapshot_id, mark.position.lsn, mark.position.seq, mark.stream_seq)
            )
    return sorted(found, key=lambda copy: copy.token)


def copied_lsns(marks: Mapping[str, Watermark]) -> dict[tuple[str, str], int]:
    """By table: the LSN before which its snapshot has everything."""
    return {split_table_token(copy.token): copy.lsn for copy in copies(marks) if copy.lsn}


@dataclass(slots=True)
class TableCopies:
    """The copies of one sink."""

    client: Client
    streams: StreamSettings
    source: str
    takes: Callable[[str, str], bool]

    async def begin(self) -> Watermarks:
        """The marks of a sink that is about to copy every table that it takes."""
        js = self.client.jetstream()
        # Before the first snapshot: what follows in the stream is what the snapshots lack.
        seen_seq = int((await js.stream_info(self.streams.cdc)).state.last_seq)
        marks: Watermarks = {SEEN: Watermark(ORIGIN, seen_seq)}
        for token in await self._tokens(js):
            marks[Copy(token).lane] = Copy(token).mark
        return marks

    async def _tokens(self, js: JetStreamContext) -> list[str]:
        tokens = await Published(self.client, self.streams.schemas).tokens(
            lambda token: self.takes(*split_table_token(token))
        )
        bucket = await js.key_value(self.streams.schemas)
        found = []
        for token in tokens:
            try:
                entry = await bucket.get(token)
            # The table was dropped after it was listed.
            except NotFoundError:
                continue
            # Suites may share the bucket.
            if decode(entry.value or b"").get("source", self.source) == self.source:
                found.append(token)
        return found

    async def run(self, marks: Watermarks, deliver: Deliver) -> None:
        """Copy what the marks say is not copied yet."""
        snapshots = Snapshots(self.client, self.streams.cdc, self.streams.init, self.streams.state)
        for copy in copies(marks):
            if not copy.is_done:
                await self._copy(snapshots, copy, marks, deliver)

    async def _copy(
        self, snapshots: Snapshots, copy: Copy, marks: Watermarks, deliver: Deliver
    ) -> None:
        # The marks have all that is needed to continue a snapshot that the stream still stores.
        if copy.snapshot_id:
            taken = StoredSnapshot(
                copy.snapshot_id, copy.token, copy.lsn, copy.chunks, 0, self.source, None
            )
        else:
            taken = await snapshots.take(copy.token, lambda _rows, _estimated: None)
            # The lane's name contains the snapshot, so this is another lane than the one below.
            del marks[copy.lane]
            log.info("sink_copies", table=copy.token, rows=taken.row_count)
            copy = Copy(copy.token, taken.snapshot_id, taken.lsn, 0, taken.batch_count)
            marks[copy.lane] = copy.mark
            # Before the first chunk: a restart continues this snapshot, and takes no second one.
            await deliver((), marks)
        key = await self._key(copy.token)
        for number in range(copy.chunks_done, copy.chunks):
            try:
                body = await snapshots.chunk_body(taken, number)
            except SnapshotError:
                # It was removed since: the copy starts again, and its rows come again.
                del marks[copy.lane]
                marks[Copy(copy.token).lane] = Copy(copy.token).mark
                await deliver((), marks)
                raise
            copy = replace(copy, chunks_done=number + 1)
            marks[copy.lane] = copy.mark
            await deliver(tuple(_events(taken, key, number, body)), marks)
            failpoint("sink.chunk_copied")

    async def _key(self, token: str) -> tuple[str, ...]:
        found = await described(self.client.jetstream(), self.streams.schemas, token)
        return tuple((found or {}).get("primary_key") or ())


async def described(js: JetStreamContext, bucket: str, token: str) -> Mapping[str, Any] | None:
    """The newest published description of a table; None if there is none."""
    try:
        entry = await (await js.key_value(bucket)).get(token)
    except NotFoundError:
        return None
    found: Mapping[str, Any] = decode(entry.value or b"")
    return found


def _events(
    taken: StoredSnapshot, key: tuple[str, ...], number: int, body: Mapping[str, Any]
) -> Iterator[Event]:
    """The rows of a chunk as inserts."""
    schema, table = split_table_token(taken.token)
    texts = body.get("exact") or {}
    for index, row in enumerate(body["data"]):
        payload: dict[str, Any] = {
            "subject": f"snapshot.{taken.token}",
            "table": table,
            "operation": "INSERT",
            "msg_id": f"{taken.snapshot_id}-{number}-{index}",
            "data": row,
            "schema": schema,
            "source": taken.source,
            "key": list(key),
            "lsn": taken.lsn,
            "tx": {"xid": 0, "lsn": taken.lsn, "ts": None, "seq": 0, "last": False},
            "snapshot": True,
        }
        # By the row's number as a text, because JSON has no other keys.
        if exact := texts.get(str(index)):
            payload["exact"] = exact
        yield Event(
            taken.source,
            schema,
            table,
            "INSERT",
            Position(taken.lsn, 0),
            payload,
            str(payload["subject"]),
            0,
            taken.source,
            closes=True,
        )
