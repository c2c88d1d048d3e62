"""Copying that ends as soon as the snapshot that it reads is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from headrace.postgres.connection import PostgresUnreachableError

T = TypeVar("T")


async def unless_lost(work: Awaitable[T], lost: asyncio.Event, remedy: str | None = None) -> T:
    """The result of `work`, which is cancelled if the transaction that holds the snapshot is lost.

    PostgreSQL drops an exported snapshot with its transaction: tasks that import it later would
    fail one after another.
    """
    copying = asyncio.ensure_future(work)
    losing = asyncio.create_task(lost.wait(), name="snapshot-lost")
    try:
        await asyncio.wait({copying, losing}, return_when=asyncio.FIRST_COMPLETED)
        if lost.is_set():
            raise PostgresUnreachableError(
                "the connection that holds the snapshot was lost, and the snapshot with it",
                remedy=remedy,
            )
        return copying.result()
    finally:
        losing.cancel()
        # Cancelled in both cases; a task that has finished takes no notice.
        copying.cancel()
        # Both use what the caller closes next.
        await asyncio.wait({copying, losing})
