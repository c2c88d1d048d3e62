"""Reads a source's schema events from the CDC stream, for services that need them as state.

Promises: an event that can't be read is reported and skipped; a consumer that the server lost
is created again, which delivers known events again. Nothing is acknowledged or stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from headrace import log as logs
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import schema_subject
from headrace.errors import DecodeError, describe
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

FETCH_S = 5.0
FETCH_MESSAGES = 256
# The server removes the consumer after this time without a fetch.
FORGOTTEN_S = 60.0
RETRY_S = 1.0

# Receives each event of the source; what it lacks is a KeyError, TypeError or ValueError.
Note = Callable[[Mapping[str, Any]], None]


async def follow_schema_events(
    scope: Scope, client: Client, settings: Settings, policy: DeliverPolicy, note: Note
) -> None:
    """Pass the events that `policy` selects, and all later ones, to `note` until the stop."""
    log = logs.logger(scope.service)
    while not scope.stopping.is_set():
        try:
            await _follow(scope, client.jetstream(), settings, policy, note)
        except (NatsError, TimeoutError) as error:
            # A missing stream, a server that restarts: reported and handled elsewhere.
            log.debug("schema_events_interrupted", reason=describe(error))
            await scope.pause(RETRY_S)


async def _follow(
    scope: Scope, js: JetStreamContext, settings: Settings, policy: DeliverPolicy, note: Note
) -> None:
    config = ConsumerConfig(
        deliver_policy=policy,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=FORGOTTEN_S,
        mem_storage=True,
    )
    stream = settings.streams.cdc
    subscription = await js.pull_subscribe(schema_subject("*"), stream=stream, config=config)
    while not scope.stopping.is_set():
        fetched: list[Msg] = []
        if await scope.until_stopping(_fetch(subscription, fetched)):
            for message in fetched:
                _pass_on(scope, settings.source.slot, message, note)
    await subscription.unsubscribe()


def _pass_on(scope: Scope, source: str, message: Msg, note: Note) -> None:
    try:
        event = decode(message.data)
        # Suites may share the stream.
        if event["source"] == source:
            note(event)
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        log = logs.logger(scope.service)
        log.warning("schema_event_ignored", subject=message.subject, reason=str(error))


async def _fetch(subscription: JetStreamContext.PullSubscription, into: list[Msg]) -> None:
    try:
        into.extend(await subscription.fetch(FETCH_MESSAGES, timeout=FETCH_S))
    except TimeoutError:
        return
