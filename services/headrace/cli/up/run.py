"""`headrace up`: the whole suite on this machine, or several of them, with one command.

Promises: two of them never share a folder; however it ends, it stops what it started, in order; a
second Ctrl-C hastens that. Never touches servers that the environment names, beyond what the suite
itself needs there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.audit.settings import load_audit
from headrace.cli.setup import init
from headrace.cli.up.demo import kept_events, make_database, make_table, sample_changes
from headrace.cli.up.keeper import Keeper, cancelled, unless_told_to_stop
from headrace.cli.up.lake import with_archive
from headrace.cli.up.selection import (
    Chosen,
    check_together,
    is_published,
    require_disjoint,
    require_free_slot,
)
from headrace.cli.up.servers import DATABASE, Servers
from headrace.cli.up.sql import make_sql_user, sql_environment
from headrace.cli.up.suite import Suite
from headrace.cli.up.view import CreatedObjects, ServiceRow, View
from headrace.embedded.ports import LOOPBACK
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import AlreadyServedError
from headrace.embedded.server import EmbeddedServer
from headrace.errors import HeadraceError
from headrace.settings import DeliveryMode, Settings


@dataclass(frozen=True, slots=True)
class Options:
    """The command line's options; the environment or chance decides those that are None or 0."""

    pg_port: int = 0
    nats_port: int = 0
    http_port: int | None = None
    suites: tuple[Chosen, ...] = (Chosen(),)
    json: bool | None = None
    delivery: DeliveryMode | None = None
    zstd: bool | None = None
    zstd_events: bool | None = None
    archive: str | None = None
    lake: str | None = None
    catalog: str | None = None
    sql: bool = False
    once: bool = False
    verbose: bool = False

    def environment(self) -> dict[str, str]:
        """The flags that all services share, as variables."""
        given: dict[str, str] = {}
        if self.json:
            given["HEADRACE_ENCODING"] = "json"
        if self.delivery is not None:
            given["HEADRACE_DELIVERY"] = str(self.delivery)
        if self.zstd:
            given["HEADRACE_ZSTD"] = "true"
        if self.zstd_events:
            given["HEADRACE_ZSTD_EVENTS"] = "true"
        if self.archive is not None:
            given["HEADRACE_ARCHIVE_URL"] = self.archive
        if self.lake is not None:
            given["HEADRACE_LAKE_URL"] = self.lake
        if self.catalog is not None:
            given["HEADRACE_LAKE_CATALOG"] = self.catalog
        if self.sql:
            given["HEADRACE_SQL"] = "true"
        return given


class FolderError(HeadraceError):
    """The data folder can't be used."""

    remedy = "Run it in a folder that you own, on a disk with free space."


async def run(folder: Path, options: Options) -> None:
    """Start everything, show it, wait for the end, stop everything. Keeps all its data in the
    folder.
    """
    with _alone_in(folder):
        await _Up(folder, options).run()


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder for as long as this process lives."""
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        # Not inherited: a service that outlives this process must not hold the lock.
        lock = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderError(f"headrace up can't write in {folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(lock, 20, 0).decode().strip() or "?"
            raise AlreadyServedError(
                f"headrace up already runs in {folder.parent}, as process {pid}",
                remedy=(
                    f"Use that one, stop it with `kill {pid}`, or start this one in another folder."
                ),
            ) from error
        # The pid of an earlier run may have more digits.
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


class _Up:
    """One run of the command."""

    def __init__(self, folder: Path, options: Options) -> None:
        check_together(options.suites, os.environ)
        with_archive({**os.environ, **options.environment()}, folder)
        self._folder = folder
        self._options = options
        self._view = View(verbose=options.verbose)
        self._servers = Servers.choose(
            folder, os.environ, pg_port=options.pg_port, nats_port=options.nats_port
        )
        self._suites: list[Suite] = []
        self._begun = time.monotonic()
        self._told_to_stop = asyncio.Event()
        self._keeper = Keeper(self._view.news)
        # By the user, who did not want to wait.
        self._killed = False

    async def run(self) -> None:
        # A closed terminal too must stop everything in order.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        keeping = asyncio.create_task(self._keeper.run(), name="keeper")
        try:
            if (
                await unless_told_to_stop(self._start(), self._told_to_stop, keeping)
                and not self._options.once
            ):
                await self._watch(keeping)
        finally:
            # Servers that end from here on are supposed to.
            await cancelled(keeping)
            await self._stop()

    async def _start(self) -> None:
        view = self._view
        with view.step("Starting the servers"):
            await self._servers.start(view.done)
        # Only now: a failure of the first start is an error, not a death to recover from.
        self._keeper.watch(self._servers.embedded)
        self._adopt_environment()
        first = self._suites[0].settings
        with view.step("Creating the publication, streams, buckets and slot"):
            await self._make_objects()
        if kept := await kept_events(first):
            view.done(f"The stream {first.streams.cdc} still contains {kept:,} messages")
        with view.step("Starting the services"):
            await self._start_services()
        for suite in self._suites:
            if suite.settings.sql.enabled:
                await asyncio.to_thread(make_sql_user, suite.settings.sql, self._folder)
        ready = sum(len(suite.ports) for suite in self._suites)
        view.done(f"{ready} services are ready{self._counted()}")
        if self._servers.postgres is not None:
            for suite in self._suites:
                with view.step("Writing sample changes"):
                    events = await sample_changes(suite.settings, suite.demo_table)
                of = f" of {suite.slot}" if suite.label else ""
                view.done(f"A transaction{of} was committed, and its changes arrived in JetStream:")
                view.changes(events)
        self._show()
        view.quiet = False

    def _counted(self) -> str:
        if len(self._suites) > 1:
            return f", {len(self._suites)} suites"
        return ""

    async def _make_objects(self) -> None:
        made = CreatedObjects()
        embedded = self._servers.postgres is not None
        several = len(self._suites) > 1
        settings = [suite.settings for suite in self._suites]
        if embedded:
            await make_database(settings[0], DATABASE)
        if several:
            # Before anything is created. In the embedded server, publications may not exist yet.
            await require_disjoint(settings, existing=not embedded)
        for suite in self._suites:
            tables = []
            if embedded:
                await make_table(suite.settings, suite.demo_table)
                # A new publication includes all tables if there is only one suite; an existing one
                # may lack the demo's.
                if several or await is_published(suite.settings):
                    tables = [suite.demo_table]
                else:
                    tables = []
            # By the same code as for an installation.
            await init.run(suite.settings, tables, made)
        if settings[0].backup.url:
            await _make_backup_store(settings[0], made)
        if several:
            # `init` may have created or extended publications.
            await require_disjoint(settings, existing=True)
        # Before the services start: wal-reader would only wait for the slot (docs/adr/0021).
        for one in settings:
            await require_free_slot(one)
        if made.things:
            self._view.done(f"Created {', '.join(made.things)}")

    def _adopt_environment(self) -> None:
        """Point this process, and therefore its children, to the chosen servers and settings."""
        environment = (
            self._servers.inherited() | self._servers.environment() | self._options.environment()
        )
        environment = with_archive(environment, self._folder)
        audit = load_audit(environment)
        environment |= audit.for_the_suite(environment) if audit.enabled else {}
        # libpq reads the environment too, and must not find another server there.
        os.environ.clear()
        os.environ.update(environment)
        chosen = self._options.suites
        self._suites = [
            Suite(one, environment, self._folder, number=number, of=len(chosen))
            for number, one in enumerate(chosen)
        ]

    async def _start_services(self) -> None:
        taken: set[int] = set()
        for suite in self._suites:
            suite.start(self._view, self._options.http_port, taken)
            self._write_environment(suite, suite.environment_file)
        if len(self._suites) > 1:
            self._write_environment(self._suites[0], "env")
        for suite in self._suites:
            # Only after all were started, so that they start in parallel.
            await suite.until_ready()

    def _write_environment(self, suite: Suite, name: str) -> None:
        settings = {
            "HEADRACE_SLOT": suite.slot,
            "HEADRACE_PUB": suite.settings.source.publication,
            # For `headrace status` and `headrace top`.
            "HEADRACE_TELEMETRY_URL": f"http://{LOOPBACK}:{suite.ports['telemetry']}",
        }
        if suite.settings.archive.url:
            settings["HEADRACE_ARCHIVE_URL"] = suite.settings.archive.url
            settings["HEADRACE_ARCHIVE_REQUIRED"] = str(suite.settings.archive.required).lower()
        if suite.settings.lake.url:
            settings["HEADRACE_LAKE_URL"] = suite.settings.lake.url
        if suite.settings.lake.catalog:
            settings["HEADRACE_LAKE_CATALOG"] = suite.settings.lake.catalog
        if suite.settings.backup.url:
            settings["HEADRACE_BACKUP_URL"] = suite.settings.backup.url
        if suite.settings.sql.enabled:
            settings |= sql_environment(suite.settings.sql, self._folder)
        self._servers.write_environment(settings, name)

    async def _watch(self, keeping: asyncio.Task[None]) -> None:
        """Wait for the user, or for the end of every suite."""
        if await unless_told_to_stop(self._until_all_are_over(), self._told_to_stop, keeping):
            for suite in self._suites:
                suite.check()

    async def _until_all_are_over(self) -> None:
        async with asyncio.TaskGroup() as group:
            for suite in self._suites:
                group.create_task(self._see_out(suite), name=f"watch {suite.slot}")

    async def _see_out(self, suite: Suite) -> None:
        """Stop the rest of a suite that has ended; the others continue."""
        await suite.supervisor.over.wait()
        if len(self._suites) > 1:
            await suite.supervisor.stop()
            self._view.news(f"suite {suite.slot} stopped")

    def _signalled(self) -> None:
        if not self._told_to_stop.is_set():
            self._told_to_stop.set()
            return
        self._view.news("killing what still runs")
        # The final lines then report it.
        self._killed = True
        for suite in self._suites:
            if suite.started:
                suite.supervisor.hasten()
        for server in self._servers.embedded:
            _hasten(server)

    async def _stop(self) -> None:
        """Stop the services in order, then the servers."""
        # From here on, one Ctrl-C is enough to hasten it.
        self._told_to_stop.set()
        self._view.quiet = True
        began = time.monotonic()
        running = [suite for suite in self._suites if suite.started]
        if running:
            with self._view.step("Stopping the services"):
                # Suites don't depend on each other; within each one, the order holds.
                await asyncio.gather(*(suite.supervisor.stop() for suite in running))
            each = f" of {len(running)} suites" if len(running) > 1 else ""
            order = f"stopped, {', '.join(running[0].ports)}, in this order"
            self._view.done(f"The services{each} {'were killed' if self._killed else order}")
        # After the services, which confirm and report until their end.
        for server in reversed(self._servers.embedded):
            if server.running:
                with self._view.step(f"Stopping {server.kind}"):
                    await server.stop()
                ended = "was killed" if self._killed else "stopped"
                self._view.done(f"{server.kind} {ended}; its data stays in {_short(server.folder)}")
        self._view.say(f"Stopped in {time.monotonic() - began:.1f} s.", "dim")

    def _show(self) -> None:
        first = self._suites[0].settings
        rows = [
            ServiceRow(
                place.name,
                place.address,
                place.pid,
                _short(place.embedded.folder) if place.embedded else "",
            )
            for place in self._servers.places(first.postgres, first.nats)
        ]
        for suite in self._suites:
            # The pages for a browser come first.
            pages_of = {"console": "/   (in a browser)", "telemetry": "/  /status  /metrics"}
            first_names = [name for name in pages_of if name in suite.ports]
            for name in dict.fromkeys([*first_names, *suite.ports]):
                url = suite.supervisor.url(name)
                pid = suite.supervisor.pid(name)
                pages = pages_of.get(name, "/readyz  /metrics")
                rows.append(ServiceRow(f"{suite.label}{name}", url, pid, pages))
        self._view.table(rows, self._hints())
        self._view.say(
            f"Up after {time.monotonic() - self._begun:.1f} s. Logs are in "
            f"{_short(self._folder)}/logs."
        )

    def _page(self) -> str:
        """The service whose page shows the suite."""
        if "console" in self._suites[0].ports:
            return "console"
        return "telemetry"

    def _hints(self) -> list[tuple[str, str]]:
        environment = _short(self._folder / "env")
        nats = self._suites[0].settings.nats
        url = nats.url or nats.host
        several = [
            (
                f"of {suite.slot}",
                f". {_short(self._folder / suite.environment_file)} && headrace status",
            )
            for suite in self._suites
            if suite.label
        ]
        return [
            ("look at", f"{self._suites[0].supervisor.url(self._page())}/   (in a browser)"),
            ("psql", self._servers.psql()),
            ("follow", f". {environment} && headrace tail   (in another terminal)"),
            *several,
            *self._sql_hints(),
            *self._backup_hints(),
            ("nats", f"nats --server {url} sub 'cdc.>'"),
            ("Python", f"client = await nats.connect({url!r})"),
            ("", "await client.jetstream().subscribe('cdc.>', ordered_consumer=True)"),
            ("stop", f"Ctrl-C, or kill {os.getpid()}; the next `up` continues with the data"),
        ]

    def _sql_hints(self) -> list[tuple[str, str]]:
        return [
            (
                f"{suite.label}SQL",
                f'. {_short(self._folder / suite.environment_file)} && psql "$SQL_URL"',
            )
            for suite in self._suites
            if suite.settings.sql.enabled
        ]

    def _backup_hints(self) -> list[tuple[str, str]]:
        if not self._suites[0].settings.backup.url:
            return []
        return [("back up", f". {_short(self._folder / 'env')} && headrace backup now")]


async def _make_backup_store(settings: Settings, made: CreatedObjects) -> None:
    # An installation without backups lacks its packages.
    from headrace.cli.backup import create

    await create.run(settings, made)


def _hasten(server: EmbeddedServer) -> None:
    """Hasten the stop that is under way."""
    if server.running:
        if isinstance(server, EmbeddedPostgres):
            # Its immediate shutdown: SIGKILL would leave backends running.
            number = signal.SIGQUIT
        else:
            number = signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)


def _short(path: Path) -> str:
    """The path as the user would type it."""
    if path.is_relative_to(Path.cwd()):
        return os.path.relpath(path)
    return str(path)
