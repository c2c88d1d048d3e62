"""Statements that a database executes while a test does something else."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

from headrace.testing.database import Database


@contextlib.asynccontextmanager
async def written_meanwhile(
    database: Database, sql: Callable[[int], str], first: int = 0, pause_s: float = 0.1
) -> AsyncIterator[None]:
    """Execute the statements of one number after another until the end of the block."""

    async def write() -> None:
        for number in itertools.count(first):
            await database.execute(sql(number))
            await asyncio.sleep(pause_s)

    writing = asyncio.create_task(write(), name="writing")
    try:
        yield
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
