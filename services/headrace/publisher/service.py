"""The publisher's process: holds the lease, finds its place, follows one epoch after another.

One way of recovery for everything whose outcome is in doubt: forget what is in memory, read the
stream's tail, ask the wal-reader for a new epoch. Promises: an LSN is confirmed only after every
event before it is acknowledged by JetStream and the progress is written; what is in the stream
already is skipped by position.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.bus import link
from headrace.confirming.relations import Relations, value_options
from headrace.errors import HeadraceError, describe
from headrace.jetstream.provisioning import ensure_patiently
from headrace.metrics.counting import Stats, count
from headrace.process.leased import run_leased
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.publisher.catalog_watch import CatalogWatch
from headrace.publisher.follower import Follower
from headrace.publisher.pausing import Pausing
from headrace.settings import Settings
from headrace.timing.backoff import Backoff

log = logs.logger("publisher")

SERVICE = "publisher"
BACKOFF_S, BACKOFF_S_MAX = 0.1, 5.0


async def run(scope: Scope, settings: Settings) -> None:
    async def work(client: Client) -> None:
        await ensure_patiently(scope, client.jetstream(), settings.streams)
        await run_leased(scope, settings, client, SERVICE, partial(_work, scope, settings, client))

    await on_the_bus(scope, settings, work)


async def _work(
    scope: Scope, settings: Settings, client: Client, state: KeyValue, session: str
) -> None:
    relations = Relations(settings, "headrace publisher", value_options(settings))
    watch = CatalogWatch(settings)
    pausing = Pausing(scope, settings, client, state)
    scope.spawn("catalog-watch", watch.run(scope))
    scope.spawn("pausing", pausing.run())
    try:
        await _publish(
            scope,
            lambda: Follower(scope, settings, client, relations, watch, session),
            settings,
            client,
            pausing,
        )
    finally:
        await relations.close()


async def _publish(
    scope: Scope, make: Callable[[], Follower], settings: Settings, client: Client, pausing: Pausing
) -> None:
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    follower: Follower | None = None

    def refresh(stats: Stats) -> None:
        if follower is not None:
            follower.lag.refresh(stats)

    scope.refreshers.append(refresh)
    while not scope.stopping.is_set():
        await pausing.until_going()
        if scope.stopping.is_set():
            return
        before, follower = follower, make()
        if before is not None:
            follower.succeed(before)
        try:
            await follower.run(pausing.paused)
        # A lost race for the progress too: whether this process has to go is the lease's to say.
        except (HeadraceError, NatsError, TimeoutError) as error:
            if isinstance(error, HeadraceError) and not error.retry:
                raise
            if client.is_closed:
                raise link.BusClosedError("the NATS client gave up") from error
            count(scope.health.stats, "recoveries")
            scope.health.block("publish", describe(error))
            if follower.progressed:
                backoff.reset()
            await scope.pause(backoff.pause_s())
            if isinstance(error, NotFoundError):
                # The stream is gone: made again, it is filled with what the slot still has.
                await ensure_patiently(scope, client.jetstream(), settings.streams)
