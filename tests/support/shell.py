"""A terminal: a bash that receives a page's commands as if typed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from headrace.testing.output import ProcessOutput

PATIENCE_S = 300


class Shell:
    """A bash in a folder; it ends with its block, with all that it started."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._following = ""

    async def __aenter__(self) -> Self:
        # An interactive one would not die of Ctrl-C; nor does this.
        self._process = await asyncio.create_subprocess_exec(
            "bash",
            "--norc",
            cwd=self._folder,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._output = ProcessOutput(self._process)
        await self.run("trap : INT")
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._output.ended()

    async def run(self, text: str, shown: str | None = None) -> str:
        """Run lines and return their output; stop them with Ctrl-C once they have shown `shown`."""
        mark, start = await self._typed(text)
        if shown is not None:
            await self._output.until(rf"{shown}|ended:\d+:{mark}", PATIENCE_S, start)
            self._interrupt()
        status, said = await self._ended(mark, start)
        assert status == 0 or (shown is not None and status == 130), f"{text}\n{said}"
        assert shown is None or re.search(shown, said), f"{text}\n{said}"
        return said

    async def follow(self, text: str, shown: str) -> str:
        """Run lines whose last one doesn't end, and return their output once it has shown this."""
        mark, start = await self._typed(text)
        self._following = mark
        found = await self._output.until(rf"{shown}|ended:\d+:{mark}", PATIENCE_S, start)
        said = self._output.text[start : start + found.end()]
        assert re.search(shown, said), f"{text}\n{said}"
        return said

    async def ends(self) -> None:
        """Wait until the line that followed something has ended."""
        await self._output.until(rf"ended:\d+:{self._following}", PATIENCE_S)

    async def stop(self) -> None:
        """Press Ctrl-C, and wait for the end."""
        self._interrupt()
        await self.ends()

    def _interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    async def _typed(self, text: str) -> tuple[str, int]:
        mark, start = uuid.uuid4().hex, len(self._output.text)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\necho ended:$?:{mark}\n".encode())
        await self._process.stdin.drain()
        return mark, start

    async def _ended(self, mark: str, start: int) -> tuple[int, str]:
        found = await self._output.until(rf"ended:(\d+):{mark}", PATIENCE_S, start)
        return int(found[1]), self._output.text[start : start + found.start()]
