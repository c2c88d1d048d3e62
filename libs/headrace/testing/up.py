"""`headrace up` as a new user runs it: a process in a separate folder, its output, and its
children.

Promises that the command has ended when its block ends. Its children end with it; `survivors` finds
any that don't.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import aiohttp

from headrace.testing.output import ProcessOutput

TABLE_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class Up:
    """One `headrace up`, its output, and all processes that it started."""

    def __init__(
        self, folder: Path, *arguments: str, command: Sequence[str] = ("up",), **environment: str
    ) -> None:
        self.folder = folder
        self._command = tuple(command)
        self._arguments = arguments
        # Services inherit the mark; the embedded servers, which inherit nothing, have the folder in
        # their command.
        self._mark = f"HEADRACE_TEST_MARK={uuid.uuid4().hex}"
        foreign = ("PG", "NATS", "HEADRACE_", "POSTGRES_")
        name, _, value = self._mark.partition("=")
        kept = {key: text for key, text in os.environ.items() if not key.startswith(foreign)}
        self._environment = {**kept, name: value, **environment}

    @property
    def output(self) -> str:
        return self._printed.text

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("headrace")),
            *self._command,
            *self._arguments,
            cwd=self.folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._printed = ProcessOutput(self.process)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._printed.ended()

    async def says(self, words: str, timeout_s: float = TABLE_TIMEOUT_S) -> re.Match[str]:
        """Wait until the output matches a pattern."""
        return await self._printed.until(words, timeout_s)

    async def ends(self) -> int:
        """Wait for its end and the end of its output, and return its exit status."""
        async with asyncio.timeout(TABLE_TIMEOUT_S + STOP_TIMEOUT_S):
            await self._printed.ended()
            return await self.process.wait()

    def survivors(self) -> list[str]:
        """The commands of processes that this run started and that still run."""
        return [
            shown
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and (shown := self._mine(entry)) is not None
        ]

    async def leaves_nothing(self, timeout_s: float = 10.0) -> None:
        """Wait until no process of this run is left."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.survivors():  # noqa: ASYNC110  # the end of another process's child gives no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"still running: {self.survivors()}") from None

    def _mine(self, entry: Path) -> str | None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            command = (
                (entry / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
            marked = self._mark.encode() in (entry / "environ").read_bytes()
            if command and (marked or str(self.folder) in command):
                return f"{entry.name} {command}"
        return None


async def ready(url: str, path: str = "/readyz") -> None:
    """Wait until a service answers that it is ready."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"{url}{path}") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
