"""Receives requests: checks, answers and joins them, and holds them until their snapshot has ended.

A request stays in the work queue until its snapshot has a meta or an error message, so it outlives
the responder; a small state record tells a restarted responder which snapshots were started. An
interrupted snapshot gets an error under its id, and a new attempt gets a new id: two attempts show
different moments, and their chunks must never mix. A request for another suite's table is passed on
to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import (
    PUBLIC,
    SNAPSHOT,
    SNAPSHOT_CANCEL_SUBJECTS,
    SNAPSHOT_REQUEST_SUBJECTS,
    table_token,
)
from headrace.errors import DecodeError, HeadraceError, describe
from headrace.jetstream.state import Cell
from headrace.metrics.counters import Counters, one_of
from headrace.metrics.figure import SPARK_STATES
from headrace.postgres.connection import PostgresUnreachableError
from headrace.process.failpoint import failpoint
from headrace.process.lifecycle import Scope
from headrace.settings import Settings
from headrace.snapshot_responder import answering
from headrace.snapshot_responder.answering import RequestAnswers, token_of
from headrace.snapshot_responder.chunk_permits import Throttle
from headrace.snapshot_responder.drivers import Drivers
from headrace.snapshot_responder.other_suites import Neighbours
from headrace.snapshot_responder.request_pairing import Answer
from headrace.snapshot_responder.results import Results
from headrace.snapshot_responder.snapshot import Snapshot
from headrace.spark.request import REQUEST_BYTES_MAX, RequestError, SnapshotRequest, parse_request
from headrace.spark.source import TableRefusedError, find_table
from headrace.timing.backoff import Backoff

log = logs.logger("snapshot-responder")

RETRY_S = 0.5
RETRY_S_MAX = 10.0
ACK_TIMEOUT_S = 5.0
# A cancelled snapshot may still have chunks on their way; its caller is answered when they are
# purged.
CANCEL_TIMEOUT_S = 30.0
_CANCELLED = "cancelled"


@dataclass(slots=True)
class Running:
    """A snapshot that was accepted and has not ended, and the requests that wait for it."""

    request: SnapshotRequest
    snapshot_id: str
    # The state of the first request, under its sequence in the work queue: whether a snapshot was
    # started for it, under which ID, and at which attempt.
    cell: Cell
    # Counted over restarts of the responder: a table that kills it must not do so forever.
    attempt: int
    # By sequence in the work queue: requests that joined are acknowledged together, when it ends.
    requests: dict[int, Msg] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    # A cancellation was requested. Taken back if the snapshot completes nevertheless.
    cancelled: bool = False
    # Whether its error message may have been sent already.
    failed: bool = False
    # The snapshot that is being copied now.
    snapshot: Snapshot | None = None

    @property
    def without_spark(self) -> bool:
        return self.snapshot is not None and self.snapshot.is_local

    @property
    def joinable(self) -> bool:
        """Whether a new request would see its end, which may be read before we know that it is
        stored.
        """
        return not (
            self.cancelled or self.failed or (self.snapshot is not None and self.snapshot.ending)
        )


def new_snapshot_id() -> str:
    return f"snap-{int(time.time())}-{secrets.token_hex(4)}"


class SnapshotRequests:
    def __init__(
        self, scope: Scope, settings: Settings, client: Client, drivers: Drivers, state: KeyValue
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._client = client
        self._drivers = drivers
        self._state = state
        self._results = Results(client, settings)
        self._neighbours = Neighbours(client, settings)
        self._throttle = Throttle(settings.snapshot.rate_bytes_s_max)
        self._answers = RequestAnswers(client, settings, self._neighbours)
        # By snapshot id.
        self._running: dict[str, Running] = {}
        # Kept here, because the event loop itself holds only weak references to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancellations: set[asyncio.Task[None]] = set()
        # The service is stopping: a cancelled task then gives its request back to the queue.
        self._closing = False
        self._turns = asyncio.Semaphore(settings.snapshot.parallel_max)

    @property
    def held(self) -> int:
        """The number of requests that wait for the end of their snapshots."""
        return sum(len(running.requests) for running in self._running.values())

    async def open(self) -> None:
        """Subscribe to reply subjects and cancellations, which bypass the work queue."""
        await self._client.subscribe(SNAPSHOT_REQUEST_SUBJECTS, cb=self._answers.seen)
        await self._client.subscribe(SNAPSHOT_CANCEL_SUBJECTS, cb=self._cancellation)
        # The server must know the subscription before the end of the queue is read: a request
        # stored after that is certain to have been seen.
        await self._client.flush()
        await self._answers.open()

    def refresh(self, stats: Counters) -> None:
        """Refresh the metrics of running snapshots."""
        copied = {
            running.request.token: running.snapshot
            for running in self._running.values()
            if running.snapshot
        }
        stats.set("snapshots_running", len(copied))
        stats.set("snapshot_requests_held", self.held)
        stats.set_series(
            "snapshot_progress_rows",
            {token: snapshot.numbers.rows for token, snapshot in copied.items()},
        )
        stats.set_series(
            "snapshot_estimated_rows",
            {
                token: max(snapshot.rows_estimated, snapshot.numbers.rows)
                for token, snapshot in copied.items()
            },
        )
        stats.set_series("spark_state", one_of(SPARK_STATES, self._drivers.spark.state))
        stats.set("spark_losses", logs.told.get("warning spark_lost", 0))

    async def take(self, message: Msg) -> None:
        """A request from the work queue."""
        sequence = message.metadata.sequence.stream
        for running in self._running.values():
            if sequence in running.requests:
                # An acknowledgement must name its latest delivery.
                running.requests[sequence] = message
                return
        answer = await self._judge(message, sequence)
        if answer is not None:
            await self._answers.answer(message, sequence, answer)

    async def keep(self) -> None:
        """Keep held requests from being redelivered, and answer those that were never stored."""
        while True:
            await self._answers.expire()
            for running in list(self._running.values()):
                for message in running.requests.values():
                    with contextlib.suppress(NatsError):
                        await message.in_progress()
            await asyncio.sleep(
                min(self._settings.snapshot.ack_wait_s / 4, answering.PAIRING_PATIENCE_S)
            )

    async def close(self) -> None:
        """Return every unfinished request to the work queue."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for running in self._running.values():
            for message in running.requests.values():
                with contextlib.suppress(NatsError):
                    await message.nak()

    async def _cancellation(self, message: Msg) -> None:
        """Not in the callback: a slow cancellation must not hold up the next."""
        task = asyncio.create_task(self._cancel(message), name="snapshot-cancellation")
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)

    async def _cancel(self, message: Msg) -> None:
        """End the token's snapshots, or the one that is named; the answer comes when nothing of
        them comes any more.
        """
        token = token_of(message.subject)
        wanted = _named(message.data)
        found = [
            running
            for running in self._running.values()
            if running.request.token == token and wanted in {None, running.snapshot_id}
        ]
        for running in found:
            running.cancelled = True
            if running.task is not None:
                running.task.cancel()
        if found:
            await asyncio.wait(
                [running.task for running in found if running.task], timeout=CANCEL_TIMEOUT_S
            )
        with contextlib.suppress(NatsError, TimeoutError):
            if found or not await self._neighbours.have(token):
                await self._answers.send(
                    message.reply, {"cancelled": [r.snapshot_id for r in found if r.cancelled]}
                )

    async def _judge(self, message: Msg, sequence: int) -> Answer | None:
        """Accept, join or reject; None if the request's snapshot is stored already, or it is for
        another suite.
        """
        try:
            request = parse_request(message.subject, message.data)
        except RequestError as error:
            raw = message.subject.removeprefix(f"{SNAPSHOT}.request.")
            return await self._reject(message, table_token(PUBLIC, raw), raw, error)
        # An equal snapshot runs, but this request was promised a separate one before a restart.
        # Joining would leave that id without an end.
        if self._equal(request) and await self._begun_before(sequence):
            return await self._judge_table(message, sequence, request)
        if running := self._equal(request):
            running.requests[sequence] = message
            self._scope.health.stats.count("snapshots_requested")
            return Answer(running.snapshot_id, "joined")
        return await self._judge_table(message, sequence, request)

    def _equal(self, request: SnapshotRequest) -> Running | None:
        """A running snapshot that it can join."""
        return next(
            (one for one in self._running.values() if one.request == request and one.joinable), None
        )

    async def _begun_before(self, sequence: int) -> bool:
        """Whether an earlier responder accepted this request: that snapshot has to end under its
        own id.
        """
        return await self._cell(sequence).read() is not None

    def _cell(self, sequence: int) -> Cell:
        return Cell(self._state, f"snapshot.{self._settings.source.slot}.{sequence}")

    async def _judge_table(
        self, message: Msg, sequence: int, request: SnapshotRequest
    ) -> Answer | None:
        refusal: HeadraceError | None = None
        try:
            await find_table(self._settings, request)
        except HeadraceError as error:
            refusal = error
        # The table may be in another suite's publication, whose responder then takes the request.
        if refusal is not None and await self._neighbours.have(request.token):
            await self._neighbours.hand_on(message)
            return None
        # An unreachable source says nothing about the table: the request is accepted, and its
        # snapshot waits.
        if refusal is None or isinstance(refusal, PostgresUnreachableError):
            reason = None if refusal is None else str(refusal)
            return await self._accept(message, sequence, request, reason)
        return await self._reject(message, request.token, request.table, refusal)

    async def _reject(self, message: Msg, token: str, table: str, error: HeadraceError) -> Answer:
        self._scope.health.stats.count("snapshots_requested")
        available = error.available if isinstance(error, TableRefusedError) else ()
        snapshot_id = new_snapshot_id()
        self._scope.health.stats.count("snapshots_failed")
        # Stored before the request leaves the queue: after a crash in between it is rejected once
        # more, instead of never.
        await self._results.fail(token, table, snapshot_id, str(error), available)
        await _acknowledge(message)
        return Answer(snapshot_id, "rejected", str(error))

    async def _accept(
        self, message: Msg, sequence: int, request: SnapshotRequest, reason: str | None
    ) -> Answer | None:
        cell = self._cell(sequence)
        before = await cell.read()
        if (
            before is not None
            and before["running"]
            and not await self._interrupted(message, request, cell)
        ):
            return None
        if before is None:
            attempt = 1
        else:
            attempt = int(before["attempt"]) + int(before["running"])
        if before and not before["running"]:
            # Accepted and not started: nothing of it is in the stream, so the promised id can be
            # used.
            snapshot_id = str(before["snapshot_id"])
        else:
            snapshot_id = new_snapshot_id()
        running = Running(request, snapshot_id, cell, attempt, {sequence: message})
        # Before the answer: an id that a caller knows must be known to the next responder.
        await _note(running, running_now=False)
        self._scope.health.stats.count("snapshots_requested")
        self._running[snapshot_id] = running
        task = self._scope.tasks.create_task(self._serve(running), name=f"snapshot-{snapshot_id}")
        running.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        log.info("snapshot_accepted", snapshot_id=snapshot_id, token=request.token, attempt=attempt)
        return Answer(snapshot_id, "accepted", reason)

    async def _interrupted(self, message: Msg, request: SnapshotRequest, cell: Cell) -> bool:
        """End an earlier responder's snapshot; returns whether another attempt is due."""
        assert cell.value is not None
        snapshot_id = str(cell.value["snapshot_id"])
        attempt = int(cell.value["attempt"])
        # The crash may have come between the meta message and the acknowledgement. The stream
        # decides.
        completed = await self._results.completed(request.token, snapshot_id)
        cancelled = bool(cell.value.get("cancelled"))
        last = cancelled or attempt >= self._settings.snapshot.attempts_max
        if not completed:
            if last:
                then = "there is no further attempt"
            else:
                then = "it begins again under a new id"
            if cancelled:
                reason = _CANCELLED
            else:
                reason = f"interrupted at attempt {attempt}; {then}"
            # The error comes before the purge: a reader that waits for chunks must first learn that
            # no further chunk follows.
            await self._results.fail(request.token, request.table, snapshot_id, reason)
            failpoint("responder.told_interrupted")
            await self._results.purge(request.token, snapshot_id)
        if completed or last:
            await _acknowledge(message)
            await cell.delete()
            return False
        return True

    async def _serve(self, running: Running) -> None:
        """Run a snapshot; every end but a stop of the service acknowledges its requests."""
        try:
            await self._attempt(running)
        except asyncio.CancelledError:
            # Stopping leaves the request in the queue, for the next responder.
            if not running.cancelled or self._closing:
                raise
            current = asyncio.current_task()
            assert current is not None
            # The cancellation is dealt with here; the task continues with the acknowledgement of
            # the requests.
            current.uncancel()
            await self._end_cancelled(running)
        # Before the acknowledgements, which wait: a request that arrives meanwhile must not join a
        # snapshot that has ended.
        del self._running[running.snapshot_id]
        for message in running.requests.values():
            await _acknowledge(message)
        failpoint("responder.acknowledged")
        # The request is gone from the queue, so nobody looks for the cell; a later request has
        # another sequence.
        with contextlib.suppress(HeadraceError, NatsError, TimeoutError):
            await running.cell.delete()

    async def _attempt(self, running: Running) -> None:
        stats = self._scope.health.stats
        try:
            async with self._turns:
                # From here on a crash ends this attempt, and its id with it.
                await _note(running, running_now=True)
                failpoint("responder.noted")
                began = time.monotonic()
                rows = await self._copy(running)
            stats.observe("snapshot_seconds", time.monotonic() - began)
            stats.count("snapshots_completed")
            stats.count("snapshots_without_spark", int(running.without_spark))
            stats.count("snapshot_rows", rows)
        except (HeadraceError, NatsError, TimeoutError) as error:
            await self._give_up(running, error)
        except Exception as error:  # noqa: BLE001
            # One request's fault must not take the others down.
            log.crash("snapshot_crashed", error, snapshot_id=running.snapshot_id)
            await self._give_up(running, error)

    async def _end_cancelled(self, running: Running) -> None:
        """Recorded first, so that it is not started again if the responder dies here."""
        request = running.request
        with contextlib.suppress(HeadraceError, NatsError, TimeoutError):
            # The cancellation may have interrupted a write, whose revision nobody knows.
            await running.cell.read()
            await running.cell.write({**_noted(running), "running": True, "cancelled": True})
        # The meta message may have been on its way when the cancellation came. A complete snapshot
        # stays.
        if await self._results.completed_patiently(request.token, running.snapshot_id):
            running.cancelled = False
            return
        self._scope.health.stats.count("snapshots_failed")
        begun = 0 if running.snapshot is None else len(running.snapshot.numbers)
        await self._results.purge(request.token, running.snapshot_id, begun)
        await self._results.fail(request.token, request.table, running.snapshot_id, _CANCELLED)

    async def _copy(self, running: Running) -> int:
        """Wait for a PostgreSQL that is down, as long as the snapshot has not started."""
        backoff = Backoff(RETRY_S, RETRY_S_MAX)
        while True:
            snapshot = Snapshot(
                self._settings,
                self._client,
                self._drivers,
                running.request,
                running.snapshot_id,
                self._throttle,
            )
            running.snapshot = snapshot
            try:
                rows = await snapshot.run()
            except PostgresUnreachableError as error:
                # Chunks of this LSN are in the stream already. Another attempt would hold another
                # LSN, and must not mix with them under the same id.
                if len(snapshot.numbers):
                    raise
                self._scope.health.block("postgres", str(error))
                await asyncio.sleep(backoff.pause_s())
            else:
                self._scope.health.unblock("postgres")
                return rows

    async def _give_up(self, running: Running, error: Exception) -> None:
        # Set before anything is sent: a request that arrives now must not join.
        running.failed = True
        self._scope.health.stats.count("snapshots_failed")
        available = error.available if isinstance(error, TableRefusedError) else ()
        request = running.request
        reason = describe(error)
        await self._results.fail(
            request.token, request.table, running.snapshot_id, reason, available
        )
        await self._results.purge(request.token, running.snapshot_id)


def _noted(running: Running) -> dict[str, Any]:
    return {"snapshot_id": running.snapshot_id, "attempt": running.attempt}


async def _note(running: Running, *, running_now: bool) -> None:
    await running.cell.write({**_noted(running), "running": running_now})


def _named(payload: bytes) -> str | None:
    """The snapshot that a cancellation names; all of the table's if it names none."""
    if not payload:
        return None
    try:
        return str(decode(payload, REQUEST_BYTES_MAX).get("snapshot_id", ""))
    except (DecodeError, AttributeError):
        return ""


async def _acknowledge(message: Msg) -> None:
    """Remove the request from the work queue; if the acknowledgement is lost, it comes again, as a
    new snapshot.
    """
    try:
        await message.ack_sync(timeout=ACK_TIMEOUT_S)
    except (NatsError, TimeoutError) as error:
        log.warning("request_not_acknowledged", reason=describe(error))
