"""The lake's process: holds the lease, follows the archive, copies tables, makes cuts.

One way of recovery for everything whose outcome is in doubt: forget what is in memory, read the
last cut, continue with the archive's next file. While the archive, the lake or the source is
unavailable it waits, unready, with the reason.
"""

from __future__ import annotations

import asyncio
from functools import partial

from nats.aio.client import Client
from nats.js.kv import KeyValue

from headrace import log as logs
from headrace.archive.mark import mark_key
from headrace.archive.store import Store
from headrace.errors import describe
from headrace.jetstream.state import Cell
from headrace.lake.catalog import Cut
from headrace.lake.files import LakeFiles
from headrace.lake.opening import check_lake, open_catalog
from headrace.lake_writer.endpoint import Endpoint
from headrace.lake_writer.engines import chosen_engine
from headrace.lake_writer.follower import Follower, Places
from headrace.lake_writer.lag import Lag
from headrace.lake_writer.rewrites import Rewrites
from headrace.lake_writer.upkeep import Upkeep
from headrace.postgres.connection import check_login
from headrace.process.leased import run_leased
from headrace.process.lifecycle import Scope
from headrace.process.recovery import follow_on
from headrace.process.service import on_the_bus
from headrace.settings import Settings

log = logs.logger("lake-writer")

SERVICE = "lake-writer"


async def run(scope: Scope, settings: Settings) -> None:
    # Before NATS is needed: no waiting helps against a wrong setting.
    check_lake(settings)

    async def work(client: Client) -> None:
        check = partial(check_login, settings.postgres, f"headrace {SERVICE}")
        follow = partial(_work, scope, settings, client)
        await run_leased(scope, settings, client, SERVICE, follow, check)

    await on_the_bus(scope, settings, work, Endpoint(settings).extend)


async def _work(
    scope: Scope, settings: Settings, client: Client, state: KeyValue, _session: str
) -> None:
    assert settings.lake.url, "checked at the start"
    assert settings.archive.url, "checked at the start"
    files = LakeFiles(settings.lake.url)
    catalog = open_catalog(settings)
    archive = Store(settings.archive.url, timeout_s=settings.archive.put_timeout_s)
    engine = chosen_engine(settings, files)
    places = Places(files, catalog, archive, engine)
    mark = Cell(state, mark_key(settings.source.slot))
    rewrites = Rewrites(settings)
    scope.spawn("schema-events", rewrites.follow(scope, client))
    upkeep = Upkeep(scope, settings, files, catalog, engine)
    follower: Follower | None = None

    async def follow() -> None:
        nonlocal follower
        follower = Follower(scope, settings, places, mark, rewrites, upkeep)
        await follower.run()

    async def failed(error: Exception) -> bool:
        scope.health.stats.count("lake_recoveries")
        scope.health.block("lake", describe(error))
        log.warning("lake_recovery", reason=describe(error))
        # An attempt that has stored something makes the pauses short again.
        return follower is not None and follower.progressed

    # Asked for each time, because every recovery replaces the follower.
    def last_cut() -> Cut | None:
        if follower is None:
            return None
        return follower.last_cut

    scope.spawn("lag", Lag(settings, last_cut).follow(scope))
    try:
        await follow_on(scope, client, follow, failed)
    finally:
        with scope.waiting_for("Spark's driver to end"):
            await engine.close()
        await asyncio.to_thread(catalog.close)
