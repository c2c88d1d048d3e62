"""Work that one process of a suite may do at a time: wait for the role's lease, work, hand it over.

Promises: the work begins only with the lease, and its lease is released when it ends in order.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.js.kv import KeyValue

from headrace.jetstream.state import Cell, Lease, bucket_patiently
from headrace.process.lifecycle import Scope
from headrace.settings import Settings


async def run_leased(
    scope: Scope,
    settings: Settings,
    client: Client,
    role: str,
    work: Callable[[KeyValue, str], Awaitable[None]],
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Do `work(state bucket, session)` while this process holds the lease of the role.

    `check` raises what would keep a standby from working, such as a wrong password.
    """
    session = secrets.token_hex(8)
    state = await bucket_patiently(scope, client.jetstream(), settings.streams.state)
    if state is None:
        return
    cell = Cell(state, f"lease.{settings.source.slot}.{role}")
    lease = Lease(cell, session, settings.state.lease_ttl_s)
    # A standby waits here as long as another process renews the lease; it is False only after a
    # stop.
    if not await lease.acquire(scope, check):
        return
    keeper = scope.spawn("lease", lease.keep(scope))
    await work(state, session)
    # Awaited and not cancelled: a renewal that is cut short leaves a revision that nobody knows,
    # and the lease to age.
    scope.stopping.set()
    await keeper
    await lease.release()
