"""A task that begins a moment later, if it is still needed then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

_AFTER_S: Final = 0.2


class DelayedTask:
    """Begins after a moment: most statements are done before, and a task would cost them more than
    their rows.
    """

    def __init__(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_AFTER_S, self._start)

    def _start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="statement-watch")

    async def end(self) -> asyncio.Task[None] | None:
        """End it; the task, if it has started."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        return self._task
