"""The output of a process, as it comes: tests wait until it matches a pattern."""

from __future__ import annotations

import asyncio
import re


class ProcessOutput:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.text = ""
        self._heard = asyncio.Event()
        self._reader = asyncio.create_task(self._read(process), name="output of a process")

    async def ended(self) -> None:
        """Wait until the process prints nothing more."""
        await self._reader

    async def until(self, pattern: str, timeout_s: float, start: int = 0) -> re.Match[str]:
        """Wait until the output from `start` on matches a pattern."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := re.search(pattern, self.text[start:])):
                    assert not self._reader.done(), (
                        f"ended without {pattern!r}:\n{self.text[start:]}"
                    )
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise AssertionError(f"no {pattern!r}:\n{self.text[start:]}") from None
        return found

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(65_536):
            self.text += data.decode(errors="replace")
            self._heard.set()
        self._heard.set()
