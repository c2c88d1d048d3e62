"""A driver without Spark: `python -m headrace.spark.local_driver MODULE`, a child of a service.

Speaks to its service like Spark's driver (`headrace.spark.driver`), and runs the same functions,
whose module it imports first. Each job's tasks run one after the other, once: unlike Spark, it
repeats no task.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module, metadata

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.settings import load
from headrace.spark.driver_jobs import claim_stdout, serve
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.progress import Tell
from headrace.spark.task import run_task


def main(module: str) -> int:
    process = load(os.environ).process
    logs.configure("local-copy", level=process.log_level, form=process.log_format)
    answers = claim_stdout()
    # Before it is ready: nothing is held yet while the imports take their time.
    import_module(module)
    answers.send({"op": "ready", "version": metadata.version("headrace")})
    serve(LocalJobs(), answers, sys.stdin.buffer)
    return 0


class LastingError(HeadraceError):
    """A task found an error that another attempt would not avoid."""


class LocalJobs:
    """Runs jobs in this process, each in its caller's thread."""

    def run(self, _job: str, work: SparkWork, tell: Tell) -> list[bytes]:
        results = []
        # One after the other: a second connection would gain nothing for so few pages.
        for task in range(work.tasks):
            done = run_task(work.function, work.plan, task)
            if done["error"]:
                raise LastingError(str(done["error"]))
            results.append(done["result"])
            tell(task + 1, work.tasks)
        return results

    def cancel(self, _job: str) -> None:
        """A cancelled snapshot gives no permits: its task ends with the next chunk."""

    def failure(self, error: Exception) -> tuple[str, bool]:
        """The error for people, and whether another attempt would fail too."""
        known = isinstance(error, HeadraceError)
        # The text of another error may contain a row's values.
        text = str(error) if known else type(error).__name__
        return text, isinstance(error, LastingError)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
