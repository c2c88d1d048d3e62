"""Spark's driver in its own process: `python -m headrace.spark.driver`, a child of a service.

Takes plans on standard input and answers on standard output (`driver_protocol`); logs and Spark's
own output go to standard error. Ends when its input ends, and the JVM with it. No row passes
through here: tasks return what they did.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace import log as logs
from headrace.embedded.java import java_for_spark
from headrace.errors import HeadraceError
from headrace.extras import SPARK_EXTRAS, MissingPackageError
from headrace.settings import Settings, SnapshotSettings, load
from headrace.spark.driver_jobs import claim_stdout, serve
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.progress import Tell, watched

log = logs.logger("spark-driver")

ERROR_CHARS_MAX = 2000
EXIT_JVM_LOST = 71
_TASK_SCHEMA = "task long, result binary, error string"
_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Group)): (.+)$", re.MULTILINE)


class SparkError(HeadraceError):
    """Spark can't run a job."""


def main() -> int:
    settings = load(os.environ)
    logs.configure(
        "spark-driver", level=settings.process.log_level, form=settings.process.log_format
    )
    answers = claim_stdout()
    with tempfile.TemporaryDirectory(prefix="headrace-spark-") as folder:
        try:
            spark = _session(settings, Path(folder))
        except Exception as error:  # noqa: BLE001
            # After any error, the service must learn why there is no Spark.
            answers.send({"op": "unusable", "error": describe(error)})
            return 1
        answers.send({"op": "ready", "version": spark.version})
        serve(SparkJobs(spark), answers, sys.stdin.buffer)
        _stop(spark)
    return 0


def _session(settings: Settings, folder: Path) -> Any:
    chosen = settings.snapshot
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]
    if not chosen.spark_remote:
        # Empty means unset to us, but a server without a name to pyspark.
        os.environ.pop("SPARK_REMOTE", None)
    try:
        # Without the extra, there must be an answer, too.
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise MissingPackageError("pyspark", *SPARK_EXTRAS) from error
    if not chosen.spark_remote:
        os.environ.update(java_for_spark(folder).environment())
    builder = SparkSession.builder.appName("headrace")
    if chosen.spark_remote:
        return _remote(builder, chosen.spark_remote)
    for name, value in local_configuration(chosen, folder).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _remote(builder: Any, url: str) -> Any:
    try:
        return builder.remote(url).getOrCreate()
    except ImportError as error:
        raise SparkError(
            f"Spark Connect's client can't be used: {error}",
            remedy="pip install 'pyspark[connect]', or unset SPARK_REMOTE",
        ) from error


def local_configuration(settings: SnapshotSettings, folder: Path) -> dict[str, str]:
    """A Spark that starts fast and stays small: nothing is shuffled, cached or shown."""
    return {
        "spark.master": settings.spark_master,
        "spark.driver.memory": f"{settings.spark_memory_mib}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The serial collector and the first compiler need the least memory and time to start.
        "spark.driver.extraJavaOptions": (
            "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:MaxMetaspaceSize=192m"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.adaptive.enabled": "false",
        # Compiling the query costs a cold JVM a second or two; it has only as many rows as there
        # are tasks.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.local.dir": str(folder),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
        "spark.eventLog.enabled": "false",
    }


def _stop(spark: Any) -> None:
    try:
        spark.stop()
    except Exception as error:  # noqa: BLE001
        # The JVM may be gone already, which is all that is wanted.
        log.debug("spark_stop_failed", reason=type(error).__name__)


class SparkJobs:
    """Runs jobs in the session."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def cancel(self, job: str) -> None:
        self._spark.interruptTag(job)

    def failure(self, error: Exception) -> tuple[str, bool]:
        """The error for people, and whether another attempt would fail too.

        A session whose JVM is gone never recovers: the process ends, and the service starts another
        one and runs its jobs again.
        """
        # any failure of so simple a query means that no JVM answers
        with contextlib.suppress(Exception):
            self._spark.conf.get("spark.app.name")
            return describe(error), isinstance(error, SparkError)
        log.error("jvm_lost", reason=type(error).__name__)
        os._exit(EXIT_JVM_LOST)

    def run(self, job: str, work: SparkWork, tell: Tell) -> list[bytes]:
        spark = self._spark
        spark.addTag(job)
        remote = bool(os.environ.get("SPARK_REMOTE"))
        if not remote:
            # A pool for each: in a shared pool a job would wait for all tasks of the one before.
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", work.pool)
        numbers = spark.range(0, work.tasks, 1, work.tasks)
        with watched(spark, job, tell, remote=remote):
            # One partition for each task, so that Spark repeats a failed one without the others.
            mapper = _mapper(work.function, work.plan)
            rows = numbers.mapInArrow(mapper, _TASK_SCHEMA).collect()
        # Tasks return the errors that another attempt would not avoid: Spark would repeat a task
        # that raises.
        for row in rows:
            if row["error"]:
                raise SparkError(row["error"])
        return [bytes(row["result"]) for row in sorted(rows, key=lambda row: row["task"])]


def _mapper(function: str, plan: bytes) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The code that runs on the executors: imports inside, so that only the plan travels."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415  # see above

        from headrace.spark.task import run_task  # noqa: PLC0415  # see above

        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([run_task(function, plan, task)])

    return run


def describe(error: BaseException) -> str:
    """One line for people: for a failed task, the last line of its Python error."""
    if isinstance(error, HeadraceError):
        return str(error)
    text = str(error)
    found = _PYTHON_ERROR.findall(text)
    if found:
        line = f"{found[-1][0]}: {found[-1][1]}"
    else:
        line = (text.strip().splitlines() or [type(error).__name__])[0]
    return f"Spark: {line}"[:ERROR_CHARS_MAX]


if __name__ == "__main__":
    sys.exit(main())
