"""The archiver's process: holds the lease, finds the archive's end, follows one epoch after
another.

One way of recovery for everything whose outcome is in doubt: forget what is in memory, read the
archive's last file, ask the wal-reader for a new epoch. Promises: files contain exactly what was
committed, in commit order, ids have no gaps; an LSN is confirmed only when everything before it is
in a file; a file is created or refused, never overwritten, so that an archiver that lost its lease
while suspended does no harm.
"""

from __future__ import annotations

from functools import partial

from nats.aio.client import Client
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.archive.errors import ArchiveUnreachableError
from headrace.archive.mark import mark_key
from headrace.archive.store import Store
from headrace.archiver import base_age, janitor
from headrace.archiver.archived_table import OPTIONS
from headrace.archiver.change_store import ArchiveChangeStore
from headrace.archiver.file_writer import FileWriter, at_the_end
from headrace.confirming.epoch_follower import EpochFollower
from headrace.confirming.relations import Relations
from headrace.errors import SettingError, describe
from headrace.jetstream.object_store import ObjectStore
from headrace.jetstream.parking import Parking
from headrace.jetstream.provisioning import ensure_patiently
from headrace.jetstream.state import Cell
from headrace.process.leased import run_leased
from headrace.process.lifecycle import Scope
from headrace.process.recovery import follow_on
from headrace.process.service import on_the_bus
from headrace.settings import Settings

log = logs.logger("archiver")

SERVICE = "archiver"


async def run(scope: Scope, settings: Settings) -> None:
    if not settings.archive.url:
        raise SettingError(
            "HEADRACE_ARCHIVE_URL is not set",
            remedy="Set it to a folder (file:///…) or a bucket (s3://…, gs://…, az://…).",
        )
    # Before the lease: a wrong URL ends the process immediately.
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
        # A separate task: a collection must not delay a file.
        scope.spawn("janitor", janitor.run(scope, store, settings.archive.keep_s))
    scope.spawn("base-age", base_age.run(scope, store))
    relations = Relations(settings, "headrace archiver", OPTIONS)
    source = settings.source.slot
    stats = scope.health.stats
    parked = ObjectStore(client.jetstream(), settings.streams.parked, client.max_payload)
    parking = Parking(settings.delivery.poison, parked, source, stats, "archive_parked_messages")
    cell = Cell(state, mark_key(source))
    writer: FileWriter | None = None

    async def follow() -> None:
        """From the archive's end as it is now, until the service stops or doubts."""
        nonlocal writer
        # If the end is not found, the failure belongs to no writer, and nothing has progressed.
        writer = None
        writer = await at_the_end(scope, store, cell, source, session)
        sink = ArchiveChangeStore(scope, settings, relations, parking, writer)
        try:
            await EpochFollower(scope, settings, client, sink, SERVICE, session).run()
        finally:
            # A thread may still be creating a file, which the next run has to find.
            await sink.close()

    async def failed(error: Exception) -> bool:
        stats.count("archive_recoveries")
        if isinstance(error, ArchiveUnreachableError):
            part = "store"
        else:
            part = "archive"
        scope.health.block(part, describe(error))
        log.warning("archive_recovery", reason=describe(error))
        # Progress resets the backoff.
        return writer is not None and writer.progressed

    try:
        await follow_on(scope, client, follow, failed)
    finally:
        await relations.close()
