"""The publisher's process: holds the lease, finds its place, follows one epoch after another.

One way of doubt for everything whose outcome is in doubt: forget what is in memory, read the
stream's tail, ask the wal-reader for a new epoch. Promises: an LSN is confirmed only after every
event before it is acknowledged by JetStream and the progress is written; what is in the stream
already is skipped by position.
"""

from __future__ import annotations

from functools import partial

from nats.aio.client import Client
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.confirming.epoch_follower import EpochFollower
from headrace.confirming.relations import Relations, value_options
from headrace.errors import describe
from headrace.jetstream.provisioning import ensure_patiently
from headrace.postgres.connection import check_login
from headrace.process.leased import run_leased
from headrace.process.lifecycle import Scope
from headrace.process.recovery import follow_on
from headrace.process.service import on_the_bus
from headrace.publisher import run_parts
from headrace.publisher.catalog_watch import CatalogWatch
from headrace.publisher.change_store import StreamChangeStore
from headrace.publisher.doubt import Doubt
from headrace.publisher.lag import AckLag
from headrace.publisher.pausing import Pausing
from headrace.settings import Settings

log = logs.logger("publisher")

SERVICE = "publisher"


async def run(scope: Scope, settings: Settings) -> None:
    async def work(client: Client) -> None:
        await ensure_patiently(scope, client.jetstream(), settings.streams)
        check = partial(check_login, settings.postgres, f"headrace {SERVICE}")
        follow = partial(_work, scope, settings, client)
        await run_leased(scope, settings, client, SERVICE, follow, check)

    await on_the_bus(scope, settings, work)


async def _work(
    scope: Scope, settings: Settings, client: Client, state: KeyValue, session: str
) -> None:
    relations = Relations(settings, "headrace publisher", value_options(settings))
    watch = CatalogWatch(settings)
    pausing = Pausing(scope, settings, client, state)
    scope.spawn("catalog-watch", watch.run(scope))
    scope.spawn("pausing", pausing.run())
    lag = AckLag(scope.health.stats, scope.health.traces)
    doubt = Doubt(partial(scope.health.unblock, "publish"))
    scope.refreshers.append(lag.refresh)

    async def follow() -> None:
        """From the stream's tail as it is now, until the service stops, is paused, or doubts."""
        await pausing.until_going()
        if scope.stopping.is_set():
            return
        doubt.begin()
        async with run_parts.opened(client, settings, scope.health.stats) as parts:
            sink = StreamChangeStore(scope, parts, relations, watch, lag, doubt)
            follower = EpochFollower(scope, settings, client, sink, SERVICE, session, parts.suite)
            try:
                await follower.run(pausing.paused.is_set)
            finally:
                await sink.close()

    async def failed(error: Exception) -> bool:
        scope.health.stats.count("recoveries")
        scope.health.block("publish", describe(error))
        if isinstance(error, NotFoundError):
            # The stream is gone: created again, it is filled with what the slot still has.
            await ensure_patiently(scope, client.jetstream(), settings.streams)
        return doubt.progressed

    try:
        await follow_on(scope, client, follow, failed)
    finally:
        await relations.close()
