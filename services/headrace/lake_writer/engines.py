"""The choice of the lake's engine, by the settings and by the size of the work."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import DataFile

from headrace import log as logs
from headrace.archive.asynchronous import AsyncWalFile
from headrace.lake.compaction import CompactWork
from headrace.lake.engine import CopiedFiles, CopyWork, Engine, Progress
from headrace.lake.files import LakeFiles
from headrace.lake.writer import LakeWriter
from headrace.lake_writer.inline_engine import InlineEngine
from headrace.lake_writer.spark_engine import SparkEngine
from headrace.settings import LakeEngine, Settings
from headrace.spark.driver_process import SparkUnusableError

log = logs.logger("lake-writer")


def chosen_engine(settings: Settings, files: LakeFiles) -> Engine:
    """The engine of the settings; no JVM starts before the first job."""
    inline = InlineEngine(settings, files)
    chosen = settings.lake.engine
    if chosen is LakeEngine.INLINE:
        return inline
    spark = SparkEngine(settings, inline)
    if chosen is LakeEngine.SPARK:
        return spark
    return AutoEngine(settings, inline, spark)


class AutoEngine:
    """Spark for large tables and batches, inline for others, and where there is no Spark."""

    def __init__(self, settings: Settings, inline: Engine, spark: Engine) -> None:
        self._lake = settings.lake
        self._inline = inline
        self._spark = spark
        self._unusable = False

    async def started(self) -> None:
        """Nothing starts: whether a table is large is known when its snapshot is held."""

    async def copy(self, work: CopyWork, progress: Progress) -> CopiedFiles:
        """Copy with Spark if the table has enough ranges."""
        ranges = sum(len(task) for task in work.plan.tasks)
        # By the storage's size, which is exact; PostgreSQL's number of rows is an estimate.
        if ranges >= self._lake.spark_ranges_min and not self._unusable:
            try:
                return await self._spark.copy(work, progress)
            except SparkUnusableError as error:
                self._give_up(error)
        return await self._inline.copy(work, progress)

    async def apply(self, writer: LakeWriter, files: Sequence[AsyncWalFile]) -> int:
        """Apply with Spark if there are enough rows."""
        rows = sum(file.info.rows for file in files)
        if rows >= self._lake.spark_rows_min and not self._unusable:
            try:
                return await self._spark.apply(writer, files)
            except SparkUnusableError as error:
                self._give_up(error)
        return await self._inline.apply(writer, files)

    async def compact(self, works: Sequence[CompactWork]) -> list[list[DataFile]]:
        """Rewrite inline: a step between two cuts is small."""
        return await self._inline.compact(works)

    def _give_up(self, error: SparkUnusableError) -> None:
        log.warning("spark_unusable", reason=str(error))
        # For as long as the process lives: each batch would wait again until a start timed out.
        self._unusable = True

    async def close(self) -> None:
        """End both."""
        await self._spark.close()
        await self._inline.close()
