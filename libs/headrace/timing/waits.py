"""Waiting for an event, but not for longer than a given time."""

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
