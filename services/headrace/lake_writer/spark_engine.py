"""The lake's engine on Spark: tasks read the source and the archive, write files and return them.

Promises the same tables as the inline engine: tasks call the same functions. A driver that dies is
replaced, and its job runs again; rows never pass through the lake-writer or the JVM.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Sequence

from pyiceberg.manifest import DataFile

from headrace import log as logs
from headrace.archive.asynchronous import AsyncWalFile
from headrace.errors import HeadraceError
from headrace.lake.batches import Batch, TableBatch
from headrace.lake.catalog import TableName
from headrace.lake.compaction import CompactWork
from headrace.lake.engine import CopiedFiles, CopyWork, Engine, Progress
from headrace.lake.split import NOTHING, Division, Survey, parts_by_key
from headrace.lake.writer import LakeWriter
from headrace.lake_writer import batch_task, range_copy, rewrite_task
from headrace.lake_writer.batch_task import Applied, ApplyPlan, FileSurvey, Portion, SurveyPlan
from headrace.process.failpoint import failpoint
from headrace.settings import Settings
from headrace.spark.driver_process import (
    DriverLostError,
    SparkDriver,
    SparkJobError,
    SparkTaskError,
)
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.progress import Tell
from headrace.spark.ranges import deal

log = logs.logger("lake-writer")

# Smaller batches are one task: looking at them first would take as long as applying them.
SURVEYED_ROWS_MIN = 50_000
# A part of a table's changes; each part reads the key columns of the whole table.
PART_ROWS = 250_000
_POOL = "lake"


class SparkEngineError(HeadraceError):
    """Spark did not finish a job; trying again may help."""

    retry = True
    remedy = "Look at the lake-writer's log for the failed task."


class SparkEngine:
    """Runs jobs one after another in a session that stays while there is work."""

    def __init__(self, settings: Settings, inline: Engine) -> None:
        self._settings = settings
        self._inline = inline
        self._driver = SparkDriver(settings)
        self._jobs = 0

    async def started(self) -> None:
        """Start the session; a failure that lasts is met again, and dealt with, by the copy."""
        with contextlib.suppress(DriverLostError):
            await self._driver.started()

    async def copy(self, work: CopyWork, progress: Progress) -> CopiedFiles:
        """Copy ranges in parallel."""
        # An empty table is no reason to start a JVM.
        if not work.plan.tasks:
            return CopiedFiles((), 0)

        def tell(done: int, tasks: int) -> None:
            progress(work.rows_estimated * done // max(1, tasks))

        results = await self._run(range_copy.TASK, pickle.dumps(work), len(work.plan.tasks), tell)
        copies: list[CopiedFiles] = [pickle.loads(each) for each in results]  # noqa: S301  # tasks'
        rows = sum(each.rows for each in copies)
        # So far it was a share of the estimate from PostgreSQL's last ANALYZE.
        progress(rows)
        return CopiedFiles(tuple(file for each in copies for file in each.files), rows)

    async def apply(self, writer: LakeWriter, files: Sequence[AsyncWalFile]) -> int:
        """Apply as many files as show each table in one shape; others, which change a table's
        shape within the file, inline.
        """
        batch = await asyncio.to_thread(writer.plan, [file.info for file in files])
        # The first file changes a table's shape or needs a copy: it is in no batch (ADR 0033).
        if not batch.files:
            return await self._inline.apply(writer, files[:1])
        if batch.tables:
            rows = sum(file.info.rows for file in files[: batch.files])
            tasks = await self._divided(batch, rows)
            await self._apply(writer, ApplyPlan(batch.tables, tasks))
        return batch.files

    async def _apply(self, writer: LakeWriter, plan: ApplyPlan) -> None:
        packed = await asyncio.to_thread(pickle.dumps, plan)
        results = await self._run(batch_task.APPLY_TASK, packed, len(plan.tasks))
        failpoint("lake.after_batch")
        outcomes: list[Applied] = [
            each
            for result in results
            for each in pickle.loads(result)  # noqa: S301  # from our tasks
        ]
        for number, table in enumerate(plan.tables):
            _absorb(writer, table, [each for each in outcomes if each.table == number])

    async def _divided(self, batch: Batch, rows: int) -> tuple[tuple[Portion, ...], ...]:
        """Each task's portions."""
        if rows < SURVEYED_ROWS_MIN:
            whole = [Portion(number, table.files) for number, table in enumerate(batch.tables)]
            return (tuple(whole),)
        surveys = await self._survey(batch)
        portions = [
            portion
            for number, table in enumerate(batch.tables)
            for portion in _portions(number, surveys.get(table.table.name, []))
        ]
        return tuple((portion,) for portion in portions)

    async def _survey(self, batch: Batch) -> dict[TableName, list[FileSurvey]]:
        files = sorted({file for table in batch.tables for file in table.files})
        tasks = deal(files, self._settings.snapshot.tasks_max)
        plan = SurveyPlan(
            tuple(table.table for table in batch.tables), tuple(tuple(task) for task in tasks)
        )
        results = await self._run(batch_task.SURVEY_TASK, pickle.dumps(plan), len(tasks))
        found: dict[TableName, list[FileSurvey]] = {}
        for result in results:
            of_task: list[dict[TableName, FileSurvey]] = pickle.loads(result)  # noqa: S301  # ours
            for of_file in of_task:
                for name, survey in of_file.items():
                    found.setdefault(name, []).append(survey)
        return found

    async def _run(
        self, function: str, plan: bytes, tasks: int, tell: Tell | None = None
    ) -> list[bytes]:
        """Each task's result. A job that died with its driver runs again: nothing refers to the
        files that it wrote.
        """
        work = SparkWork(function, plan, tasks, _POOL)
        losses = 0
        while True:
            # A job that is repeated has another name: the driver answers by names.
            self._jobs += 1
            try:
                return await self._driver.run(f"lake-{self._jobs}", work, tell)
            except DriverLostError as error:
                losses += 1
                log.warning("spark_lost", losses=losses, reason=str(error))
                if losses > self._settings.snapshot.spark_losses_max:
                    raise
            # Another attempt would fail in the same way; the error says why.
            except SparkTaskError:
                raise
            except SparkJobError as error:
                raise SparkEngineError(str(error)) from error

    async def compact(self, works: Sequence[CompactWork]) -> list[list[DataFile]]:
        """Do each rewrite in a task."""
        plan = await asyncio.to_thread(pickle.dumps, works)
        results = await self._run(rewrite_task.TASK, plan, len(works))
        return [pickle.loads(result) for result in results]  # noqa: S301  # from our tasks

    async def close(self) -> None:
        """End the driver, its JVM and its workers."""
        await self._driver.close()


def _portions(number: int, surveys: Sequence[FileSurvey]) -> list[Portion]:
    """How a table's changes are divided."""
    found = sorted(surveys, key=lambda each: each.file)
    # A TRUNCATE removes what came before it, so earlier files of the batch are not read at all.
    last = max((place for place, each in enumerate(found) if each.truncates), default=0)
    total: Survey = NOTHING
    for each in found[last:]:
        total += each.survey
    files = tuple(each.file for each in found[last:])
    count = max(1, round(total.rows / PART_ROWS))
    if total.division is Division.BY_FILE:
        return [Portion(number, tuple(part)) for part in deal(files, count)]
    if total.division is Division.NONE:
        return [Portion(number, files)]
    return [Portion(number, files, part) for part in parts_by_key(total.moves, count)]


def _absorb(writer: LakeWriter, table: TableBatch, outcomes: Sequence[Applied]) -> None:
    name = table.table.name
    missing = next((each.missing for each in outcomes if each.missing), None)
    if missing is not None:
        # A copy replaces the whole table, so what the other portions have done is not needed.
        writer.to_copy[name] = missing
        return
    writer.absorb(name, [each.changes for each in outcomes if each.changes is not None])
