"""A target whose driver blocks: its calls run in one thread, and it knows whether it is the writer.

A mark in the target names the process that opened it last. Only that one may write: the first
opening takes over from any writer, and each transaction and each later opening check the mark.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.mirror import target

T = TypeVar("T")

# The key of that mark.
WRITER = "writer"


class ThreadedTarget(ABC):
    """Implements the port by four methods that may block."""

    def __init__(self, kind: str) -> None:
        self._writer = uuid.uuid4().hex
        self._has_opened = False
        # One thread: what a cancelled caller started is finished before the next call.
        self._thread = ThreadPoolExecutor(1, f"headrace-{kind}")

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def load(self) -> dict[str, str]:
        return await self._in_thread(self._load)

    async def write(self, steps: Sequence[target.Step]) -> None:
        await self._in_thread(self._write, steps)

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        await self._in_thread(self._commit, marks)

    async def close(self) -> None:
        await self._in_thread(self._close)

    @abstractmethod
    def _load(self) -> dict[str, str]: ...

    @abstractmethod
    def _write(self, steps: Sequence[target.Step]) -> None: ...

    @abstractmethod
    def _commit(self, marks: Mapping[str, str | None]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _check_writer(self, found: str | None, place: str, give_up: Callable[[], None]) -> None:
        """Raise if the mark names another process, after ending the transaction."""
        if found != self._writer:
            give_up()
            raise target.TakenOverError(place)
