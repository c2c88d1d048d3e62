"""The suite's services as real processes, for tests that stop, kill and restart them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from headrace.embedded.process import tied

LINE = ("wal-reader", "publisher")
STOP_TIMEOUT_S = 15.0
HEADRACE = Path(sys.executable).with_name("headrace")


class Suite:
    """Services as processes, with one environment and the same arguments.

        async with Suite({"NATS_URL": url, ...}, tmp_path) as suite:
            await suite.kill("publisher")
            await suite.start("publisher")

    `services` are started when the block begins, and all are killed when it ends. The output of
    each service is in `folder/{service}.log`; `program` is the command, `headrace` by default.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        services: Sequence[str] = LINE,
        arguments: Sequence[str] = (),
        program: Sequence[str | Path] = (HEADRACE,),
    ) -> None:
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PG", "HEADRACE_", "NATS"))
        }
        self._environment = {
            **inherited,
            "HEADRACE_HTTP_PORT": "0",
            # A JVM that starts in the background takes the processors from the tests.
            "HEADRACE_SNAPSHOT_SPARK": "large",
            **environment,
        }
        self._folder = folder
        self._services = tuple(services)
        self._arguments = tuple(arguments)
        self._program = tuple(program)
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Self:
        for service in self._services:
            await self.start(service)
        return self

    async def __aexit__(self, *_: object) -> None:
        for service in list(self._processes):
            await self.kill(service)

    async def start(self, service: str, *arguments: str, **environment: str) -> None:
        """Start a service, with arguments and additional variables in its environment."""
        with (self._folder / f"{service}.log").open("ab") as log:
            self._processes[service] = await asyncio.create_subprocess_exec(
                *tied(
                    [*self._program, service, *arguments, *self._arguments],
                    signal.SIGKILL,
                ),
                env={**self._environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def kill(self, service: str) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        process = self._processes.pop(service)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def stop(self, service: str, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait for the end of the process, and return its exit code."""
        process = self._processes.pop(service)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(timeout_s):
            return await process.wait()

    async def exit_code(self, service: str, timeout_s: float) -> int:
        """Wait for a service that ends without a signal, and return its exit code."""
        async with asyncio.timeout(timeout_s):
            return await self._processes.pop(service).wait()

    @contextlib.contextmanager
    def frozen(self, service: str) -> Iterator[None]:
        """The service does nothing until the end of the block, and its connections stay open."""
        os.kill(self.pid(service), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid(service), signal.SIGCONT)

    def pid(self, service: str) -> int:
        """Return the process ID of a service."""
        return self._processes[service].pid

    def running(self, service: str) -> bool:
        """Whether a service is running."""
        return service in self._processes and self._processes[service].returncode is None

    def log(self, service: str) -> str:
        """Return the output of a service so far."""
        return (self._folder / f"{service}.log").read_text()

    async def logged(self, service: str, words: str, timeout_s: float = 60.0) -> None:
        """Wait until the output of a service contains these words."""
        try:
            async with asyncio.timeout(timeout_s):
                while words not in self.log(service):  # noqa: ASYNC110  # a file gives no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(
                f"{service} did not say {words!r}:\n{self.log(service)[-4000:]}"
            ) from None
