"""`headrace up`: the whole suite on this machine, with one command.

Promises: two of them never share a folder; what it started it stops, in order, whatever ends it; a second Ctrl-C
hastens that. Never touches servers that the environment names, beyond what the suite itself needs there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.audit.settings import load_audit
from headrace.cli import init
from headrace.cli.up_demo import kept_events, make_database, make_table, sample_changes
from headrace.cli.up_servers import DATABASE, Servers
from headrace.cli.up_view import Made, Row, View
from headrace.embedded.ports import free_port, is_free
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import AlreadyServedError, PortTakenError
from headrace.embedded.server import EmbeddedServer
from headrace.settings import Settings, load
from headrace.supervisor.process import Service
from headrace.supervisor.supervisor import Supervisor

# In the order in which they stop: the reader first, so that what it read is confirmed before the publisher goes.
PORTS = {
    "wal-reader": 9091,
    "publisher": 9092,
    "snapshot-responder": 9093,
    "schema-publisher": 9094,
    "telemetry": 9090,
}
# Beside the publisher, where an archive is named.
ARCHIVER, ARCHIVER_PORT = "archiver", 9095
# Behind the publisher, where HEADRACE_AUDIT asks for a trail.
AUDIT, AUDIT_PORT = "audit-writer", 9096
READY_TIMEOUT_S = 60.0
# Over the services' own deadline, so that they can say themselves what they waited for.
STOP_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; what is None or 0 there, the environment or chance decides."""

    pg_port: int = 0
    nats_port: int = 0
    http_port: int | None = None
    slot: str | None = None
    pub: str | None = None
    json: bool | None = None
    zstd: bool | None = None
    archive: str | None = None
    once: bool = False
    verbose: bool = False

    def environment(self) -> dict[str, str]:
        """The flags that services share, as variables."""
        given = {
            "HEADRACE_SLOT": self.slot,
            "HEADRACE_PUB": self.pub,
            "HEADRACE_ENCODING": "json" if self.json else None,
            "HEADRACE_ZSTD": "true" if self.zstd else None,
            "HEADRACE_ARCHIVE_URL": self.archive,
        }
        return {name: value for name, value in given.items() if value is not None}


async def run(folder: Path, options: Options) -> None:
    """Start everything, show it, wait for the end, stop everything. All that it keeps is in the folder."""
    with _alone_in(folder):
        await _Up(folder, options).run()


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder for as long as this process lives."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(lock, 20, 0).decode().strip() or "?"
            raise AlreadyServedError(
                f"headrace up already runs in {folder.parent}, as process {pid}",
                remedy=f"Use that one, stop it with `kill {pid}`, or start this one in another folder.",
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _wanted_ports(settings: Settings) -> dict[str, int]:
    """The services to start, in the order in which they stop, and their documented ports."""
    audit = {AUDIT: AUDIT_PORT} if load_audit(os.environ).enabled else {}
    if not settings.archive.url and not audit:
        return PORTS
    later = {name: port for name, port in PORTS.items() if name not in ("wal-reader", "publisher")}
    line = {name: PORTS[name] for name in PORTS if name not in later}
    archiver = {ARCHIVER: ARCHIVER_PORT} if settings.archive.url else {}
    return {**line, **archiver, **audit, **later}


def _service_ports(wanted: dict[str, int], telemetry: int | None) -> dict[str, int]:
    """The services' HTTP ports: the documented ones, unless something uses them or another `up` may be about to."""
    if telemetry and not is_free(telemetry):
        raise PortTakenError(f"Telemetry can't listen on port {telemetry}: it is taken")
    documented = _hold_documented_ports()
    ports = {name: free_port(preferred=port if documented else 0) for name, port in wanted.items()}
    return ports | ({"telemetry": telemetry} if telemetry else {})


def _hold_documented_ports() -> bool:
    """Whether this process, of all that share its ports, is the one that may take the documented ones.

    A name in the kernel and no file: it is as wide as the network namespace, and is given up with the process.
    """
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind("\0headrace-up-ports")
    except OSError:
        holder.close()
        return False
    holder.detach()
    return True


class _Up:
    """One run of the command."""

    def __init__(self, folder: Path, options: Options) -> None:
        self._folder = folder
        self._options = options
        self._view = View(verbose=options.verbose)
        self._servers = Servers.choose(folder, os.environ, pg_port=options.pg_port, nats_port=options.nats_port)
        self._supervisor: Supervisor | None = None
        self._ports: dict[str, int] = {}
        self._begun = time.monotonic()
        self._told_to_stop = asyncio.Event()

    async def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        try:
            if await self._unless_told_to_stop(self._start()) and not self._options.once:
                await self._watch()
        finally:
            await self._stop()

    async def _start(self) -> None:
        view = self._view
        with view.step("Starting the servers"):
            await self._servers.start(view.done)
        settings = self._adopt_environment()
        with view.step("Making the publication, streams, buckets and slot"):
            await self._make_objects(settings)
        if kept := await kept_events(settings):
            view.done(f"The stream {settings.streams.cdc} still holds {kept} events")
        with view.step("Starting the services"):
            await self._start_services(settings)
        view.done(f"{len(self._ports)} services are ready")
        if self._servers.postgres is not None:
            with view.step("Writing sample changes"):
                events = await sample_changes(settings)
            view.done("A transaction was committed, and its changes arrived in JetStream:")
            view.changes(events)
        self._show(settings)
        view.quiet = False

    async def _make_objects(self, settings: Settings) -> None:
        made = Made()
        if self._servers.postgres is not None:
            await make_database(settings, DATABASE)
            await make_table(settings)
        await init.run(settings, [], made)
        if made.things:
            self._view.done(f"Made {', '.join(made.things)}")

    def _adopt_environment(self) -> Settings:
        """Lead this process, and so its children, to the servers and settings that were chosen."""
        environment = self._servers.inherited() | self._servers.environment() | self._options.environment()
        audit = load_audit(environment)
        environment |= audit.for_the_suite(environment) if audit.enabled else {}
        os.environ.clear()
        os.environ.update(environment)
        return load(os.environ)

    async def _start_services(self, settings: Settings) -> None:
        ports = self._ports = _service_ports(_wanted_ports(settings), self._options.http_port)
        self._supervisor = Supervisor(
            [self._service(name, port) for name, port in ports.items()],
            self._view,
            stop_timeout_s=settings.process.shutdown_timeout_s + STOP_GRACE_S,
        )
        self._servers.write_environment(
            {
                "HEADRACE_SLOT": settings.source.slot,
                "HEADRACE_PUB": settings.source.publication,
                # For `headrace status`, which asks telemetry.
                "HEADRACE_HTTP_PORT": str(ports["telemetry"]),
            }
        )
        self._supervisor.start()
        await self._supervisor.until_ready(READY_TIMEOUT_S)

    def _service(self, name: str, port: int) -> Service:
        environment = {**os.environ, "HEADRACE_HTTP_PORT": str(port)}
        return Service(name, environment, port, self._folder / "logs" / f"{name}.log")

    async def _watch(self) -> None:
        """Wait for the user, or for the supervisor to say that it is over."""
        assert self._supervisor is not None, "started before"
        if await self._unless_told_to_stop(self._supervisor.over.wait()):
            self._supervisor.check()

    async def _unless_told_to_stop(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Do the work, unless the user asks for the stop first; whether it was done."""
        task = asyncio.create_task(work, name="up")
        stop = asyncio.create_task(self._told_to_stop.wait(), name="stop")
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return False

    def _signalled(self) -> None:
        if not self._told_to_stop.is_set():
            self._told_to_stop.set()
            return
        self._view.news("killing what still runs")
        if self._supervisor is not None:
            self._supervisor.hasten()
        for server in self._servers.embedded:
            _hasten(server)

    async def _stop(self) -> None:
        """Stop the services in order, then the servers."""
        # From here on a first Ctrl-C is the one that hastens.
        self._told_to_stop.set()
        self._view.quiet = True
        began = time.monotonic()
        if self._supervisor is not None:
            with self._view.step("Stopping the services"):
                await self._supervisor.stop()
            self._view.done(f"The services stopped, {', '.join(self._ports)}, in this order")
        for server in reversed(self._servers.embedded):
            if server.running:
                with self._view.step(f"Stopping {server.kind}"):
                    await server.stop()
                self._view.done(f"{server.kind} stopped; its data stays in {_short(server.folder)}")
        self._view.say(f"Stopped in {time.monotonic() - began:.1f} s.", "dim")

    def _show(self, settings: Settings) -> None:
        assert self._supervisor is not None, "started before"
        rows = [
            Row(place.name, place.address, place.pid, _short(place.embedded.folder) if place.embedded else "")
            for place in self._servers.places(settings.postgres, settings.nats)
        ]
        for name in ("telemetry", *(name for name in self._ports if name != "telemetry")):
            url = self._supervisor.url(name)
            pages = "/  /status  /metrics" if name == "telemetry" else "/readyz  /metrics"
            rows.append(Row(name, url, self._supervisor.pid(name), pages))
        self._view.table(rows, self._hints(settings))
        self._view.say(f"Up after {time.monotonic() - self._begun:.1f} s. Logs are in {_short(self._folder)}/logs.")

    def _hints(self, settings: Settings) -> list[tuple[str, str]]:
        command = _short(Path(sys.executable).parent / "headrace")
        environment = _short(self._folder / "env")
        url = settings.nats.url or settings.nats.host
        return [
            ("psql", self._servers.psql()),
            ("follow", f". {environment} && {command} tail   (in another terminal)"),
            ("nats", f"nats --server {url} sub 'cdc.>'"),
            ("Python", f"await nats.connect({url!r}), then jetstream().subscribe('cdc.>', ordered_consumer=True)"),
            ("stop", f"Ctrl-C, or kill {os.getpid()}; the next `up` goes on with the data that is there"),
        ]


def _hasten(server: EmbeddedServer) -> None:
    """Let the stop that is under way end now."""
    if server.running:
        number = signal.SIGQUIT if isinstance(server, EmbeddedPostgres) else signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)


def _short(path: Path) -> str:
    """The path as the user would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
