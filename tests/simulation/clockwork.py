"""An event loop whose time is a number, and processes that can be killed or put to sleep.

Nothing waits: when no callback is ready, time jumps to the next timer. Callbacks run in the order
that asyncio promises. The world draws everything random (how long a message takes, when a fault
comes) from its seed, so a seed gives the same history each time.

A process is a set of callbacks. A callback that was started in a process's context belongs to it,
however far it was passed on. A killed process runs no further callback: its coroutines stay at
their last await, as after SIGKILL. A sleeping process runs its callbacks when it wakes up.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import inspect
import random
import secrets
import sys
import time
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

# A history that turns more often than this stands still, or runs in a circle.
TURNS_MAX = 400_000
# Where clocks begin: a moment in 2026, since some code asks what year it is.
EPOCH_S = 1_790_000_000.0


class StuckError(AssertionError):
    """The world turns without end, or nothing is left that could happen."""


class Process:
    """Something that can be killed, or sleep."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.asleep = False
        self.held: list[_Handle] = []
        # Called when it dies: its connections end.
        self.on_death: list[Callable[[], None]] = []
        self.ended: BaseException | None = None
        self.done = False
        # By which it can be stopped in order.
        self.scope: Scope | None = None


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


if TYPE_CHECKING:
    from headrace.process.lifecycle import Scope

    # Of what a loop can do, nothing here opens a socket or starts a process.
    _Loop = object
else:
    _Loop = asyncio.AbstractEventLoop


class _Handle:
    """A callback that is due."""

    __slots__ = ("args", "callback", "context", "process")

    def __init__(self, callback: Callable[..., Any] | None, args: Any, context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.process: Process | None = context.get(PROCESS)

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


# Something due: a callback of a process, or an event of the world itself.
_Due = _Handle | partial[object]


class VirtualLoop(_Loop):
    """Runs callbacks in order; owns the world's only clock."""

    def __init__(self) -> None:
        # For asyncio, which wants a loop that can do everything.
        self._self: Any = self
        self.now = 0.0
        self.turns = 0
        self.errors: list[dict[str, Any]] = []
        self._ready: deque[_Due] = deque()
        # Their times, and their numbers in the order in which they were set.
        self._timers: list[tuple[float, int, _Due]] = []
        self._numbers = 0
        # How long a thread takes to send something, and this to arrive.
        self.thread_s: Callable[[], float] = lambda: THREAD_S
        # Whether a thread's work happens elsewhere.
        self.threads_send = False
        # The time that passes between a thread's work and its answer.
        self.answer_after_s = 0.0
        self._nobody = copy_context()
        self._nobody.run(PROCESS.set, None)
        # Tasks of killed processes stay at their last await: collected earlier, they would continue.
        self._tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self._self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # the dead leave pending ones
        self._tasks.append(task)
        return task

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context or copy_context())
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context or copy_context())
        self._numbers = number = self._numbers + 1
        heapq.heappush(self._timers, (when, number, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def at(self, when: float, call: Callable[[Any], object], message: Any) -> None:
        """Of nobody's process, in the context in which the loop runs; for the world itself."""
        self._numbers = number = self._numbers + 1
        heapq.heappush(self._timers, (when, number, partial(call, message)))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # noqa: ARG002  # asyncio's
        """A thread's work, done in one step a moment later.

        If threads send requests, a request that was sent arrives even if the process is killed
        or falls asleep.
        """
        future = self.create_future()
        own = copy_context()

        def begun() -> None:
            context = self._nobody if self.threads_send else own
            self.call_later(self.thread_s(), work, context=context)

        def work() -> None:
            self.answer_after_s = 0.0
            try:
                outcome = partial(_resolved, future, func(*args))
            except Exception as error:  # noqa: BLE001  # handed on, as a thread pool does
                outcome = partial(_failed, future, error)
            self.call_later(self.answer_after_s, outcome, context=own)

        self.call_later(self.thread_s(), begun)
        return future

    def run(self, past: float) -> None:
        """Everything that happens until then."""
        timers = self._timers
        with self._running():
            self._turn()
            while timers and timers[0][0] <= past:
                self._jump()
                self._turn()
        self.now = max(self.now, past)

    def run_until(self, over: Callable[[], bool]) -> None:
        """Turn until `over` holds, which is asked after all callbacks of a moment."""
        with self._running():
            self._turn()
            while not over():
                self._jump()
                self._turn()

    @contextmanager
    def _running(self) -> Iterator[None]:
        before = events._get_running_loop()  # pytest's own loop may run around us
        events._set_running_loop(self._self)
        hooks = sys.get_asyncgen_hooks()
        # One that a dead process left halfway is not closed when it is collected.
        sys.set_asyncgen_hooks(finalizer=lambda _: None)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(before)

    def _turn(self) -> None:
        """All callbacks of this moment."""
        ready = self._ready
        while ready:
            self.turns += 1
            if self.turns > TURNS_MAX:
                raise StuckError(f"{self.turns} turns, and no end")
            handle = ready.popleft()
            if isinstance(handle, partial):
                handle()
                continue
            callback, process = handle.callback, handle.process
            if callback is None:
                continue
            if process is not None:
                if process.dead:
                    continue
                if process.asleep:
                    process.held.append(handle)
                    continue
            handle.context.run(callback, *handle.args)

    def _jump(self) -> None:
        """To the next timers; those of one moment in the order in which they were set."""
        timers, ready = self._timers, self._ready
        if not timers:
            raise StuckError("nothing is left that could happen")
        self.now = now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= now:
            due = heapq.heappop(timers)[2]
            if isinstance(due, partial) or due.callback is not None:
                ready.append(due)

    def begin(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin the work of a process, in its context."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return context.run(lambda: self.create_task(work, name=process.name, context=context))

    def kill(self, process: Process) -> None:
        if process.dead:
            return
        process.dead = True
        process.held.clear()
        for ending in process.on_death:
            ending()

    def sleep(self, process: Process) -> None:
        process.asleep = True

    def wake(self, process: Process) -> None:
        process.asleep = False
        self._ready.extend(process.held)
        process.held = []

    def bury(self) -> None:
        """End what stands where it awaited, quietly: this history is over."""
        before = events._get_running_loop()
        events._set_running_loop(self._self)
        for task in self._tasks:
            _end(task.get_coro())
        events._set_running_loop(before)
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()


def _resolved(future: asyncio.Future[Any], result: Any) -> None:
    if not future.cancelled():
        future.set_result(result)


def _failed(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.cancelled():
        future.set_exception(error)


def _end(coroutine: Any) -> None:
    """Close it from the inside out; what it awaits at its end is of no use to anybody."""
    for _ in range(_CLOSINGS_MAX):
        if getattr(coroutine, "cr_frame", None) is None:
            return
        innermost = coroutine
        while inspect.iscoroutine(inner := innermost.cr_await) and inner.cr_frame is not None:
            innermost = inner
        with contextlib.suppress(BaseException):
            innermost.close()


_CLOSINGS_MAX = 200

THREAD_S = 0.0005


@contextmanager
def virtual_clocks(loop: VirtualLoop, chance: random.Random) -> Iterator[None]:
    """All clocks are the loop's, and all randomness is the seed's, in this program, for a while."""
    kept = {
        (time, "monotonic"): lambda: loop.now,
        (time, "time"): lambda: EPOCH_S + loop.now,
        (time, "time_ns"): lambda: int((EPOCH_S + loop.now) * 1e9),
        (secrets, "token_hex"): lambda size=16: f"{chance.getrandbits(8 * size):0{2 * size}x}",
        (secrets, "randbits"): chance.getrandbits,
        (random, "uniform"): chance.uniform,
        (random, "random"): chance.random,
    }
    before = {(module, name): getattr(module, name) for module, name in kept}
    for (module, name), fake in kept.items():
        setattr(module, name, fake)
    try:
        yield
    finally:
        for (module, name), real in before.items():
            setattr(module, name, real)
