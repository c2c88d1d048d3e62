"""Where a snapshot's tasks run: in Spark, or in a process without it while no Spark is running.

Promises that a small table's first copy does not wait for a JVM, and that both ways run the same
tasks under the same held snapshot (ADR 0042).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.settings import Settings, SnapshotSpark
from headrace.spark.driver_process import (
    DriverLostError,
    DriverProcess,
    LocalDriver,
    SparkDriver,
    SparkUnusableError,
)
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import ChangedMeanwhileError, describe_table
from headrace.spark.table_plan import PAGE_BYTES

log = logs.logger("snapshot-responder")

# What the workers run.
TASK_MODULE = "headrace.snapshot_responder.task"
TASK = f"{TASK_MODULE}:run_task"


@dataclass(slots=True)
class Drivers:
    """The drivers of a responder."""

    settings: Settings
    spark: SparkDriver
    local: LocalDriver
    _warming: set[asyncio.Task[None]] = field(default_factory=set)
    # Spark could not start in the background, as without Java: only a table that needs it tries
    # again.
    _unusable: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Drivers:
        return cls(settings, SparkDriver(settings), LocalDriver(settings, TASK_MODULE))

    async def started(self, request: SnapshotRequest) -> DriverProcess:
        """The driver for this table. It is running before anything is held: an ALTER, and
        everything behind it, would wait for it to start.
        """
        # A warm session takes every table, so that all work stays where it can be distributed.
        if self.spark.state == "running":
            return self.spark
        # If the cause lasts, the copy meets it again, and deals with it.
        with contextlib.suppress(ChangedMeanwhileError, DriverLostError):
            there = await describe_table(self.settings, request)
            pages = sum(storage.pages for storage in there.storages)
            if self._may_be_local(pages) and await self._local_started():
                return self.local
            # An empty table needs no driver.
            if pages:
                await self.spark.started()
        return self.spark

    def _may_be_local(self, pages: int) -> bool:
        chosen = self.settings.snapshot
        if chosen.spark is SnapshotSpark.ALWAYS or chosen.spark_remote:
            return False
        # The unit of a Spark task: what is larger gains by several of them.
        return 0 < pages <= max(1, chosen.range_bytes // PAGE_BYTES)

    async def _local_started(self) -> bool:
        try:
            await self.local.started()
        except (DriverLostError, SparkUnusableError) as error:
            log.warning("local_copy_failed", reason=str(error))
            return False
        return True

    def warm(self) -> None:
        """Start Spark for the next snapshots, if it is wanted and not running."""
        wanted = self.settings.snapshot.spark is SnapshotSpark.AUTO and not self._unusable
        if wanted and self.spark.state == "stopped":
            task = asyncio.create_task(self._warm(), name="spark-starts")
            self._warming.add(task)
            task.add_done_callback(self._warming.discard)

    async def _warm(self) -> None:
        try:
            await self.spark.started()
        except HeadraceError as error:
            # The first snapshot that needs it fails with the reason.
            self._unusable = True
            log.warning("spark_not_started", reason=str(error))

    async def close(self) -> None:
        # First: they would start the driver again that is being closed.
        for task in list(self._warming):
            task.cancel()
        await self.local.close()
        await self.spark.close()
