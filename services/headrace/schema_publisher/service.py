"""The schema-publisher's process: compares catalog and bucket, at startup and after each change.

Promises: every table of the publication has its schema in the bucket, a removed table has none, a
restart writes nothing. While PostgreSQL, NATS or the publication is unavailable it waits, unready,
and recovers automatically. Never reads a row.
"""

from __future__ import annotations

import asyncpg
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from headrace import log as logs
from headrace.errors import HeadraceError, describe
from headrace.jetstream.provisioning import SILENT_MAX
from headrace.postgres.connection import PostgresError
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.schema_publisher.bucket import SchemaBucket
from headrace.schema_publisher.events import SchemaEvents
from headrace.schema_publisher.reading import SchemaReading
from headrace.settings import Settings
from headrace.timing.backoff import Backoff
from headrace.timing.waits import wait_for

log = logs.logger("schema-publisher")

BACKOFF_S = 0.2
BACKOFF_S_MAX = 5.0


async def run(scope: Scope, settings: Settings) -> None:
    async def work(client: Client) -> None:
        events = SchemaEvents(settings)
        follower = scope.spawn("schema-events", events.follow(scope, client))
        await SchemaPublisher(scope, settings, client, events).run()
        scope.stopping.set()
        await follower

    await on_the_bus(scope, settings, work)


class SchemaPublisher:
    def __init__(
        self, scope: Scope, settings: Settings, client: Client, events: SchemaEvents
    ) -> None:
        self._scope = scope
        self._interval_s = settings.watch.catalog_interval_s
        self._reading = SchemaReading(settings)
        self._bucket = SchemaBucket(settings, client, scope.health.stats)
        self._events = events
        self._worked = False
        self._silent = 0
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)

    async def run(self) -> None:
        try:
            while not self._scope.stopping.is_set():
                # Before the comparison: news that arrive during it cause another one.
                self._events.news.clear()
                pause_s = await self._compare()
                await self._scope.until_stopping(wait_for(self._events.news, pause_s))
        finally:
            self._reading.close()

    async def _compare(self) -> float:
        """Compare once; returns the time to wait for the next comparison."""
        try:
            tables = await self._reading.schemas()
            self._scope.health.stats.set("tables", len(tables))
            self._scope.health.unblock("postgres")
            await self._bucket.sync(tables, self._events.told)
        except (HeadraceError, NatsError, TimeoutError, asyncpg.PostgresError) as error:
            return self._blocked(error)
        self._scope.health.unblock("schemas")
        self._scope.health.started()
        self._worked = True
        self._backoff.reset()
        return self._interval_s

    def _blocked(self, error: Exception) -> float:
        """An error at startup ends the process with its remedy; once it has worked, errors are
        waited for.
        """
        # A JetStream that is starting does not answer either, so silence is permanent only after
        # several attempts.
        self._silent += isinstance(error.__cause__, NatsTimeoutError)
        is_busy = isinstance(error.__cause__, NatsTimeoutError) and self._silent < SILENT_MAX
        if (
            isinstance(error, HeadraceError)
            and not error.retry
            and not self._worked
            and not is_busy
        ):
            raise error
        if isinstance(error, PostgresError | asyncpg.PostgresError):
            part = "postgres"
        else:
            part = "schemas"
        self._scope.health.block(part, describe(error))
        # After an error of NATS nobody knows whether a write was stored.
        if part == "schemas":
            self._bucket.forget()
        return self._backoff.pause_s()
