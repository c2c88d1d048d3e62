"""The lake's process: holds the lease, follows the archive, copies tables, makes cuts.

One way of recovery for everything whose outcome is in doubt: forget what is in memory, read the
last cut, go on with the archive's next file. While the archive, the lake or the source is
unavailable it waits, unready, with the reason.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from nats.aio.client import Client
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.archive.mark import mark_key
from headrace.archive.store import Store
from headrace.confirming.recovery import follow_on
from headrace.errors import SettingError, describe
from headrace.jetstream.state import Cell
from headrace.lake.catalog import Catalog
from headrace.lake.files import LakeFiles
from headrace.lake.postgres_catalog import PostgresCatalog
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.lake_writer.follower import Follower
from headrace.lake_writer.rewrites import Rewrites
from headrace.process.leased import run_leased
from headrace.process.lifecycle import Scope
from headrace.process.service import on_the_bus
from headrace.settings import Settings

log = logs.logger("lake-writer")

SERVICE = "lake-writer"
_SQLITE = "sqlite://"


async def run(scope: Scope, settings: Settings) -> None:
    check(settings)

    async def work(client: Client) -> None:
        await run_leased(scope, settings, client, SERVICE, partial(_work, scope, settings, client))

    await on_the_bus(scope, settings, work)


def check(settings: Settings) -> None:
    """Refuse settings that can't be a lake's."""
    if not settings.lake.url:
        raise SettingError(
            "HEADRACE_LAKE_URL is not set",
            remedy="Set it to a folder (file:///…) or a bucket (s3://…, gs://…, az://…).",
        )
    if not settings.archive.url:
        raise SettingError(
            "HEADRACE_ARCHIVE_URL is not set",
            remedy="The lake is built from the archive: set it to a folder or a bucket of its own.",
        )


def open_catalog(settings: Settings) -> Catalog:
    """The lake's catalog."""
    url = settings.lake.catalog
    lake = (settings.lake.url or "").rstrip("/")
    if url is None and lake.startswith("file://"):
        return SqliteCatalog(Path(lake.removeprefix("file://")) / "catalog.db")
    if url is None:
        raise SettingError(
            "HEADRACE_LAKE_CATALOG is not set",
            remedy="A lake in a bucket needs a catalog: set it to postgresql://… or sqlite:///path.",
        )
    if url.startswith(_SQLITE):
        return SqliteCatalog(Path(url.removeprefix(_SQLITE)))
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresCatalog(url)
    raise SettingError(
        f"HEADRACE_LAKE_CATALOG starts with {url.split(':')[0]}:",
        remedy="Use sqlite:///path or postgresql://….",
    )


async def _work(
    scope: Scope, settings: Settings, client: Client, state: KeyValue, _session: str
) -> None:
    assert settings.lake.url, "checked at the start"
    assert settings.archive.url, "checked at the start"
    files = LakeFiles(settings.lake.url)
    catalog = open_catalog(settings)
    archive = Store(settings.archive.url, timeout_s=settings.archive.put_timeout_s)
    mark = Cell(state, mark_key(settings.source.slot))
    rewrites = Rewrites(settings)
    scope.spawn("schema-events", rewrites.follow(scope, client))
    follower: Follower | None = None

    async def follow() -> None:
        nonlocal follower
        follower = Follower(scope, settings, files, catalog, archive, mark, rewrites)
        await follower.run()

    async def failed(error: Exception) -> bool:
        scope.health.stats.count("lake_recoveries")
        scope.health.block("lake", describe(error))
        log.warning("lake_recovery", reason=describe(error))
        return follower is not None and follower.progressed

    try:
        await follow_on(scope, client, follow, failed)
    finally:
        await asyncio.to_thread(catalog.close)
