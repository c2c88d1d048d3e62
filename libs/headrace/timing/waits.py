"""Waiting for an event, but not for longer than a given time; and waits that are cancelled."""

from __future__ import annotations

import asyncio


async def wait_for(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event is set before the time is up."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def heed_cancellation() -> None:
    """End a cancelled task that swallowed the cancellation because it was just finishing (Python
    3.11).
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
