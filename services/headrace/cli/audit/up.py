"""`headrace audit up`: an audit trail with one command.

Starts wal-reader, publisher, audit-writer and their nats-server. Promises: accepts Bemi's and
Zemi's variables; creates its own slot, publication and stream; the stream is strict, so that the
slot waits while the destination is unavailable and nothing is lost; with CLEANUP_ON_SHUTDOWN an
orderly stop drops the slot, and the publication that it created. In the environment of a suite it
runs only an audit-writer, which follows that suite's stream. Never touches a suite's slot,
publication or stream.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from pathlib import Path

from headrace.audit.settings import AuditSettings, load_audit
from headrace.cli.audit.environment import environment, yes
from headrace.cli.audit.trail_source import (
    NAME,
    STREAM,
    RunningSuite,
    suite_beside,
    without_a_suites,
)
from headrace.cli.setup import init, teardown
from headrace.cli.up.keeper import Keeper, cancelled, unless_told_to_stop
from headrace.cli.up.view import CreatedObjects, View
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.ports import free_port
from headrace.embedded.process import AlreadyServedError
from headrace.settings import Settings, load
from headrace.suite.services import AUDIT_WRITER, PUBLISHER, WAL_READER
from headrace.supervisor.process import Service
from headrace.supervisor.supervisor import Supervisor

READY_TIMEOUT_S = 120.0
STOP_GRACE_S = 3.0
# With strict retention a full stream loses nothing: publishing waits, and the slot retains the
# rest.
_STREAM_BYTES_MAX = str(2 << 30)
# No outage of a destination should reach the stream's age.
_STREAM_AGE_MAX_S = str(10 * 365 * 86_400)


async def run(folder: Path, *, once: bool, verbose: bool) -> None:
    """Start everything, wait for the end, stop everything in order."""
    _make(folder)
    given = environment(os.environ)
    audit = load_audit(given)
    cleanup = yes(given.get("CLEANUP_ON_SHUTDOWN", ""))
    with _alone(folder):
        await _AuditUp(folder, given, audit, View(verbose=verbose), cleanup=cleanup).run(once=once)


def _make(folder: Path) -> None:
    # The stream in it contains rows.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)


class _alone:  # noqa: N801  # read as a statement: with _alone(folder)
    """Whether another one runs on this folder; an abstract socket name is released with the
    process.
    """

    def __init__(self, folder: Path) -> None:
        # An address has at most 108 bytes.
        self._name = f"\0headrace-audit-{folder.resolve()}"[:100]
        self._holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> None:
        try:
            self._holder.bind(self._name)
        except OSError as error:
            self._holder.close()
            raise AlreadyServedError(
                "headrace audit up already runs in this folder",
                remedy="Use that one, or another folder.",
            ) from error

    def __exit__(self, *_: object) -> None:
        self._holder.close()


class _AuditUp:
    """One run of the command."""

    def __init__(
        self,
        folder: Path,
        given: dict[str, str],
        audit: AuditSettings,
        view: View,
        *,
        cleanup: bool,
    ) -> None:
        self._folder = folder
        self._audit = audit
        self._view = view
        self._cleanup = cleanup
        self._given = given
        # Without a server that the user names, the trail has a private one.
        named = given.get("NATS_URL") or given.get("NATS_HOST")
        self._nats = None if named else EmbeddedNats(folder / "nats", 0)
        self._supervisor: Supervisor | None = None
        self._told = asyncio.Event()
        self._keeper = Keeper(view.news)
        # The suite whose stream is followed, if any.
        self._suite: RunningSuite | None = None
        # Whether there may be objects of this trail.
        self._made: Settings | None = None

    async def run(self, *, once: bool) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        keeping = asyncio.create_task(self._keeper.run(), name="keeper")
        in_order = False
        try:
            done = await unless_told_to_stop(self._start(), self._told, keeping)
            # After a failure the slot stays: it retains what the trail has not written.
            in_order = True
            if done and not once:
                await self._watch(keeping)
        finally:
            await cancelled(keeping)
            await self._stop(cleanup=self._cleanup and in_order)

    async def _start(self) -> None:
        if self._nats is not None:
            await self._nats.start()
            self._keeper.watch([self._nats])
            self._view.done(f"nats-server listens on 127.0.0.1:{self._nats.port}")
        else:
            self._suite = await suite_beside(self._given, os.environ)
        if self._suite is None:
            chosen = self._environment()
        else:
            chosen = self._beside(self._suite)
        # Libraries read it too, and the services inherit it: they must not see a suite's variables.
        os.environ.clear()
        os.environ.update(chosen)
        settings = load(chosen)
        if self._suite is None:
            # Before they are created: a stop in between drops those that exist.
            self._made = settings
            await self._make_objects(settings)
        await self._services(settings)
        self._view.done(
            f"Every change of {settings.postgres.database} is written to {self._place(settings)}"
        )
        assert self._supervisor is not None, "started above"
        self._view.done(f"Audit page: {self._supervisor.url(AUDIT_WRITER.name)}/audit")
        self._view.say("Ctrl-C stops it. `headrace audit log` shows the trail.", "dim")
        self._view.quiet = False

    async def _make_objects(self, settings: Settings) -> None:
        made = CreatedObjects()
        # A publication knows no patterns: it has all tables then, of which the publisher delivers
        # those.
        tables = [] if self._has_patterns else list(self._audit.tables)
        await init.run(settings, tables, made)
        if made.things:
            self._view.done(f"Created {', '.join(made.things)}")

    def _beside(self, suite: RunningSuite) -> dict[str, str]:
        """The suite's environment, and hints for its user."""
        self._view.done(
            f"The trail follows the suite of slot {suite.slot}, through its stream {suite.stream}"
        )
        added = " ".join(f"{name}={value}" for name, value in self._audit.for_the_suite({}).items())
        self._view.say(
            "To record contexts, and to keep the trail out of the stream, run the suite with "
            f"{added}",
            "dim",
        )
        return {**self._given, "HEADRACE_SLOT": suite.slot, "HEADRACE_STREAM": suite.stream}

    def _place(self, settings: Settings) -> str:
        to = self._audit.destination(settings.postgres)
        return f"{self._audit.schema}.{self._audit.table} of {to.database} on {to.host}:{to.port}"

    def _environment(self) -> dict[str, str]:
        """The services' variables: this run's servers, and a stream that waits instead of
        discarding.
        """
        own = {
            "HEADRACE_SLOT": os.environ.get("SLOT_NAME") or NAME,
            "HEADRACE_PUB": os.environ.get("PUBLICATION_NAME") or NAME,
        }
        defaults = {
            "HEADRACE_STREAM": STREAM if self._nats is None else "CDC",
            "HEADRACE_RETENTION": "strict",
            "HEADRACE_CDC_BYTES_MAX": _STREAM_BYTES_MAX,
            "HEADRACE_CDC_AGE_MAX_S": _STREAM_AGE_MAX_S,
            "HEADRACE_SHUTDOWN_TIMEOUT_S": "30",
        }
        if self._has_patterns:
            defaults["HEADRACE_INCLUDE"] = ",".join(self._audit.tables)
        forced = self._audit.for_the_suite(self._given)
        if self._nats is not None:
            forced["NATS_URL"] = self._nats.url
        # Later ones win: the user overrides defaults, and nobody the trail's own objects.
        return {**defaults, **without_a_suites(self._given), **own, **forced}

    @property
    def _has_patterns(self) -> bool:
        return any("*" in table for table in self._audit.tables)

    async def _services(self, settings: Settings) -> None:
        services = []
        wanted = (WAL_READER, PUBLISHER, AUDIT_WRITER)
        for service in wanted if self._suite is None else (AUDIT_WRITER,):
            # Only the page is visited, so only its port has to be the same each time.
            if service is not AUDIT_WRITER:
                port = free_port()
            else:
                port = self._page_port()
            environment = {**os.environ, "HEADRACE_HTTP_PORT": str(port)}
            log = self._folder / "logs" / f"{service.name}.log"
            services.append(Service(service.name, environment, port, log))
        stop_timeout_s = settings.process.shutdown_timeout_s + STOP_GRACE_S
        self._supervisor = Supervisor(services, self._view, stop_timeout_s=stop_timeout_s)
        self._supervisor.start()
        await self._supervisor.until_ready(READY_TIMEOUT_S)

    def _page_port(self) -> int:
        return self._audit.page_port or free_port(preferred=AUDIT_WRITER.port)

    async def _watch(self, keeping: asyncio.Task[None]) -> None:
        """Wait for the user, for the end of the services, or for a server that can't be kept
        running.
        """
        assert self._supervisor is not None, "started before"
        await unless_told_to_stop(self._supervisor.over.wait(), self._told, keeping)
        self._supervisor.check()

    def _signalled(self) -> None:
        if self._told.is_set() and self._supervisor is not None:
            # A second signal: the user does not want to wait.
            self._supervisor.hasten()
        self._told.set()

    async def _stop(self, *, cleanup: bool) -> None:
        self._view.quiet = True
        if self._supervisor is not None:
            await self._supervisor.stop()
        if self._made is not None and cleanup:
            await teardown.run(self._made, yes=True, streams=False)
        if self._nats is not None and self._nats.running:
            # After the services, which still publish and confirm while they stop.
            await self._nats.stop()
            if self._made is not None and cleanup:
                # Without its slot the trail can't continue: the next run starts a new stream.
                shutil.rmtree(self._nats.folder, ignore_errors=True)
        self._view.say("Stopped.", "dim")
