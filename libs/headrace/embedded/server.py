"""The common part of every embedded server: its verbs, its folder and its port.

The verbs are `start`, `stop`, `kill` and `restart`, each also under a `_blocking` name. The
blocking ones do the work and belong to no event loop, so that one server can outlive many loops (a
test session). The async ones run them in a thread and, when cancelled, first let the verb finish: a
server is either started and known, or not started.

A port that was picked here is stored in the folder: a later start takes it again if it is free, and
a restart of the same object insists on it, so that clients find the server again.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self

from headrace.embedded.ports import free_port, is_free
from headrace.embedded.process import Launch, PortTakenError, ServerProcess, StopStep

StopMode = Literal["fast", "immediate"]

# Between the check of a port and the server's own bind another process may use it.
_PORT_ATTEMPTS_MAX = 5


class EmbeddedServer(ABC):
    """A server of one folder, run as a child of this process."""

    kind: ClassVar[str]
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]]

    def __init__(self, folder: Path, port: int, start_timeout_s: float) -> None:
        # The server runs in `/`, where a relative path would be another folder.
        self.folder = folder.absolute()
        self._port = port
        self._port_is_fixed = port != 0
        self._start_timeout_s = start_timeout_s
        self._process = ServerProcess(self.kind, self.folder)
        # Verbs of two threads never mix: a stop waits for a start to end.
        self._verb = threading.RLock()

    @abstractmethod
    def _prepare(self) -> None:
        """Create what the folder lacks; called once per start, before a port is picked."""

    @abstractmethod
    def _launch(self) -> Launch:
        """Write the configuration for the current port; returns what to run."""

    def _free(self) -> None:  # noqa: B027 - most servers have nothing there
        """Remove what a killed server leaves outside its folder."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the server answers; called repeatedly until it does."""

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; before the first start, the port that was named, or 0."""
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server runs."""
        return self._process.running

    @property
    def ending(self) -> str:
        """The way the server ended: "killed by SIGKILL", "status 1"; empty if it didn't."""
        return self._process.ending

    @property
    def log_tail(self) -> str:
        """The last lines the server logged since its start."""
        return self._process.tail()

    def start_blocking(self) -> None:
        """Start and return when the server is ready. A running server is left alone."""
        with self._verb:
            if self.running:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            self._prepare()
            for attempt in range(1, _PORT_ATTEMPTS_MAX + 1):
                try:
                    self._start_once()
                except PortTakenError:
                    if self._port_is_fixed or attempt == _PORT_ATTEMPTS_MAX:
                        raise
                else:
                    return

    def stop_blocking(self, mode: StopMode = "fast") -> None:
        """Stop in order ("fast") or abruptly ("immediate"); kill it if it doesn't end in time."""
        with self._verb:
            self._process.stop(self.stop_steps[mode])

    def kill_blocking(self) -> None:
        """End the server like a crash: SIGKILL to it and to all its children."""
        with self._verb:
            self._process.kill()

    def remove_blocking(self) -> None:
        """Kill the server, and remove its folder and its files elsewhere."""
        with self._verb:
            self._process.kill()
            self._free()
            if self.folder.exists():
                shutil.rmtree(self.folder)

    def restart_blocking(self, mode: StopMode = "fast") -> None:
        """Stop, and start again on the same port."""
        with self._verb:
            self.stop_blocking(mode)
            self.start_blocking()

    async def start(self) -> None:
        """Start and return when the server is ready. A running server is left alone."""
        await self._in_thread(self.start_blocking)

    async def stop(self, mode: StopMode = "fast") -> None:
        """Stop in order ("fast") or abruptly ("immediate"); kill it if it doesn't end in time."""
        await self._in_thread(lambda: self.stop_blocking(mode))

    async def kill(self) -> None:
        """End the server like a crash: SIGKILL to it and to all its children."""
        await self._in_thread(self.kill_blocking)

    async def restart(self, mode: StopMode = "fast") -> None:
        """Stop, and start again on the same port."""
        await self._in_thread(lambda: self.restart_blocking(mode))

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except asyncio.CancelledError:
            # `_in_thread` lets the start finish, so a server may run that nobody would stop.
            await self.stop("immediate")
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _start_once(self) -> None:
        if not self._port_is_fixed:
            self._port = free_port(preferred=self._kept_port())
        elif not is_free(self._port):
            # The usual reason is a server of this very folder: then that is the error to report.
            self._process.refuse_if_served()
            raise PortTakenError(
                f"{self.kind} can't listen on port {self._port}: another program uses it"
            )
        launch = self._launch()
        self._process.start(
            launch, port=self._port, ready=self._is_ready, timeout_s=self._start_timeout_s
        )
        (self.folder / "port").write_text(f"{self._port}\n")
        # From now on clients know the port, so a restart insists on it.
        self._port_is_fixed = True

    def _kept_port(self) -> int:
        kept = self.folder / "port"
        text = kept.read_text().strip() if kept.exists() else ""
        if text.isdigit():
            return int(text)
        return 0

    async def _in_thread(self, verb: Callable[[], None]) -> None:
        task = asyncio.create_task(asyncio.to_thread(verb), name=f"embedded {self.kind}")
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # A thread can't be cancelled, and a server that was started halfway would belong to
            # nobody.
            await asyncio.wait({task})
            raise
