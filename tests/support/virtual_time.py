"""Runs a test's coroutine on the simulation's clock: waits take no time, and the order is the same
in every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from tests.simulation.clockwork import Process, VirtualLoop, virtual_clocks


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a coroutine a test. It fails if it waits for something that nothing can cause."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        loop = VirtualLoop()
        with virtual_clocks(loop, random.Random(0)):
            try:
                task = loop.begin(Process("test"), test(*args, **named))
                loop.run_until(task.done)
            finally:
                loop.bury()
        task.result()

    return run
