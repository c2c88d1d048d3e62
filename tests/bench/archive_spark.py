"""Measures how fast Spark reads an archive on this machine's cores, alternating with its own
Parquet reader on the same files.

`python -m tests.bench.archive_spark URL` prints a line of JSON: rows per second, the best of some
rounds, for each query and reader. The session is an ordinary one, because the session for snapshots
is optimized for a fast start and little memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.embedded.java import java_for_spark

ROUNDS = 5
AGGREGATES = ("count(*)", "sum(length(after))", "max(commit_lsn)")


def _session(folder: Path) -> Any:
    os.environ.update(java_for_spark(folder).environment())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession  # behind its environment

    configuration = {
        "spark.master": f"local[{len(os.sched_getaffinity(0))}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
    }
    builder = SparkSession.builder.appName("archive")
    for name, value in configuration.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _queries(spark: Any, url: str) -> dict[str, Callable[[], object]]:
    from headrace.spark.archive_source import ArchiveSource  # behind Spark's environment

    spark.dataSource.register(ArchiveSource)
    archive = spark.read.format("headrace.archive")
    two = spark.read.format("headrace.archive").option("columns", "commit_lsn,after")
    files = f"{url.removeprefix('file://')}/*.parquet"

    def all_of(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    return {
        "every column": lambda: all_of(archive.load(url)),
        "every column, Spark's Parquet reader": lambda: all_of(spark.read.parquet(files)),
        "two columns": lambda: two.load(url).selectExpr(*AGGREGATES).collect(),
        "two columns, Spark's Parquet reader": lambda: (
            spark.read.parquet(files).selectExpr(*AGGREGATES).collect()
        ),
    }


def main(url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        spark = _session(Path(folder))
        queries = _queries(spark, url)
        rows = (
            spark.read.format("headrace.archive").option("columns", "commit_lsn").load(url).count()
        )
        best = dict.fromkeys(queries, 0.0)
        for _ in range(ROUNDS):
            for name, query in queries.items():
                began = time.monotonic()
                query()
                best[name] = max(best[name], rows / (time.monotonic() - began))
        spark.stop()
    print(json.dumps(best))


if __name__ == "__main__":
    main(sys.argv[1])
