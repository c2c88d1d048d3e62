"""Reads the publisher's schema events for each table's version.

Promises: knows, after a restart too, the latest version that the CDC stream contains for each table
of this source, and wakes waiting tasks when one arrives. Recreates a consumer that the server lost.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from headrace import log as logs
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import schema_subject, table_token
from headrace.errors import DecodeError, describe
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("schema-publisher")

FETCH_S = 5.0
FETCH_MESSAGES = 256
# The server removes the consumer after this time without a fetch.
FORGOTTEN_S = 60.0
RETRY_S = 1.0


class SchemaEvents:
    """`told` by token; `news` is set whenever it changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.told: dict[str, int] = {}
        self.news = asyncio.Event()

    async def follow(self, scope: Scope, client: Client) -> None:
        while not scope.stopping.is_set():
            try:
                await self._follow(scope, client.jetstream())
            except (NatsError, TimeoutError) as error:
                # A missing stream, a server that restarts: reported and handled elsewhere.
                log.debug("schema_events_interrupted", reason=describe(error))
                await scope.pause(RETRY_S)

    async def _follow(self, scope: Scope, js: JetStreamContext) -> None:
        config = ConsumerConfig(
            # One subject for each table, so the latest version of each; a restart reads them again,
            # and nothing has to be acknowledged or kept.
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=FORGOTTEN_S,
            mem_storage=True,
        )
        subject = schema_subject("*")
        subscription = await js.pull_subscribe(
            subject, stream=self._settings.streams.cdc, config=config
        )
        while not scope.stopping.is_set():
            fetched: list[Msg] = []
            if await scope.until_stopping(_fetch(subscription, fetched)):
                for message in fetched:
                    self._note(message)
        await subscription.unsubscribe()

    def _note(self, message: Msg) -> None:
        try:
            event = decode(message.data)
            # Suites may share the stream.
            if event["source"] != self._settings.source.slot:
                return
            token = table_token(event["schema"], event["table"])
            version = int(event["version"])
        except (DecodeError, KeyError, TypeError, ValueError) as error:
            log.warning("schema_event_ignored", subject=message.subject, reason=str(error))
            return
        # A recreated consumer delivers known versions again, which are no news.
        if self.told.get(token) != version:
            self.told[token] = version
            self.news.set()


async def _fetch(subscription: JetStreamContext.PullSubscription, into: list[Msg]) -> None:
    try:
        into.extend(await subscription.fetch(FETCH_MESSAGES, timeout=FETCH_S))
    except TimeoutError:
        return
