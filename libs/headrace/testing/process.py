"""The suite's commands, run as a user runs them: as processes with an environment.

Promises that no process outlives the test: it is killed when its block ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

_START_TIMEOUT_S = 60.0
_POLL_S = 0.02
# Variables of a developer's shell must not affect a test.
_FOREIGN = ("PG", "NATS_", "HEADRACE_", "POSTGRES_")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of a command, and its output."""

    code: int
    out: str
    err: str


def _command() -> Path:
    return Path(sys.executable).with_name("headrace")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | dict(given)


async def command(
    environment: Mapping[str, str], *arguments: str, typed: str = "", timeout_s: float = 60
) -> Outcome:
    """Run `headrace` with these arguments to its end."""
    process = await asyncio.create_subprocess_exec(
        _command(),
        *arguments,
        env=_environment(environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(typed.encode())
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return Outcome(process.returncode or 0, out.decode(), err.decode())


def rss_mib(pid: int) -> float:
    """The resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} is gone")


class ServiceProcess:
    """A running service: its output, its port, its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.out: list[str] = []
        self.logged: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._readers = [
            asyncio.create_task(self._read_out(), name="service-stdout"),
            asyncio.create_task(self._read_log(), name="service-log"),
        ]

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read_out(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.out.append(line.decode().rstrip("\n"))
            self._news.set()
        self._news.set()

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            try:
                self.logged.append(json.loads(line))
            except ValueError:
                self.logged.append({"event": line.decode().rstrip("\n")})
            self._news.set()
        self._news.set()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log events of this name so far."""
        return [event for event in self.logged if event["event"] == name]

    async def logs(
        self, name: str, *, count: int = 1, timeout_s: float = _START_TIMEOUT_S
    ) -> dict[str, Any]:
        """Wait for the `count`th log event of this name, and return it."""
        await self._until(lambda: len(self.events(name)) >= count, name, timeout_s)
        return self.events(name)[count - 1]

    async def says(self, start: str, timeout_s: float = _START_TIMEOUT_S) -> str:
        """Wait for a line on stdout that starts like this, and return it."""
        await self._until(
            lambda: any(line.startswith(start) for line in self.out), start, timeout_s
        )
        return next(line for line in self.out if line.startswith(start))

    async def _until(self, happened: Callable[[], bool], what: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not happened():
                    if all(reader.done() for reader in self._readers):
                        raise AssertionError(f"the service ended without {what}: {self.logged}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {what} within {timeout_s} s: {self.logged}") from None

    async def url(self) -> str:
        """The address of its HTTP port."""
        return f"http://127.0.0.1:{(await self.logs('http_listening'))['port']}"

    async def get(self, path: str) -> tuple[int, str]:
        """The status and body of a GET request."""
        async with aiohttp.ClientSession() as http, http.get(await self.url() + path) as answer:
            return answer.status, await answer.text()

    async def readiness(self, status: int, timeout_s: float = _START_TIMEOUT_S) -> dict[str, Any]:
        """Wait until `/readyz` answers with this status, and return its body."""
        async with asyncio.timeout(timeout_s):
            while True:
                code, body = await self.get("/readyz")
                if code == status:
                    return dict(json.loads(body))
                await asyncio.sleep(_POLL_S)

    async def stop(self) -> int:
        """Send SIGTERM, wait for its end, and return its exit code."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self, timeout_s: float = _START_TIMEOUT_S) -> int:
        """Wait for its end, read all of its output, and return its exit code."""
        async with asyncio.timeout(timeout_s):
            code = await self._process.wait()
            await asyncio.gather(*self._readers)
        return code

    async def kill(self) -> None:
        """End it as a crash would, with SIGKILL."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self.ended()


@contextlib.asynccontextmanager
async def service(
    environment: Mapping[str, str], name: str, *arguments: str, program: Sequence[str] = ()
) -> AsyncIterator[ServiceProcess]:
    """Run a service of the suite on a free port, and kill it when the block ends.

    `program` runs in place of `headrace`.
    """
    process = await asyncio.create_subprocess_exec(
        *(program or (_command(),)),
        name,
        *arguments,
        env=_environment({"HEADRACE_HTTP_PORT": "0", "HEADRACE_LOG_FORMAT": "json", **environment}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = ServiceProcess(process)
    try:
        yield running
    finally:
        await running.kill()
