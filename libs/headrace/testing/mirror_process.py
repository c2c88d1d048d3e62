"""Mirrors as processes, for tests that kill them; and the verifier, as a command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.embedded.process import tied
from headrace.testing.suite import HEADRACE

STOP_TIMEOUT_S = 20.0


class MirrorProcess:
    """`headrace mirror --to …`; its output is in `folder/{name}.log`."""

    def __init__(
        self, environment: Mapping[str, str], folder: Path, name: str, to: str, *options: str
    ) -> None:
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PG", "HEADRACE_", "NATS"))
        }
        self.environment = {**inherited, **environment}
        self.to = to
        self.command = "mirror"
        self.program: Sequence[str | Path] = (HEADRACE,)
        self._options = options
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied(
                    [*self.program, self.command, "--to", self.to, *self._options], signal.SIGKILL
                ),
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await self._process.wait()

    async def ended(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit code of a mirror that ends without a signal."""
        assert self._process is not None
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    @property
    def pid(self) -> int:
        """The process, for its figures."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def logged(self, words: str, times: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until its log holds these words, so many times."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.log.count(words) < times:  # a file gives no event
                    assert self.runs, f"the mirror ended:\n{self.log[-4000:]}"
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the mirror did not say {words!r}:\n{self.log[-4000:]}") from None

    async def verified(
        self, *options: str, timeout_s: float = 180.0
    ) -> tuple[int, list[dict[str, Any]]]:
        """`headrace verify --json`: its exit code, and what it says of each table."""
        return await verified(self.environment, self.to, *options, timeout_s=timeout_s)


async def verified(
    environment: Mapping[str, str], to: str, *options: str, timeout_s: float = 180.0
) -> tuple[int, list[dict[str, Any]]]:
    """The verifier's exit code, and what it says of each table."""
    process = await asyncio.create_subprocess_exec(
        *tied([HEADRACE, "verify", "--to", to, "--json", *options], signal.SIGKILL),
        env=dict(environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(timeout_s):
        output, errors = await process.communicate()
    assert process.returncode in {0, 3}, errors.decode()[-4000:]
    return process.returncode or 0, [json.loads(line) for line in output.decode().splitlines()]


def different(verdicts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The tables that are not equal."""
    return [verdict for verdict in verdicts if not verdict["equal"]]
