"""The last value of a part that may be unreachable, and since when it is stale.

An answer never shows an old value as if it were new: `stale` names the part, the time of its last
reading and the reason why there is no later one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Generic, TypeVar

import aiohttp
import asyncpg
from nats.errors import Error as NatsError

from headrace.errors import HeadraceError, describe

T = TypeVar("T")
# The errors of a reading; any other error is a defect and is answered as one.
FAILURES = (
    HeadraceError,
    NatsError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    aiohttp.ClientError,
    OSError,
)
READ_TIMEOUT_S = 4.0


def stamp(moment: float | None = None) -> str:
    """A time as answers write it; now by default."""
    at = datetime.fromtimestamp(time.time() if moment is None else moment, UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


class LastKnown(Generic[T]):
    """The last value of one part."""

    def __init__(
        self,
        part: str,
        read: Callable[[], Awaitable[T]],
        fresh_s: float,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self.part = part
        self.value: T | None = None
        self.reason = "not read yet"
        self._read = read
        self._fresh_s = fresh_s
        self._timeout_s = timeout_s
        self._at: float | None = None
        self._tried = 0.0
        self._turn = asyncio.Lock()

    async def current(self) -> T | None:
        """The value, read again if it is older than it may be; the last one if that fails."""
        # One reading serves all who ask meanwhile: a page sends several requests together.
        async with self._turn:
            if time.monotonic() - self._tried >= self._fresh_s:
                await self._refresh()
        return self.value

    async def _refresh(self) -> None:
        try:
            # Less than a request may take: an answer with old values beats none.
            async with asyncio.timeout(self._timeout_s):
                self.value = await self._read()
        except FAILURES as error:
            self.reason = describe(error)
        else:
            # The wall clock, because people read it; intervals use the monotonic one.
            self._at = time.time()
            self.reason = ""
        # After a failure too, or an unreachable server would delay every answer.
        self._tried = time.monotonic()

    # A list, so that answers can add up those of several parts.
    def stale(self) -> list[dict[str, object]]:
        """Nothing, or why and since when the value is old."""
        if not self.reason:
            return []
        # Never read: then there is no moment to name.
        since = None
        if self._at is not None:
            since = stamp(self._at)
        return [{"part": self.part, "since": since, "reason": self.reason}]
