"""One suite of `headrace up`: its settings, its ports, its running services.

Promises: the documented ports if they are free, for each further suite ten higher; a port that
can't be used is reported before anything starts. One suite knows nothing about another.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.audit.settings import load_audit
from headrace.cli.up.demo import TABLE
from headrace.cli.up.selection import Chosen
from headrace.cli.up.sql import sql_environment
from headrace.cli.up.view import View
from headrace.embedded.ports import free_port, is_free
from headrace.embedded.process import PortTakenError
from headrace.errors import HeadraceError
from headrace.settings import Settings, load
from headrace.sinks.configuration import load_sinks
from headrace.suite.services import (
    ARCHIVER,
    AUDIT_WRITER,
    CONSOLE,
    LAKE_WRITER,
    SERVICES,
    SINK,
    SQL_SERVER,
    TELEMETRY,
    WAL_ARCHIVER,
    sink_service,
)
from headrace.supervisor.line import Line
from headrace.supervisor.process import Service
from headrace.supervisor.supervisor import ServiceFailedError, Supervisor

# Difference between the ports of one suite and those of the next.
PORTS_APART = 10
READY_TIMEOUT_S = 60.0
# Longer than the services' own deadline, so that they can report what they waited for.
STOP_GRACE_S = 3.0


class Suite:
    """A suite and, once started, its supervisor."""

    def __init__(
        self, chosen: Chosen, environment: Mapping[str, str], folder: Path, *, number: int, of: int
    ) -> None:
        own = dict(environment) | chosen.environment()
        for place in ("HEADRACE_ARCHIVE_URL", "HEADRACE_LAKE_URL"):
            # An archive has one source, and a lake is written by one suite.
            if of > 1 and own.get(place):
                own[place] = f"{own[place].rstrip('/')}/{chosen.slot}"
        if load(own).sql.enabled:
            own = _with_sql(own, folder, number=number, of=of, slot=chosen.slot)
        self.settings: Settings = load(own)
        self.slot = self.settings.source.slot
        # Precedes a service's name if there are several of it.
        self.label = f"{self.slot} " if of > 1 else ""
        # PostgreSQL cuts a longer name.
        self.demo_table = f"{TABLE}_{self.slot}"[:63] if of > 1 else TABLE
        self.environment_file = f"env-{self.slot}" if of > 1 else "env"
        self.ports: dict[str, int] = {}
        self._environment = own
        self._folder = folder
        if of > 1:
            self._logs = folder / "logs" / self.slot
        else:
            self._logs = folder / "logs"
        self._shift = number * PORTS_APART
        self._supervisor: Supervisor | None = None

    @property
    def supervisor(self) -> Supervisor:
        assert self._supervisor is not None, "started before"
        return self._supervisor

    @property
    def started(self) -> bool:
        return self._supervisor is not None

    def start(self, view: View, telemetry: int | None, taken: set[int]) -> None:
        """Start every service on ports that are free and not given to another suite."""
        self.ports = self._service_ports(telemetry, taken)
        self._logs.mkdir(exist_ok=True)
        services = [self._service(name, port) for name, port in self.ports.items()]
        self._supervisor = Supervisor(
            [*self._sinks(taken), *services],
            _Named(view, self.label),
            stop_timeout_s=self.settings.process.shutdown_timeout_s + STOP_GRACE_S,
        )
        self._supervisor.start()

    async def until_ready(self) -> None:
        try:
            await self.supervisor.until_ready(READY_TIMEOUT_S)
        except ServiceFailedError as error:
            raise self._told(error) from error

    def check(self) -> None:
        """Raise if one of its services failed permanently."""
        try:
            self.supervisor.check()
        except ServiceFailedError as error:
            raise self._told(error) from error

    def _told(self, error: ServiceFailedError) -> HeadraceError:
        if self.label:
            return ServiceFailedError(f"{self.label}{error}")
        return error

    def _service(self, name: str, port: int) -> Service:
        environment = {**self._environment, "HEADRACE_HTTP_PORT": str(port)}
        if name == CONSOLE.name:
            # It reads the suite's state from telemetry, whose port is only known now.
            url = f"http://127.0.0.1:{self.ports[TELEMETRY.name]}"
            environment.setdefault("HEADRACE_TELEMETRY_URL", url)
            if self.settings.sql.enabled:
                address = sql_environment(self.settings.sql, self._folder)["SQL_URL"]
                environment.setdefault("HEADRACE_CONSOLE_SQL_URL", address)
        return Service(name, environment, port, self._logs / f"{name}.log")

    def _sinks(self, taken: set[int]) -> list[Service]:
        """The sinks of headrace.toml: the suite works without each of them."""
        file = Path(self.settings.sinks.file).absolute()
        if not file.exists():
            return []
        found = []
        for name in load_sinks(file, self._environment):
            port = free_port()
            while port in taken:
                port = free_port()
            taken.add(port)
            service = sink_service(name)
            environment = {**self._environment, "HEADRACE_HTTP_PORT": str(port)}
            log = self._logs / f"{service}.log"
            arguments = (SINK.name, name, "--config", str(file))
            found.append(Service(service, environment, port, log, arguments, optional=True))
        return found

    def _service_ports(self, telemetry: int | None, taken: set[int]) -> dict[str, int]:
        """The documented ports, unless a program uses them or another `up` may be about to."""
        # A port that the user names is never replaced by another.
        if telemetry and not self._shift and not is_free(telemetry):
            raise PortTakenError(f"Telemetry can't listen on port {telemetry}: it is taken")
        documented = hold_documented_ports()
        ports: dict[str, int] = {}
        for name, port in self._wanted_ports().items():
            if telemetry and name == "telemetry":
                wanted = telemetry
            else:
                wanted = port if documented else 0
            found = free_port(preferred=wanted + self._shift if wanted else 0)
            # Nothing listens on it yet, so it still looks free.
            while found in taken:
                found = free_port()
            taken.add(found)
            ports[name] = found
        return ports

    def _wanted_ports(self) -> dict[str, int]:
        """The services to start, in stopping order, and their documented ports."""
        wanted = {ARCHIVER: bool(self.settings.archive.url)}
        wanted[LAKE_WRITER] = bool(self.settings.lake.url)
        # A backup is of the whole cluster, which all suites of one `up` share.
        wanted[WAL_ARCHIVER] = bool(self.settings.backup.url) and not self._shift
        wanted[SQL_SERVER] = self.settings.sql.enabled
        wanted[CONSOLE] = self.settings.console.enabled
        wanted[AUDIT_WRITER] = load_audit(self._environment).enabled
        return {s.name: s.port for s in SERVICES.values() if wanted.get(s, True)}


def _with_sql(
    environment: Mapping[str, str], folder: Path, *, number: int, of: int, slot: str | None
) -> dict[str, str]:
    """The environment, with a folder and a port for the suite's SQL server."""
    found = dict(environment)
    if of > 1:
        # Each has a private PostgreSQL.
        found["HEADRACE_SQL_FOLDER"] = str(folder / "sql" / str(slot))
    else:
        found.setdefault("HEADRACE_SQL_FOLDER", str(folder / "sql"))
    wanted = load(found).sql.port
    # A port that the user names is never replaced by another.
    if "HEADRACE_SQL_PORT" not in environment or number:
        found["HEADRACE_SQL_PORT"] = str(free_port(preferred=wanted + number))
    return found


@dataclass(eq=False)
class _Named:
    """The view, as used by one of several suites."""

    _view: View
    _label: str

    def line(self, service: str, line: Line) -> None:
        self._view.line(f"{self._label}{service}", line)

    def news(self, text: str) -> None:
        self._view.news(f"{self._label}{text}")


_ports_held: list[socket.socket] = []


def hold_documented_ports() -> bool:
    """Whether this process, of all that share its ports, may take the documented ones.

    An abstract socket name instead of a file: it is valid in the network namespace, and is released
    with the process.
    """
    if _ports_held:
        return True
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind("\0headrace-up-ports")
    except OSError:
        holder.close()
        return False
    _ports_held.append(holder)
    return True
