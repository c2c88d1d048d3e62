"""One Spark task: COPYs ranges of a table on the common snapshot and publishes chunks to JetStream.

Runs in Spark's Python workers, on any machine. Takes credentials from that machine's environment
and returns only counts. Promises: every chunk that it counts is acknowledged by JetStream, and in
the stream exactly once, even after an earlier attempt of the same task.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import uvloop
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import APIError

from headrace.contract.subjects_and_ids import chunk_subject
from headrace.contract.values import Encoding
from headrace.errors import HeadraceError, leaves
from headrace.jetstream.connection import connect_once
from headrace.jetstream.object_store import ObjectStore
from headrace.postgres.connection import explained
from headrace.process.failpoint import failpoint
from headrace.settings import Settings, load
from headrace.snapshot_responder import chunk_permits
from headrace.snapshot_responder.chunks import (
    Block,
    Chunk,
    ChunkCutter,
    block_of,
    key_only,
    message,
)
from headrace.snapshot_responder.packed_rows import PackedRows
from headrace.snapshot_responder.task_result import TaskResult
from headrace.spark.csv_rows import CsvRows
from headrace.spark.plan import SnapshotPlan
from headrace.spark.range_receiver import RangeReceiver, importing
from headrace.spark.ranges import PageRange
from headrace.spark.session import COPY_SESSION

# Below this size, the fixed cost of a block becomes noticeable.
PARSE_BYTES = 4 * 1024 * 1024
# Chunks that are being published while PostgreSQL sends more: this, and not the size of the range,
# bounds the memory of a task.
IN_FLIGHT_MAX = 4
PUBLISH_TIMEOUT_S = 10.0
_APPLICATION = "headrace snapshot task"
# How long one chunk may be refused or unanswered. A leader election or a restart of the server
# takes less.
PUBLISH_PATIENCE_S = 60.0
_RETRY_S = 0.25
# JetStream's code for a violated `Nats-Expected-Last-Subject-Sequence`.
_ALREADY_THERE = 10071


class PublishError(HeadraceError):
    """JetStream doesn't accept a chunk."""

    retry = True
    remedy = (
        "Check the stream of snapshots (HEADRACE_INIT_STREAM): its limits, its storage, the "
        "user's permissions for it."
    )


class GaveWayError(HeadraceError):
    """Another session waits for an exclusive lock on the table, and all readers behind it: the
    snapshot gives way.
    """

    remedy = (
        "Request it again when the ALTER, TRUNCATE or other exclusive lock on the table is "
        "finished."
    )


class CopyEndedError(HeadraceError):
    """The source cancelled a COPY that took too long, or an administrator did."""

    remedy = (
        "Raise HEADRACE_SNAPSHOT_COPY_TIMEOUT_S, or lower HEADRACE_SNAPSHOT_RANGE_BYTES, and "
        "request it again."
    )


def run_task(packed_plan: bytes, task: int) -> bytes:
    """The whole task, blocking; its packed result."""
    # Rows are millions of small objects without cycles: garbage collection would take as long as
    # all the rest.
    gc.disable()
    try:
        plan = SnapshotPlan.unpack(packed_plan)
        return uvloop.run(_run(plan, task, load(os.environ))).pack()
    finally:
        gc.enable()


async def _run(plan: SnapshotPlan, task: int, settings: Settings) -> TaskResult:
    chunks = 0
    rows = 0
    async with _connected(plan, settings) as (connection, client):
        for page_range in plan.tasks[task]:
            copy = RangeCopy(plan, page_range, client)
            try:
                await copy.run(connection)
            except asyncpg.LockNotAvailableError as error:
                raise GaveWayError(
                    f"another session waits for an exclusive lock on {page_range.relation}"
                ) from error
            except asyncpg.QueryCanceledError as error:
                raise CopyEndedError(
                    f"PostgreSQL ended the COPY of {page_range.relation}: {error}"
                ) from error
            except asyncpg.PostgresError as error:
                raise explained(error.sqlstate, str(error), settings.postgres) from error
            chunks = chunks + copy.chunks
            rows = rows + copy.rows
    return TaskResult(chunks, rows)


@contextlib.asynccontextmanager
async def _connected(
    plan: SnapshotPlan, settings: Settings
) -> AsyncIterator[tuple[asyncpg.Connection, Client]]:
    timeout_ms = round(settings.snapshot.copy_timeout_s * 1000)
    session = {**COPY_SESSION, "statement_timeout": str(timeout_ms)}
    async with importing(settings, plan.exported, _APPLICATION, session) as connection:
        # After the snapshot was imported: a task that comes too late for it needs no NATS.
        client = await connect_once(settings.nats, "headrace-snapshot-task")
        try:
            yield connection, client
        finally:
            await client.close()


def _encoder(plan: SnapshotPlan) -> Callable[[bytes], Block]:
    """A function that turns COPY's CSV into encoded rows."""
    names = [column.name for column in plan.columns]
    converters = plan.converters()
    if plan.encoding is Encoding.MSGPACK:
        return PackedRows(names, converters).block
    read = CsvRows(names, converters).rows

    def block(data: bytes) -> Block:
        rows, exact = read(data)
        return block_of(rows, plan.encoding, exact)

    return block


class RangeCopy:
    """One range, from COPY to acknowledged chunks."""

    def __init__(self, plan: SnapshotPlan, page_range: PageRange, client: Client) -> None:
        self.chunks = 0
        self.rows = 0
        self._plan = plan
        self._range = page_range
        self._client = client
        self._js: JetStreamContext = client.jetstream(timeout=PUBLISH_TIMEOUT_S)
        self._large = ObjectStore(self._js, plan.large_bucket, client.max_payload)
        self._block = _encoder(plan)
        self._cutter = ChunkCutter(plan.chunk_rows_max, plan.payload_bytes_max)
        # The number of chunks that were cut so far: a chunk's index within its range.
        self._begun = 0
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        # By chunk number: when its patience ends. Kept between attempts.
        self._deadlines: dict[int, float] = {}
        self._sends = asyncio.TaskGroup()

    async def run(self, connection: asyncpg.Connection) -> None:
        try:
            async with self._sends:
                await self._copy(connection)
        except BaseExceptionGroup as group:
            # One cause: what else failed was cancelled by it, or failed for the same reason.
            raise next(leaves(group)) from group

    async def _copy(self, connection: asyncpg.Connection) -> None:
        await RangeReceiver(self._plan, PARSE_BYTES, self._parse).copy(connection, self._range)
        for chunk in self._cutter.finish():
            await self._begin(chunk)

    async def _parse(self, data: bytes) -> None:
        chunks = self._cutter.feed(self._block(data))
        # Released before its content is sent: it may be one large row.
        del data
        for chunk in chunks:
            await self._begin(chunk)

    async def _begin(self, chunk: Chunk) -> None:
        index = self._begun
        self._begun = self._begun + 1
        if chunk.large:
            # Not in parallel with others: one row may take all the memory meant for several.
            async with self._room:
                await self._send(index, chunk)
            return
        # asyncpg waits for this callback, and PostgreSQL for asyncpg: a slow stream slows down the
        # COPY, and nothing piles up.
        await self._room.acquire()
        send = self._sends.create_task(self._send(index, chunk), name=f"chunk-{index}")
        send.add_done_callback(lambda _: self._room.release())

    async def _send(self, index: int, chunk: Chunk) -> None:
        plan = self._plan
        number = await self._leave(index, chunk)
        head: dict[str, Any] = {
            "table": plan.table,
            "operation": "snapshot",
            "snapshot_id": plan.snapshot_id,
            "chunk": number,
            "lsn": plan.lsn,
        }
        if chunk.large:
            payload = await self._refer(number, head, chunk)
        else:
            payload = message(head, chunk, plan.encoding, zstd=plan.zstd)
        while not await self._publish(number, payload):
            await asyncio.sleep(_RETRY_S)
            # Time has passed, in which the snapshot may have been cancelled.
            await self._leave(index, chunk)
        self.chunks += 1
        self.rows += chunk.rows

    async def _leave(self, index: int, chunk: Chunk) -> int:
        """The chunk's number, which is the permission to publish it now."""
        size = len(chunk.body)
        return await chunk_permits.ask(
            self._client, self._plan.permits, self._range.index, index, chunk.rows, size
        )

    async def _refer(self, number: int, head: dict[str, Any], chunk: Chunk) -> bytes:
        """Store the whole message in the object store; returns a message that refers to it."""
        name = f"{self._plan.snapshot_id}-{number}"
        size = await self._keep(
            name, message(head, chunk, self._plan.encoding, zstd=self._plan.zstd)
        )
        reference = {"bucket": self._plan.large_bucket, "name": name, "bytes": size}
        small = key_only(chunk, self._plan.key, self._plan.encoding)
        return message(
            {**head, "reference": reference}, small, self._plan.encoding, zstd=self._plan.zstd
        )

    async def _keep(self, name: str, payload: bytes) -> int:
        await self._large.put(name, payload)
        return len(payload)

    async def _publish(self, number: int, payload: bytes) -> bool:
        """One attempt; returns whether the chunk is stored. If it was already, an earlier attempt
        stored the same rows.
        """
        subject = chunk_subject(self._plan.token, self._plan.snapshot_id, number)
        headers: dict[str, str] = {
            Header.MSG_ID: f"{self._plan.snapshot_id}-{number}",
            # Each chunk has a separate subject, so the first one stored there stays the only one.
            # The duplicate window may have ended since an earlier attempt.
            Header.EXPECTED_LAST_SUBJECT_SEQUENCE: "0",
        }
        if self._plan.zstd:
            headers["Content-Encoding"] = "zstd"
        deadline = self._deadlines.setdefault(number, time.monotonic() + PUBLISH_PATIENCE_S)
        try:
            failpoint("snapshot_task.before_chunk")
            await self._js.publish(subject, payload, headers=headers)
            failpoint("snapshot_task.after_chunk")
        except APIError as error:
            if error.err_code != _ALREADY_THERE:
                if time.monotonic() > deadline:
                    raise PublishError(f"chunk {number} is refused: {error.description}") from error
                return False
        except (NatsError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise PublishError(f"chunk {number} is not acknowledged: {error}") from error
            return False
        del self._deadlines[number]
        return True
