"""The wal-archiver's process: one connection after another, each from what is stored.

Needs no NATS: reports to telemetry are sent while it is available. A second instance waits for the
slot, which PostgreSQL gives to one connection. While PostgreSQL or the store is unavailable it
waits, unready, with the reason, and PostgreSQL's slot retains the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psycopg

from headrace import log as logs
from headrace.backup.errors import BackupError
from headrace.backup.store import BackupStore
from headrace.bus import participation
from headrace.errors import HeadraceError, SettingError, describe
from headrace.jetstream.connection import NatsUnreachableError, connected
from headrace.postgres.physical import TimelineEndError
from headrace.postgres.replication_errors import SlotBusyError, SlotLostError
from headrace.process.health import Health, application, serving
from headrace.process.lifecycle import Scope
from headrace.process.service import http_port
from headrace.settings import Settings
from headrace.timing.backoff import Backoff, jittered
from headrace.wal_archiver.receiver import Receiver
from headrace.wal_archiver.watch import ServerWatch

log = logs.logger("wal-archiver")

SERVICE = "wal-archiver"
BACKOFF_S = 0.2
BACKOFF_S_MAX = 10.0
STANDBY_POLL_S = 0.5


async def run(scope: Scope, settings: Settings) -> None:
    url = settings.backup.url
    if not url:
        raise SettingError(
            "HEADRACE_BACKUP_URL is not set",
            remedy="Set it to the location of the backups: file:///…, s3://…",
        )
    app = application(scope.health, settings.source.slot)
    port = http_port(SERVICE, settings.process)
    async with serving(app, settings.process.http_host, port):
        reports = scope.spawn("reports", _report(scope, settings))
        await _Work(scope, settings, url).run()
        scope.stopping.set()
        await reports


async def _report(scope: Scope, settings: Settings) -> None:
    """Take part in the suite while NATS is available; backups don't wait for it."""
    # Without NATS this service is as ready as with it.
    aside = replace(scope, health=Health(SERVICE))
    try:
        async with connected(aside, settings.nats) as client:
            await participation.take_part(scope, client, settings.source.slot)
    except NatsUnreachableError:
        if not scope.stopping.is_set():
            raise


class _Work:
    def __init__(self, scope: Scope, settings: Settings, url: str) -> None:
        self._scope = scope
        self._settings = settings
        self._store = BackupStore(url, settings.backup.put_timeout_s)
        self._watch = ServerWatch(scope, settings, self._store)
        self._watching: asyncio.Task[None] | None = None
        self._past_hole = False

    async def run(self) -> None:
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        while not self._scope.stopping.is_set():
            receiver = Receiver(
                self._scope,
                self._settings,
                self._store,
                self._watch.on_commits,
                past_hole=self._past_hole,
            )
            try:
                await self._receive(receiver)
            # No failure: another connection continues with the next timeline.
            except TimelineEndError:
                backoff.reset()
            except (HeadraceError, psycopg.Error) as error:
                if isinstance(error, HeadraceError) and not self._passes(error):
                    raise
                # It has stored something, so this is a new failure.
                if receiver.progressed:
                    backoff.reset()
                await self._back_off(error, backoff)
        if self._watching is not None:
            await self._watching

    async def _receive(self, receiver: Receiver) -> None:
        await asyncio.to_thread(self._store.identify)
        self._watch.follow_receiver(receiver)
        if self._watching is None:
            self._watching = self._scope.spawn("watch", self._watch.run())
        await receiver.run()
        self._past_hole = False

    def _passes(self, error: HeadraceError) -> bool:
        if isinstance(error, SlotLostError):
            # The server has removed what the store lacks: there will be a hole, which is reported.
            self._past_hole = True
            return True
        return error.retry

    async def _back_off(self, error: Exception, backoff: Backoff) -> None:
        self._scope.health.stats.count("backup_recoveries")
        if isinstance(error, SlotBusyError):
            self._scope.health.stand_by("postgres", str(error))
            await self._scope.pause(jittered(STANDBY_POLL_S))
            return
        part = "store" if isinstance(error, BackupError) else "postgres"
        self._scope.health.block(part, describe(error))
        await self._scope.pause(backoff.pause_s())
