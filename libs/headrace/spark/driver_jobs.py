"""The driver's end of the pipe to its service: each job in a thread, answers in any order.

Ends when the service closes the pipe, or is gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from headrace.spark import driver_protocol
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.progress import Tell


class Jobs(Protocol):
    """What runs a service's jobs."""

    def run(self, job: str, work: SparkWork, tell: Tell) -> list[bytes]:
        """Each task's result; `tell` receives the numbers of finished and of all tasks."""
        ...

    def cancel(self, job: str) -> None: ...

    def failure(self, error: Exception) -> tuple[str, bool]:
        """The error for people, and whether another attempt would fail too."""
        ...


class Answers:
    """Sends frames to the service, from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: driver_protocol.Message) -> None:
        with self._lock:
            self._stream.write(driver_protocol.pack(message))
            self._stream.flush()


def claim_stdout() -> Answers:
    """Keep standard output for frames: output of the JVM or a library goes to standard error."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return Answers(stream)


def serve(jobs: Jobs, answers: Answers, requests: BinaryIO) -> None:
    """Run jobs until the service closes the pipe."""
    for message in _frames(requests):
        if message["op"] == "run":
            # A daemon, so that a job that hangs does not keep the process when its input has ended.
            thread = threading.Thread(
                target=_run,
                args=(jobs, answers, message["job"], _work(message)),
                name=message["job"],
                daemon=True,
            )
            thread.start()
        elif message["op"] == "cancel":
            jobs.cancel(message["job"])


def _run(jobs: Jobs, answers: Answers, job: str, work: SparkWork) -> None:
    # From any thread of the driver: `Answers` keeps frames apart.
    def tell(done: int, tasks: int) -> None:
        answers.send({"op": "progress", "job": job, "done": done, "tasks": tasks})

    try:
        results = jobs.run(job, work, tell)
    except Exception as error:  # noqa: BLE001
        # The service judges any failure of a job.
        text, lasting = jobs.failure(error)
        answers.send({"op": "failed", "job": job, "error": text, "lasting": lasting})
    else:
        answers.send({"op": "done", "job": job, "results": results})


def _work(message: driver_protocol.Message) -> SparkWork:
    return SparkWork(message["function"], message["plan"], message["tasks"], message["pool"])


def _frames(stream: BinaryIO) -> Iterator[driver_protocol.Message]:
    while len(head := stream.read(driver_protocol.LENGTH.size)) == driver_protocol.LENGTH.size:
        (length,) = driver_protocol.LENGTH.unpack(head)
        body = stream.read(length)
        # The service ended in the middle of a message.
        if len(body) < length:
            return
        yield driver_protocol.unpack(body)
