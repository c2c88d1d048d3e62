"""The snapshot-responder's process: takes requests from the work queue while it holds the lease.

Promises: a request is answered immediately and kept until its snapshot has ended; the process stays
small, because Spark's driver is a child that lives only while it is needed. Never sees a row.
"""

from __future__ import annotations

from functools import partial

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.contract.subjects_and_ids import SNAPSHOT_REQUEST_SUBJECTS
from headrace.errors import describe
from headrace.jetstream.provisioning import ensure_patiently
from headrace.postgres.connection import check_login
from headrace.process.leased import run_leased
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.settings import Settings
from headrace.snapshot_responder.drivers import Drivers
from headrace.snapshot_responder.requests import SnapshotRequests
from headrace.timing.backoff import Backoff

log = logs.logger("snapshot-responder")

SERVICE = "snapshot-responder"
DURABLE = "headrace-snapshot-responder"
FETCH_WAIT_S = 5.0
BACKOFF_S = 0.1
BACKOFF_S_MAX = 5.0


async def run(scope: Scope, settings: Settings) -> None:
    async def work(client: Client) -> None:
        await ensure_patiently(scope, client.jetstream(), settings.streams)
        if not scope.stopping.is_set():
            respond = partial(_work, scope, settings, client)
            check = partial(check_login, settings.postgres, f"headrace {SERVICE}")
            await run_leased(scope, settings, client, SERVICE, respond, check)

    await on_the_bus(scope, settings, work)


async def _work(
    scope: Scope, settings: Settings, client: Client, state: KeyValue, _session: str
) -> None:
    drivers = Drivers.of(settings)
    desk = SnapshotRequests(scope, settings, client, drivers, state)
    scope.refreshers.append(desk.refresh)
    holding = scope.spawn("requests-kept", desk.keep())
    try:
        await desk.open()
        scope.health.started()
        await _take_requests(scope, settings, client, desk)
    finally:
        # Before the driver ends: a snapshot that loses it would start another one.
        with scope.waiting_for("unfinished snapshots to be returned"):
            await desk.close()
        with scope.waiting_for("the drivers to end"):
            await drivers.close()
        # Only now: a request that is not returned yet must not be redelivered meanwhile.
        holding.cancel()


async def _take_requests(
    scope: Scope, settings: Settings, client: Client, desk: SnapshotRequests
) -> None:
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    while not scope.stopping.is_set():
        try:
            await _fetch(scope, settings, client.jetstream(), desk)
        except (NatsError, TimeoutError) as error:
            scope.health.block("requests", describe(error))
            await scope.pause(backoff.pause_s())


async def _fetch(
    scope: Scope, settings: Settings, js: JetStreamContext, desk: SnapshotRequests
) -> None:
    """Pass requests on until the service stops, or NATS fails."""
    # Held requests stay unacknowledged, so `max_ack_pending` limits their number.
    config = ConsumerConfig(
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=settings.snapshot.ack_wait_s,
        max_ack_pending=settings.snapshot.requests_max,
    )
    requests = await js.pull_subscribe(
        SNAPSHOT_REQUEST_SUBJECTS, durable=DURABLE, stream=settings.streams.requests, config=config
    )
    scope.health.unblock("requests")
    await scope.until_stopping(_fetch_loop(requests, desk))


async def _fetch_loop(requests: JetStreamContext.PullSubscription, desk: SnapshotRequests) -> None:
    while True:
        try:
            # One at a time: for more, nats-py waits until it has them all.
            messages = await requests.fetch(1, timeout=FETCH_WAIT_S)
        except TimeoutError:
            # nats-py reports an empty queue as a time-out.
            continue
        for message in messages:
            await desk.take(message)
