"""One snapshot, from the transaction that holds it to its meta message.

Promises a meta message only after JetStream has confirmed that it has every chunk; any other end is
an error to the caller and no meta message. A driver that dies is replaced and the plan run again:
the snapshot, and the numbers of its chunks, are held here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import Header

from headrace import log as logs
from headrace.bus import subjects
from headrace.contract.events import encode
from headrace.contract.subjects_and_ids import meta_subject, snapshot_progress_subject
from headrace.errors import HeadraceError
from headrace.jetstream.errors import is_away
from headrace.lsn import format_lsn
from headrace.process.failpoint import failpoint
from headrace.settings import Compat, Settings
from headrace.snapshot_responder.chunk_permits import ChunkPermits, Throttle
from headrace.snapshot_responder.chunks import ENVELOPE_BYTES_MAX
from headrace.snapshot_responder.drivers import TASK, Drivers
from headrace.snapshot_responder.numbering import ChunkNumbers
from headrace.snapshot_responder.results import RETRY_S, Results
from headrace.snapshot_responder.task_result import TaskResult
from headrace.spark.driver_process import (
    DriverLostError,
    DriverProcess,
    SparkJobError,
    SparkTaskError,
)
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.plan import SnapshotPlan
from headrace.spark.ranges import cut_ranges, deal
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import HeldSnapshot, held_snapshot
from headrace.spark.table_plan import PAGE_BYTES
from headrace.spark.unless_lost import unless_lost

log = logs.logger("snapshot-responder")

META_TIMEOUT_S = 5.0
AGAIN = "Request it again when PostgreSQL is available."
# The keys that the PG→NATS bridge documents, in its order.
_BRIDGE_META = ("snapshot_id", "lsn", "timestamp", "batch_count", "row_count", "table")


class IncompleteError(HeadraceError):
    """Not every chunk is in the stream."""

    remedy = (
        "Check the limits of the stream of snapshots (HEADRACE_INIT_STREAM), and request it again."
    )


@dataclass(slots=True)
class Snapshot:
    """One attempt at a request."""

    settings: Settings
    client: Client
    drivers: Drivers
    request: SnapshotRequest
    snapshot_id: str
    throttle: Throttle = field(default_factory=lambda: Throttle(None))
    # Outlives the driver: a plan that is run again gets the same numbers for the same rows.
    numbers: ChunkNumbers = field(default_factory=ChunkNumbers)
    rows_estimated: int = 0
    # As reported by the driver.
    tasks: int = 0
    tasks_done: int = 0
    # The process that runs its tasks; None before it is chosen.
    driver: DriverProcess | None = None
    # Whether its meta message may have been sent already.
    ending: bool = False
    _began: float = field(default_factory=time.monotonic)

    @property
    def is_local(self) -> bool:
        """Whether it runs without Spark."""
        return self.driver is self.drivers.local

    async def run(self) -> int:
        """Copy the table; returns the number of its rows."""
        async with self._progress():
            # Before the snapshot is held: starting Spark takes half a minute, in which PostgreSQL
            # would keep old rows.
            self.driver = await self.drivers.started(self.request)
            async with held_snapshot(self.settings, self.request) as held:
                self.rows_estimated = held.rows_estimated
                plan = self._plan(held)
                failpoint("responder.holding")
                async with self._permits(plan):
                    # Permits are open for exactly as long as tasks may ask for them.
                    await unless_lost(self._copy(plan), held.lost, AGAIN)
        # After the transaction is closed: PostgreSQL need not keep the snapshot while JetStream is
        # read.
        await self._verify()
        failpoint("responder.before_meta")
        self.ending = True
        await _wholly(self._publish_meta(held))
        failpoint("responder.after_meta")
        return self.numbers.rows

    def _plan(self, held: HeldSnapshot) -> SnapshotPlan:
        settings = self.settings
        # Ranges of pages, which need no index and no statistics.
        ranges = cut_ranges(held.storages, max(1, settings.snapshot.range_bytes // PAGE_BYTES))
        return SnapshotPlan(
            snapshot_id=self.snapshot_id,
            exported=held.exported,
            lsn=format_lsn(held.lsn),
            token=self.request.token,
            table=self.request.table,
            columns=held.columns,
            key=held.key,
            types=held.types,
            conditions=held.conditions,
            tasks=tuple(
                tuple(ranges_of_task)
                for ranges_of_task in deal(ranges, settings.snapshot.tasks_max)
            ),
            permits=subjects.chunk_permits(settings.source.slot, self.snapshot_id),
            encoding=settings.format.encoding,
            arrays=settings.format.arrays,
            json_values=settings.format.json_values,
            int8_as_string=settings.format.int8_as_string,
            values=self.request.values or settings.snapshot.values,
            zstd=settings.format.zstd,
            chunk_rows_max=settings.snapshot.chunk_rows_max,
            # As this server has it now; a chunk must fit with its envelope.
            payload_bytes_max=self.client.max_payload - ENVELOPE_BYTES_MAX,
            large_bucket=settings.streams.large,
        )

    @contextlib.asynccontextmanager
    async def _permits(self, plan: SnapshotPlan) -> AsyncIterator[None]:
        office = ChunkPermits(self.client, plan.permits, self.numbers, self.throttle)
        await office.open()
        try:
            yield
        finally:
            office.close()

    async def _copy(self, plan: SnapshotPlan) -> None:
        """Run the plan, again if its driver was lost; a table without storage has nothing to
        copy.
        """
        if not plan.tasks:
            return
        if self.is_local:
            if await self._copied_locally(plan):
                return
            self.driver = self.drivers.spark
        losses = 0
        while True:
            try:
                await self._run(plan, self.drivers.spark)
            except DriverLostError as error:
                # Another run is safe: the transaction is still held, and chunks keep their numbers.
                losses += 1
                log.warning(
                    "spark_lost", snapshot_id=self.snapshot_id, losses=losses, reason=str(error)
                )
                # A table that kills every driver, for example by its size, must end in an error.
                if losses > self.settings.snapshot.spark_losses_max:
                    raise
            else:
                return

    async def _copied_locally(self, plan: SnapshotPlan) -> bool:
        """Whether the plan ran without Spark. Otherwise Spark runs it again, and repeats what
        failed: chunks keep their numbers.
        """
        try:
            await self._run(plan, self.drivers.local)
        except SparkTaskError:
            # Spark would find the same error, after starting a JVM for it.
            raise
        except (DriverLostError, SparkJobError) as error:
            log.warning("local_copy_failed", snapshot_id=self.snapshot_id, reason=str(error))
            return False
        # The next table may need Spark, and finds it started.
        self.drivers.warm()
        return True

    async def _run(self, plan: SnapshotPlan, driver: DriverProcess) -> None:
        work = SparkWork(TASK, plan.pack(), len(plan.tasks), pool=self.snapshot_id)
        results = await driver.run(self.snapshot_id, work, self._told)
        totals = [TaskResult.unpack(result) for result in results]
        # The totals of tasks must agree with the numbers given out here: a lost chunk would show.
        self.numbers.settle(
            sum(total.chunks for total in totals), sum(total.rows for total in totals)
        )

    def _told(self, done: int, tasks: int) -> None:
        self.tasks_done = done
        self.tasks = tasks

    @contextlib.asynccontextmanager
    async def _progress(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._tell_progress(), name="snapshot-progress")
        try:
            yield
        finally:
            task.cancel()

    async def _tell_progress(self) -> None:
        subject = snapshot_progress_subject(self.request.token)
        while True:
            elapsed_s = max(time.monotonic() - self._began, 0.001)
            body = {
                "snapshot_id": self.snapshot_id,
                "table": self.request.table,
                "rows": self.numbers.rows,
                "rows_estimated": max(self.rows_estimated, self.numbers.rows),
                "rows_per_s": round(self.numbers.rows / elapsed_s),
                "tasks": self.tasks,
                "tasks_done": self.tasks_done,
            }
            # Progress is only informative: a copy must not fail for it.
            with contextlib.suppress(NatsError):
                await self.client.publish(subject, encode(body, self.settings.format.encoding))
            await asyncio.sleep(self.settings.snapshot.progress_interval_s)

    async def _verify(self) -> None:
        """Every number is in the stream."""
        stored = await Results(self.client, self.settings).stored(
            self.request.token, self.snapshot_id
        )
        if stored != len(self.numbers):
            raise IncompleteError(
                f"the stream {self.settings.streams.init} contains {stored} of "
                f"{len(self.numbers)} chunks"
            )

    async def _publish_meta(self, held: HeldSnapshot) -> None:
        body = self._meta(held)
        bridge = self.settings.delivery.compat is Compat.BRIDGE
        told = {key: body[key] for key in _BRIDGE_META} if bridge else body
        await self._stored(encode(told, self.settings.format.encoding))
        log.info(
            "snapshot_completed",
            **{key: body[key] for key in ("snapshot_id", "lsn", "row_count", "duration_ms")},
            driver=self.driver.name if self.driver else None,
        )

    async def _stored(self, meta: bytes) -> None:
        """Repeat until it is known to be stored: after a lost answer, an error could contradict a
        stored meta message.
        """
        results = Results(self.client, self.settings)
        js = self.client.jetstream()
        headers: dict[str, Any] = {Header.MSG_ID: f"{self.snapshot_id}-meta"}
        while True:
            try:
                await js.publish(meta_subject(self.request.token), meta, headers=headers)
            except (NatsError, TimeoutError) as error:
                # A refusal is an answer: the meta message is not stored.
                if not is_away(error) or await results.stream_is_missing():
                    raise
                log.warning(
                    "meta_not_acknowledged", snapshot_id=self.snapshot_id, reason=str(error)
                )
                await asyncio.sleep(RETRY_S)
                with contextlib.suppress(NatsError, TimeoutError):
                    if await results.completed(self.request.token, self.snapshot_id):
                        return
            else:
                return

    def _meta(self, held: HeldSnapshot) -> dict[str, Any]:
        return {
            "snapshot_id": self.snapshot_id,
            "lsn": format_lsn(held.lsn),
            "timestamp": int(time.time()),
            "batch_count": len(self.numbers),
            "row_count": self.numbers.rows,
            "table": self.request.table,
            "schema": self.request.schema,
            "source": self.settings.source.slot,
            "format": str(self.settings.format.encoding),
            "compression": "zstd" if self.settings.format.zstd else "none",
            "bytes": self.numbers.bytes,
            "duration_ms": round((time.monotonic() - self._began) * 1000),
        }


async def _wholly(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end even if cancelled: else nobody could tell whether the meta message is
    stored.
    """
    task = asyncio.create_task(work, name="snapshot-meta")
    try:
        # Cancelled halfway, it would be unknown whether the meta message is stored.
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=META_TIMEOUT_S)
        raise
