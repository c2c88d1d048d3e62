"""Spark's own progress on a job: finished tasks of all its tasks.

A local session has a status tracker, which is polled; Spark Connect reports in the thread that runs
the job.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LOOK_S = 0.5

# Finished tasks, and all tasks.
Tell = Callable[[int, int], None]


@contextlib.contextmanager
def watched(spark: Any, job: str, tell: Tell, *, remote: bool) -> Iterator[None]:
    """Report on the job that this thread runs in the block."""
    if remote:
        watching = _listening(spark, tell)
    else:
        watching = _looking(spark.sparkContext, job, tell)
    with watching:
        yield


@contextlib.contextmanager
def _listening(spark: Any, tell: Tell) -> Iterator[None]:
    ours = threading.get_ident()

    def handler(stages: Iterable[Any] | None, **_: Any) -> None:
        # It receives reports of everything that the session runs, each in its own thread.
        if threading.get_ident() == ours and (known := list(stages or ())):
            tell(
                sum(stage.num_completed_tasks for stage in known),
                sum(stage.num_tasks for stage in known),
            )

    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextlib.contextmanager
def _looking(context: Any, job: str, tell: Tell) -> Iterator[None]:
    context.setLocalProperty("spark.jobGroup.id", job)
    over = threading.Event()
    looking = threading.Thread(
        target=_look, args=(context.statusTracker(), job, tell, over), daemon=True
    )
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _look(tracker: Any, job: str, tell: Tell, over: threading.Event) -> None:
    told = (0, 0)
    while not over.wait(LOOK_S):
        try:
            now = _tasks(tracker, job)
        except Exception:  # noqa: BLE001  # the process that runs the job notices a dead JVM
            return
        if now != told:
            tell(*now)
            told = now


def _tasks(tracker: Any, job: str) -> tuple[int, int]:
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(job)]
    stages = [
        tracker.getStageInfo(number)
        for info in jobs
        if info is not None
        for number in info.stageIds
    ]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
