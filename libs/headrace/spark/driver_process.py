"""A service's end of a driver process: started at the first job, stopped when idle, replaced when
lost.

Promises that the child, its JVM and its workers end with the service, however it ends, and that a
job whose driver died raises `DriverLostError`: the service knows whether running it again is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from headrace import log as logs
from headrace.embedded.process import tied
from headrace.errors import HeadraceError
from headrace.settings import Settings
from headrace.spark import driver_protocol
from headrace.spark.driver_protocol import SparkWork
from headrace.spark.progress import Tell

log = logs.logger("spark")

STOP_TIMEOUT_S = 5.0
_LOG_LINE_BYTES_MAX = 64 * 1024


class SparkUnusableError(HeadraceError):
    """There is no Spark to run a job on."""


class SparkJobError(HeadraceError):
    """Spark failed to run a job."""


class SparkTaskError(SparkJobError):
    """A task found an error that another attempt would not avoid."""


class DriverLostError(HeadraceError):
    """The driver process, or its JVM, died."""

    retry = True
    remedy = (
        "Look at the service's log for Spark's last output; HEADRACE_SPARK_MEMORY_MIB may "
        "be too small."
    )


@dataclass(slots=True)
class _Child:
    # In the log.
    name: str
    process: asyncio.subprocess.Process
    # The driver's version once it takes jobs; an exception if it can't be used, or died first.
    ready: asyncio.Future[str]
    jobs: dict[str, asyncio.Future[list[bytes]]] = field(default_factory=dict)
    told: dict[str, Tell] = field(default_factory=dict)
    # They end when the child closes its pipes.
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        return self.process.returncode is None and not (
            self.ready.done() and self.ready.exception() is not None
        )


class DriverProcess:
    """A child that runs jobs, which a subclass names; the only one of its kind in a service."""

    name: ClassVar[str]

    def __init__(self, settings: Settings, *program: str) -> None:
        # The module for `python -m`, and its arguments.
        self._program = program
        self._settings = settings.snapshot
        self._child: _Child | None = None
        # Several jobs may ask for the driver at the same moment: only one of them starts it.
        self._starting = asyncio.Lock()
        # Stops a driver that has had no job for a while: a JVM keeps its memory.
        self._idle: asyncio.TimerHandle | None = None
        # Drivers that are being stopped; `close` waits for them, so that no JVM outlives the
        # service.
        self._retirements: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """The child's, while it runs."""
        if self._child is not None and self._child.usable:
            return self._child.process.pid
        return None

    @property
    def state(self) -> str:
        """One of `SPARK_STATES`."""
        if self._child is None or not self._child.usable:
            return "stopped"
        if self._child.ready.done():
            return "running"
        return "starting"

    async def started(self) -> None:
        """Return when a driver accepts jobs; if unused, it is stopped after the usual time."""
        self._watch_idleness(await self._running())

    async def run(self, job: str, work: SparkWork, tell: Tell | None = None) -> list[bytes]:
        """Run a job to its end, and return each task's result; cancelling this cancels the job.
        `tell` receives the numbers of finished and of all tasks.
        """
        child = await self._running()
        done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        # Before it is sent: the answer may come while `drain` still waits.
        child.jobs[job] = done
        if tell is not None:
            child.told[job] = tell
        try:
            await self._send(child, {"op": "run", "job": job, **asdict(work)})
            return await done
        except asyncio.CancelledError:
            # A driver that is gone runs nothing that would have to be cancelled.
            with contextlib.suppress(DriverLostError):
                await self._send(child, {"op": "cancel", "job": job})
            raise
        finally:
            child.jobs.pop(job, None)
            child.told.pop(job, None)
            self._watch_idleness(child)

    async def close(self) -> None:
        """End the child, in order if it is idle."""
        if self._idle is not None:
            self._idle.cancel()
        if self._child is not None:
            await self._retire(self._child)
        for task in list(self._retirements):
            await task

    async def _running(self) -> _Child:
        async with self._starting:
            if self._idle is not None:
                self._idle.cancel()
            if self._child is None or not self._child.usable:
                self._child = await self._start()
            child = self._child
        try:
            async with asyncio.timeout(self._settings.spark_start_timeout_s):
                # Shared by all who wait for this driver: the cancellation of one must not cancel
                # the others' wait.
                await asyncio.shield(child.ready)
        except TimeoutError as error:
            await self._retire(child)
            raise SparkUnusableError(
                f"Spark did not start in {self._settings.spark_start_timeout_s:g} s",
                remedy="Look at the service's log, or raise HEADRACE_SPARK_START_TIMEOUT_S.",
            ) from error
        return child

    async def _start(self) -> _Child:
        driver = [sys.executable, "-m", *self._program]
        process = await asyncio.create_subprocess_exec(
            # The parent's death kills the driver; its JVM and the workers end when their pipes do.
            *tied(driver, signal.SIGKILL),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LOG_LINE_BYTES_MAX,
            # The JVM and its Python workers join the session, so that one signal ends all of them.
            start_new_session=True,
        )
        child = _Child(self.name, process, asyncio.get_running_loop().create_future())
        # An error that nobody waits for any more is no fault.
        child.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        child.readers = [
            asyncio.create_task(self._follow(child), name="spark-driver-answers"),
            asyncio.create_task(_relay(child), name="spark-driver-log"),
        ]
        log.info("driver_starting", driver=self.name, pid=process.pid)
        return child

    async def _send(self, child: _Child, message: driver_protocol.Message) -> None:
        assert child.process.stdin is not None
        try:
            child.process.stdin.write(driver_protocol.pack(message))
            await child.process.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise DriverLostError("the driver is gone") from error

    async def _follow(self, child: _Child) -> None:
        """Process the child's answers until its end, then wake everyone who waits."""
        async for message in _frames(child.process):
            _deliver(child, message)
        # Its JVM may have died under it: the rest of the session is killed too.
        _kill_session(child.process)
        # Jobs are failed only after this: nothing of theirs runs any more when they are run again.
        code = await child.process.wait()
        log.info("driver_stopped", driver=self.name, exit_code=code)
        lost = DriverLostError(f"the driver ended with exit code {code}")
        waited_for: list[asyncio.Future[Any]] = [child.ready, *child.jobs.values()]
        for future in waited_for:
            if not future.done():
                future.set_exception(lost)

    def _watch_idleness(self, child: _Child) -> None:
        if child.jobs or child is not self._child:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(
            self._settings.spark_idle_s, self._on_idle, child
        )

    def _on_idle(self, child: _Child) -> None:
        # The timer was set before a job came, or before another driver replaced this one.
        if child.jobs or child is not self._child or not child.usable:
            return
        log.info("driver_idle", driver=self.name, idle_s=self._settings.spark_idle_s)
        self._child = None
        task = asyncio.create_task(self._retire(child), name="spark-driver-retires")
        # asyncio keeps only a weak reference to a task.
        self._retirements.add(task)
        task.add_done_callback(self._retirements.discard)

    async def _retire(self, child: _Child) -> None:
        assert child.process.stdin is not None
        if child is self._child:
            # Before it is stopped: a job that comes now starts another driver instead of using
            # a dying one.
            self._child = None
        # A busy or starting driver doesn't read its standard input, so it would not notice that it
        # is closed.
        if child.jobs or not child.ready.done():
            _kill_session(child.process)
        child.process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await child.process.wait()
        except TimeoutError:
            _kill_session(child.process)
        await asyncio.wait(child.readers, timeout=STOP_TIMEOUT_S)


class SparkDriver(DriverProcess):
    """Spark: a session in its own JVM, or the connection to `SPARK_REMOTE`."""

    name = "spark"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "headrace.spark.driver")


class LocalDriver(DriverProcess):
    """A Python process that runs tasks one after the other, without Spark, for jobs that end before
    a JVM would have started.
    """

    name = "local_copy"

    def __init__(self, settings: Settings, module: str) -> None:
        # The module of the tasks' function is imported while the driver starts.
        super().__init__(settings, "headrace.spark.local_driver", module)


def _deliver(child: _Child, message: driver_protocol.Message) -> None:
    match message["op"]:
        case "ready":
            log.info(
                "driver_ready",
                driver=child.name,
                version=message["version"],
                pid=child.process.pid,
            )
            child.ready.set_result(message["version"])
        case "unusable":
            child.ready.set_exception(SparkUnusableError(message["error"]))
        case "progress" if tell := child.told.get(message["job"]):
            tell(message["done"], message["tasks"])
        case "done" | "failed" as outcome:
            future = child.jobs.get(message["job"])
            # The job may have been cancelled while its answer was on its way.
            if future is None or future.done():
                return
            if outcome == "done":
                future.set_result(message["results"])
            else:
                kind = SparkTaskError if message["lasting"] else SparkJobError
                future.set_exception(kind(message["error"]))


async def _frames(process: asyncio.subprocess.Process) -> AsyncIterator[driver_protocol.Message]:
    assert process.stdout is not None
    # The pipe's end is the child's end, for which `_follow` finds the exit code.
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            (length,) = driver_protocol.LENGTH.unpack(
                await process.stdout.readexactly(driver_protocol.LENGTH.size)
            )
            yield driver_protocol.unpack(await process.stdout.readexactly(length))


async def _relay(child: _Child) -> None:
    """Forward Spark's output to our log; lines that are too long are dropped."""
    assert child.process.stderr is not None
    while True:
        try:
            line = await child.process.stderr.readline()
        except ValueError:
            # asyncio raises ValueError for a line over the limit, and has dropped it by then.
            continue
        if not line:
            return
        log.debug("driver_output", driver=child.name, line=line.decode(errors="replace").rstrip())


def _kill_session(process: asyncio.subprocess.Process) -> None:
    # Every process of the session may have ended already.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
