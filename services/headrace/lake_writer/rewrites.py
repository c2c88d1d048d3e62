"""Reads the publisher's schema events for changes that no row shows: rewritten tables.

Promises: knows, for each table of this source, the last LSN at which the stream says that it has to
be copied again. Reading an event twice says nothing new, so nothing has to be stored: what counts
is whether the table's copy is older than that LSN.
"""

from __future__ import annotations

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from headrace import log as logs
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import schema_subject
from headrace.errors import DecodeError, describe
from headrace.lake.catalog import TableName
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("lake-writer")

FETCH_S = 5.0
FETCH_MESSAGES = 256
# The server removes the consumer after this time without a fetch.
FORGOTTEN_S = 60.0
RETRY_S = 1.0
# A table that is mentioned for the first time was copied already.
_NO_REWRITE = {"table_first_seen"}


class Rewrites:
    """`at` is the last LSN at which a table has to be copied again, by its name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.at: dict[TableName, int] = {}

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
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=FORGOTTEN_S,
            mem_storage=True,
        )
        stream = self._settings.streams.cdc
        subscription = await js.pull_subscribe(schema_subject("*"), stream=stream, config=config)
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
            if event["source"] != self._settings.source.slot or not event["resync"]:
                return
            if {change["change"] for change in event["changes"]} <= _NO_REWRITE:
                return
            name = TableName(event["schema"], event["table"])
            lsn = int(event["tx"]["lsn"])
        except (DecodeError, KeyError, TypeError, ValueError) as error:
            log.warning("schema_event_ignored", subject=message.subject, reason=str(error))
            return
        self.at[name] = max(lsn, self.at.get(name, 0))


async def _fetch(subscription: JetStreamContext.PullSubscription, into: list[Msg]) -> None:
    try:
        into.extend(await subscription.fetch(FETCH_MESSAGES, timeout=FETCH_S))
    except TimeoutError:
        return
