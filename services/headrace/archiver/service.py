"""The archiver's process: holds the lease, finds the archive's end, follows one epoch after
another.

One way of recovery for everything whose outcome is in doubt: forget what is in memory, read the
archive's last file, ask the wal-reader for a new epoch. Promises: files hold exactly what was
committed, in commit order, ids without gaps; an LSN is confirmed only when what is before it is in
a file; a file is created or refused, never overwritten, so that an archiver that lost its lease in
its sleep does no harm.
"""

from __future__ import annotations

from functools import partial

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.archive.errors import ArchiveUnreachableError
from headrace.archive.store import Store
from headrace.archiver import janitor
from headrace.archiver.archived_table import OPTIONS
from headrace.archiver.follower import Follower
from headrace.archiver.pyarrow_memory import keep_small
from headrace.bus import link
from headrace.confirming.relations import Relations
from headrace.errors import HeadraceError, SettingError, describe
from headrace.jetstream.provisioning import ensure_patiently
from headrace.jetstream.state import Cell
from headrace.metrics.counting import count
from headrace.process.leased import run_leased
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.settings import Settings
from headrace.timing.backoff import Backoff

log = logs.logger("archiver")

SERVICE = "archiver"
BACKOFF_S, BACKOFF_S_MAX = 0.1, 5.0


async def run(scope: Scope, settings: Settings) -> None:
    if not settings.archive.url:
        raise SettingError(
            "HEADRACE_ARCHIVE_URL is not set",
            remedy="Set it to a folder (file:///…) or a bucket (s3://…, gs://…, az://…).",
        )
    keep_small()
    store = Store(settings.archive.url, timeout_s=settings.archive.put_timeout_s)

    async def work(client: Client) -> None:
        await ensure_patiently(scope, client.jetstream(), settings.streams)
        archive = partial(_work, scope, settings, client, store)
        await run_leased(scope, settings, client, SERVICE, archive)

    await on_the_bus(scope, settings, work)


async def _work(
    scope: Scope, settings: Settings, client: Client, store: Store, state: KeyValue, session: str
) -> None:
    if settings.archive.keep_s is not None:
        scope.spawn("janitor", janitor.run(scope, store, settings.archive.keep_s))
    relations = Relations(settings, "headrace archiver", OPTIONS)
    try:
        await _archive(scope, settings, client, relations, store, state, session)
    finally:
        await relations.close()


async def _archive(
    scope: Scope,
    settings: Settings,
    client: Client,
    relations: Relations,
    store: Store,
    state: KeyValue,
    session: str,
) -> None:
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    while not scope.stopping.is_set():
        cell = Cell(state, f"archive.{settings.source.slot}")
        follower = Follower(scope, settings, client, relations, store, cell, session)
        try:
            await follower.run()
        except (HeadraceError, NatsError, TimeoutError) as error:
            if isinstance(error, HeadraceError) and not error.retry:
                raise
            if client.is_closed:
                raise link.BusClosedError("the NATS client gave up") from error
            count(scope.health.stats, "archive_recoveries")
            part = "store" if isinstance(error, ArchiveUnreachableError) else "archive"
            scope.health.block(part, describe(error))
            log.warning("archive_recovery", reason=describe(error))
            if follower.progressed:
                backoff.reset()
            await scope.pause(backoff.pause_s())
