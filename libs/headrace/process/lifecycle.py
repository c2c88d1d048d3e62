"""A service's lifecycle: start in two phases, run under one TaskGroup, stop in order and on time.

Promises: every task has a name and an owner; a task that fails takes the process down visibly; the
first SIGTERM or SIGINT requests an ordered stop; a stop that takes too long logs what it is waiting
for and then ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvloop

from headrace import log as logs
from headrace.errors import HeadraceError, leaves
from headrace.metrics.counters import Counters
from headrace.process.health import Health
from headrace.process.malloc_tuning import keep_freed_memory
from headrace.settings import ProcessSettings
from headrace.timing.waits import wait_for

log = logs.logger("lifecycle")

# Messages in flight are many small tuples without cycles: collecting them every 700 allocations
# took a seventh of the time.
_COLLECT_AFTER = 50_000

EXIT_ERROR = 1
# EX_SOFTWARE and EX_TEMPFAIL of sysexits.h.
EXIT_CRASH = 70
EXIT_LATE = 75


@dataclass(slots=True)
class Scope:
    """The state that a running service shares with its parts."""

    service: str
    process: ProcessSettings
    tasks: asyncio.TaskGroup
    health: Health
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    # Someone asked for the stop; a service that fails stops, too.
    stop_requested: bool = False
    waits: list[str] = field(default_factory=list)

    @property
    def refreshers(self) -> list[Callable[[Counters], None]]:
        """Callbacks that refresh gauges on demand."""
        return self.health.refreshers

    def stop(self) -> None:
        """Stop in order, because someone asks for it."""
        # A service that fails already must not look as if it had been stopped.
        if not self.stopping.is_set():
            self.stop_requested = True
        self.stopping.set()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a part of the service; if it ends with an error, the service stops within the time
        limit.
        """
        return self.tasks.create_task(self._guarded(work), name=name)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            # From here on the shutdown deadline runs: nothing that hangs may keep a failed service
            # alive.
            self.stopping.set()
            raise

    @contextlib.contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Name what is being waited for, so that a late shutdown can log it."""
        self.waits.append(what)
        try:
            yield
        finally:
            self.waits.remove(what)

    async def until_stopping(self, work: Awaitable[Any]) -> bool:
        """Wait for `work` or the stop, whichever comes first; returns whether `work` finished."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self.stopping.wait(), name="until-stopping")
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                # Awaited too, so that its `finally` blocks have run before the caller continues.
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if task.done() and not task.cancelled():
            # An error of `work` would be lost otherwise.
            task.result()
            return True
        return False

    async def pause(self, seconds: float) -> None:
        """Sleep until the time is over or the service stops."""
        await wait_for(self.stopping, seconds)


Main = Callable[[Scope], Awaitable[None]]


def run(
    service: str, process: ProcessSettings, main: Main, tell: Callable[[str], None] | None = None
) -> int:
    """Run a service to its end; returns the exit code.

    `tell` shows an expected error to a person instead of logging it.
    """
    logs.configure(service, level=process.log_level, form=process.log_format)
    keep_freed_memory()
    # Imported code lives as long as the process: each collection would look at it in vain.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    try:
        return uvloop.run(_supervised(service, process, main))
    except BaseExceptionGroup as group:
        return _report(service, list(leaves(group)), tell)
    except Exception as error:  # noqa: BLE001  # the last place that can report it
        return _report(service, [error], tell)


def _report(service: str, errors: list[BaseException], tell: Callable[[str], None] | None) -> int:
    """Report why the service ended: expected errors in one line, others with a traceback."""
    for error in errors:
        if isinstance(error, HeadraceError) and tell:
            tell(str(error))
        elif isinstance(error, HeadraceError):
            log.error("service_failed", error=type(error).__name__, reason=str(error))
        else:
            log.crash("service_crashed", error, service=service)
    if all(isinstance(error, HeadraceError) for error in errors):
        return EXIT_ERROR
    return EXIT_CRASH


async def _supervised(service: str, process: ProcessSettings, main: Main) -> int:
    tasks = asyncio.TaskGroup()
    scope = Scope(service, process, tasks, Health(service))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, scope, number)
    # Outside the group, which waits for its tasks: one of them may be what hangs.
    deadline = asyncio.create_task(_deadline(scope), name="shutdown-deadline")
    try:
        async with tasks:
            try:
                await main(scope)
            finally:
                # The group waits for all tasks, and those that wait for a stop end only now.
                scope.stopping.set()
    finally:
        with scope.waiting_for("threads to end"):
            # The loop's runner would wait for them without a limit.
            await loop.shutdown_default_executor()
        deadline.cancel()
    log.info("service_stopped")
    return 0


def _ask_to_stop(scope: Scope, number: signal.Signals) -> None:
    if scope.stopping.is_set():
        log.warning(
            "second_signal", signal=number.name, outcome="waiting for the shutdown deadline"
        )
        return
    log.info("stop_requested", signal=number.name)
    scope.stop()


async def _deadline(scope: Scope) -> None:
    """End a stop that hangs: nothing unacknowledged was confirmed by then, so nothing is lost."""
    await scope.stopping.wait()
    half = scope.process.shutdown_timeout_s / 2
    await asyncio.sleep(half)
    log.warning("shutdown_waits", waiting_for=", ".join(scope.waits) or "tasks to end")
    await asyncio.sleep(half)
    log.error("shutdown_deadline", waiting_for=", ".join(scope.waits) or "tasks to end")
    sys.stderr.flush()
    _exit_now(EXIT_LATE)


def _exit_now(code: int) -> None:
    import os  # noqa: PLC0415  # only this last resort needs it

    # sys.exit would run `finally` blocks and wait for threads, which may be what hangs.
    os._exit(code)
