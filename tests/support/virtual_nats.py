"""A simulated nats-server with the suite's streams, in virtual time, for tests of its readers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

from headrace.jetstream import provisioning
from headrace.settings import StreamSettings
from tests.simulation.client import SimClient
from tests.simulation.clockwork import Process, VirtualLoop, virtual_clocks
from tests.simulation.readers import ReaderServer

T = TypeVar("T")
STREAMS = StreamSettings()
# Work that needs longer than this stands still.
PATIENCE_S = 120.0


class VirtualNats:
    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.loop = VirtualLoop()
        self.server = ReaderServer(self.loop, self.chance)
        for config in provisioning.declared(STREAMS):
            self.server._create(config.as_dict())  # as `headrace init`

    def client(self, process: Process | None = None) -> SimClient:
        """A connection, of a process that may be killed."""
        made = SimClient(self.server, process, copy_context())
        made.open()
        return made

    def begin(self, work: Coroutine[Any, Any, T], name: str = "work") -> Any:
        """Begin something in its own process; the task."""
        return self.loop.begin(Process(name), work)

    def do(self, work: Coroutine[Any, Any, T], patience_s: float = PATIENCE_S) -> T:
        """Do something to its end, and return its result."""
        task = self.begin(work)
        self.until(task.done, patience_s)
        found: T = task.result()
        return found

    def until(self, holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Let time pass until this holds."""
        deadline = self.loop.now + patience_s
        self.run(lambda: holds() or self.loop.now > deadline)
        assert holds(), f"not within {patience_s:g} s"

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Have something happen later."""
        self.loop.call_later(seconds, call, context=Context())

    def past(self, seconds: float) -> None:
        """Let this much time pass."""
        with self._turning():
            self.loop.run(self.loop.now + seconds)

    def run(self, until: Callable[[], bool]) -> None:
        """Let the world turn until this holds."""
        with self._turning():
            self.loop.run_until(until)

    @contextmanager
    def _turning(self) -> Iterator[None]:
        """Without logs."""
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with virtual_clocks(self.loop, self.chance):
                yield
        finally:
            logging.disable(before)

    def close(self) -> None:
        self.loop.bury()
