"""Whether a service runs, as its lease shows: it is renewed, which depends on no clock."""

from __future__ import annotations

import asyncio

from nats.js.errors import KeyNotFoundError

from headrace.cli.session import nats
from headrace.jetstream.state import bucket
from headrace.settings import Settings


async def is_renewed(settings: Settings, service: str) -> bool:
    """Whether an instance of a service renews its lease in time."""
    async with nats(settings, "doctor") as (client, _):
        state = await bucket(client.jetstream(), settings.streams.state)
        key = f"lease.{settings.source.slot}.{service}"
        try:
            before = (await state.get(key)).revision
            # It is renewed three times per time to live.
            await asyncio.sleep(settings.state.lease_ttl_s / 2)
            return (await state.get(key)).revision != before
        except KeyNotFoundError:
            return False
