"""One run of one service: its process, its output, its end.

Promises: the process receives no Ctrl-C of the terminal and dies with this one, however this one
dies; every line it prints is in its log file; nothing of its process group outlives it. Never
restarts it: the supervisor does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded.process import tied
from headrace.supervisor.line import Line, parse

# asyncio's own limit is 64 KiB, and a crash report in one line may be longer.
LINE_BYTES_MAX = 1024 * 1024
LOG_BYTES_MAX = 16 * 1024 * 1024
OUTPUT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Service:
    """A service to run, and the address of its readiness."""

    name: str
    environment: Mapping[str, str]
    http_port: int
    log: Path
    # The command after `headrace`; the name if empty.
    arguments: tuple[str, ...] = ()
    # Whether the suite works without it: nothing waits for it, and its failure ends nothing.
    optional: bool = False

    @property
    def command(self) -> list[str]:
        # -P: files in the user's folder must not replace a library.
        return [sys.executable, "-P", "-m", "headrace.cli", *(self.arguments or (self.name,))]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"


@dataclass(eq=False)
class ServiceProcess:
    """A service's process from its start to its end."""

    service: Service
    _process: asyncio.subprocess.Process
    failure: str = ""

    @classmethod
    async def start(cls, service: Service) -> ServiceProcess:
        """Start it. Call this on the main thread: the kernel ties the service's life to the calling
        thread.
        """
        process = await asyncio.create_subprocess_exec(
            *tied(service.command, signal.SIGKILL),
            # A pipe is buffered in blocks: lines would arrive late, and a kill would lose the last
            # ones.
            env={**service.environment, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )
        return cls(service, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, tell: Callable[[Line], None]) -> int:
        """Pass its lines on until it ends; returns its exit status, negative for a signal."""
        output = asyncio.create_task(self._read(tell), name=f"output of {self.service.name}")
        try:
            status = await self._process.wait()
            # Children that it left in its process group must not outlive it.
            self.kill()
            # A grandchild in its own session may hold the pipe for longer than anyone wants to
            # wait.
            await asyncio.wait({output}, timeout=OUTPUT_TIMEOUT_S)
        finally:
            output.cancel()
        return status

    def terminate(self) -> None:
        """Request an orderly stop."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kill it, and its children, immediately."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read(self, tell: Callable[[Line], None]) -> None:
        output = self._process.stdout
        assert output is not None, "started with a pipe"
        _rotate(self.service.log)
        with self.service.log.open("ab", buffering=0) as log:
            while data := await _line(output):
                log.write(data)
                line = parse(data.decode(errors="replace"))
                # Further lines may follow the one with the reason.
                self.failure = line.failure or self.failure
                tell(line)


async def _line(output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readuntil()
    except asyncio.IncompleteReadError as error:
        # The last line may lack its newline; at the end of the output this is empty.
        return error.partial
    except asyncio.LimitOverrunError as error:
        # A longer line is passed on in parts: a full pipe would block the service.
        return await output.readexactly(error.consumed)


def _rotate(log: Path) -> None:
    """Keep one older log when the current one has grown large."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_name(f"{log.name}.1"))
