"""The SQL server's process: the private PostgreSQL, the copies, the front.

It follows the lake's cuts: each is defined in the private PostgreSQL and fed to the copies before
clients see it. While the lake is unavailable, clients query the last cut, and the process is
unready, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from headrace import log as logs
from headrace.bus.participation import take_part
from headrace.errors import HeadraceError, describe
from headrace.jetstream.connection import CONNECT_RETRY_S, CONNECT_RETRY_S_MAX, connect_once
from headrace.lake.catalog import Cut
from headrace.lake.files import LakeFiles
from headrace.lake.opening import check_place, open_catalog
from headrace.process.health import application, serving
from headrace.process.lifecycle import Scope
from headrace.process.service import http_port
from headrace.settings import Settings, SqlSettings
from headrace.sql.builtins import QUERY, Builtins
from headrace.sql.cut_reading import CutReader
from headrace.sql.lake_copy import LakeCopy
from headrace.sql.lake_copy_database import CopyLimits
from headrace.sql.private_server import check_sql
from headrace.sql.time_zones import read_zones_of
from headrace.sql_server.definitions import Definitions
from headrace.sql_server.exact_tables import ExactTables
from headrace.sql_server.front import Front, PrivateDatabase
from headrace.sql_server.lake_run import SharedLake
from headrace.sql_server.login import encryption
from headrace.sql_server.private_postgres import PrivatePostgres
from headrace.timing.backoff import Backoff

log = logs.logger("sql-server")

SERVICE = "sql-server"
_TIDY_INTERVAL_S = 1.0


async def run(scope: Scope, settings: Settings) -> None:
    check_place(settings)
    check_sql(settings.sql)
    app = application(scope.health, settings.source.slot)
    port = http_port(scope.service, settings.process)
    async with serving(app, settings.process.http_host, port):
        reports = scope.spawn("reports", _report(scope, settings))
        server = PrivatePostgres(settings.sql)
        await asyncio.to_thread(server.start)
        read_zones_of(await asyncio.to_thread(server.zone_folder))
        try:
            await _serve(scope, settings, server)
        finally:
            with scope.waiting_for("the private PostgreSQL to stop"):
                await asyncio.to_thread(server.stop)
            # The last report shows why the service is not ready.
            scope.stopping.set()
            await asyncio.wait({reports})


async def _report(scope: Scope, settings: Settings) -> None:
    """Take part in the suite's reports while NATS can be reached: clients need no NATS."""
    backoff = Backoff(CONNECT_RETRY_S, CONNECT_RETRY_S_MAX)
    while not scope.stopping.is_set():
        try:
            client = await connect_once(settings.nats, f"headrace-{SERVICE}")
        except HeadraceError as error:
            scope.health.warnings["nats"] = describe(error)
            await scope.pause(backoff.pause_s())
            continue
        scope.health.warnings.pop("nats", None)
        try:
            await take_part(scope, client, settings.source.slot)
        finally:
            await client.close()


async def _serve(scope: Scope, settings: Settings, server: PrivatePostgres) -> None:
    sql = settings.sql
    # Two more than queries: short work, such as letting go of a cut, must not wait for them.
    threads = ThreadPoolExecutor(sql.queries_max + 2, thread_name_prefix="sql")
    lake = SharedLake(
        builtins=await asyncio.to_thread(_builtins, server),
        threads=threads,
        turns=asyncio.Semaphore(sql.queries_max),
        stats=scope.health.stats,
        rows_max=sql.result_rows_max,
    )
    definitions = Definitions(server, lake, sql.schema_wait_s)
    # Before the port is open: clients must not meet tables that the front doesn't know.
    await asyncio.to_thread(definitions.load)
    copies = await asyncio.to_thread(_opened, settings, definitions)
    lake.copies = copies
    lake.exact = ExactTables(server, lake, sql.exact_rows_max)
    await asyncio.to_thread(lake.exact.clear)
    tls = encryption(sql.tls_cert, sql.tls_key, required=sql.tls_required)
    target = PrivateDatabase(server.address, server.database)
    front = Front(sql, lake, target, tls)
    listener = await front.listen()
    cuts = Cuts(scope, sql, copies, definitions, server)
    follow = scope.spawn("cuts", cuts.follow())
    tidy = scope.spawn("exact-tables", _tidy(scope, lake.exact, copies))
    try:
        await scope.stopping.wait()
    finally:
        # First, so that no client arrives while the sessions end.
        listener.close()
        await front.close()
        await asyncio.wait({follow, tidy})
        await asyncio.to_thread(copies.close)
        # A thread that DuckDB doesn't release must not delay the end of the process.
        threads.shutdown(wait=False)


async def _tidy(scope: Scope, exact: ExactTables, copies: LakeCopy) -> None:
    """Drop tables of statements that the private PostgreSQL has run itself, until the service
    stops.
    """
    while not scope.stopping.is_set():
        shown = copies.cut
        # Without an answer there is nothing to drop; `Cuts` reports and starts the server again.
        with contextlib.suppress(psycopg.Error):
            identity = None if shown is None else (shown.number, shown.attempt)
            await asyncio.to_thread(exact.tidy, identity)
        await scope.pause(_TIDY_INTERVAL_S)


def _builtins(server: PrivatePostgres) -> Builtins:
    with server.connect() as connection:
        return Builtins.of(connection.execute(QUERY).fetchall())


def _opened(settings: Settings, definitions: Definitions) -> LakeCopy:
    sql = settings.sql
    spill = Path(sql.folder).absolute() / "spill"
    spill.mkdir(parents=True, exist_ok=True)
    reader = CutReader(
        LakeFiles(settings.lake.url or ""), open_catalog(settings), settings.source.slot
    )
    limits = CopyLimits(
        memory_mb=sql.memory_mb,
        threads=sql.threads or os.cpu_count() or 1,
        spill=spill,
        spill_mb=sql.spill_mb,
        pin_s=sql.pin_s,
    )
    return LakeCopy(reader, limits, definitions.define)


class Cuts:
    """Follows the lake's cuts."""

    def __init__(
        self,
        scope: Scope,
        settings: SqlSettings,
        copies: LakeCopy,
        definitions: Definitions,
        server: PrivatePostgres,
    ) -> None:
        self._scope = scope
        self._settings = settings
        self._copies = copies
        self._definitions = definitions
        self._server = server
        # The cut whose LSN `headrace.lsn()` returns, if this process has shown one.
        self._published: Cut | None = None

    async def follow(self) -> None:
        """Take each cut, until the service stops."""
        health = self._scope.health
        while not self._scope.stopping.is_set():
            try:
                await self._take()
            except (HeadraceError, psycopg.Error, OSError) as error:
                health.stats.count("sql_recoveries")
                health.block("lake", describe(error))
            else:
                health.unblock("lake")
            await self._scope.pause(self._settings.poll_interval_s)

    async def _take(self) -> None:
        if not self._server.running:
            # Its sessions have ended; definitions and users are in its folder.
            await asyncio.to_thread(self._server.start)
        started = time.monotonic()
        await asyncio.to_thread(self._copies.advance)
        stats = self._scope.health.stats
        shown = self._copies.cut
        # Also one that could not be published when it was taken.
        if shown is not None and shown is not self._published:
            await asyncio.to_thread(self._definitions.publish, shown)
            self._published = shown
            stats.observe("sql_cut_seconds", time.monotonic() - started)
            stats.count("sql_cuts")
            stats.set("sql_lsn", shown.lsn)
            log.info("cut_shown", cut=shown.number, tables=len(shown.tables))
        if shown is None:
            # There is nothing to read, and clients learn that: no table exists.
            self._scope.health.warnings["cut"] = "the lake has no cut yet"
            self._scope.health.started()
            return
        self._scope.health.warnings.pop("cut", None)
        stats.set("sql_cut_age_seconds", time.time() - shown.made_us / 1e6)
        self._scope.health.started()
