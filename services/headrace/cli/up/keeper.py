"""Keeps embedded servers running: restarts one that dies, and tells the user.

Promises: a server that died leaves no zombie; it comes back with its own folder and port, so that
every client finds it again; one that dies three times within a minute ends the command, with the
server's last log lines. Starts nothing that was not running before, and nothing once it is
cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headrace.embedded.process import ServerStartError
from headrace.embedded.server import EmbeddedServer
from headrace.errors import HeadraceError

DEATHS_MAX = 3
WITHIN_S = 60.0
_LOOK_S = 0.2


class ServerDiedError(HeadraceError):
    """An embedded server dies repeatedly."""

    remedy = (
        "Correct what it says there; a full disk and too little memory are the usual "
        "reasons. Then start again."
    )


class Keeper:
    """The embedded servers of one command, once they run."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._servers: list[EmbeddedServer] = []
        self._died_at: dict[EmbeddedServer, list[float]] = {}

    def watch(self, servers: Sequence[EmbeddedServer]) -> None:
        """These servers run now, and should continue to."""
        self._servers = list(servers)

    async def run(self) -> None:
        """Never returns; raises if a server can't be kept running."""
        while True:
            for server in self._servers:
                if not server.running:
                    await self._revive(server)
            # A child's exit raises an event, but only in a thread that waits for it: one thread for
            # each child, all the time.
            await asyncio.sleep(_LOOK_S)

    async def _revive(self, server: EmbeddedServer) -> None:
        """Restart it; a failed start counts as a death."""
        self._count_death(server)
        self._tell(f"{server.kind} ended ({server.ending}); starting it again")
        try:
            await server.start()
        except ServerStartError as error:
            self._tell(f"{server.kind} did not start: {str(error).splitlines()[0]}")
        else:
            self._tell(f"{server.kind} listens on 127.0.0.1:{server.port} again")

    def _count_death(self, server: EmbeddedServer) -> None:
        now = time.monotonic()
        deaths = [at for at in self._died_at.get(server, []) if now - at < WITHIN_S]
        self._died_at[server] = [*deaths, now]
        if len(deaths) + 1 >= DEATHS_MAX:
            raise ServerDiedError(
                f"{server.kind} ended {DEATHS_MAX} times within {WITHIN_S:g} s, the last time "
                f"{server.ending}; "
                f"its log ends\n{server.log_tail}\nThat is the end of "
                f"{server.folder / 'server.log'}"
            )


async def unless_told_to_stop(
    work: Coroutine[Any, Any, Any], told_to_stop: asyncio.Event, keeping: asyncio.Task[None]
) -> bool:
    """Do the work, unless the user stops it first; returns whether it was done.

    Raises if an embedded server, kept by `keeping`, can't be kept running meanwhile.
    """
    task = asyncio.create_task(work, name="up")
    stop = asyncio.create_task(told_to_stop.wait(), name="stop")
    await asyncio.wait({task, stop, keeping}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if task.done():
        task.result()
        return True
    # Before anything is stopped: work that still runs could start more.
    await cancelled(task)
    if keeping.done():
        keeping.result()
    return False


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; the caller has its result, or doesn't need it."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        # Otherwise asyncio would log that nobody retrieved it.
        task.exception()
