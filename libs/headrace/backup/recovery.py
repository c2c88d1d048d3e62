"""Lets PostgreSQL replay the log of a restored cluster, and serves that privately.

The server listens on a socket in a folder that only its owner can enter: it has the source's
passwords and users, and nobody else may connect. Promises that a recovery which stops before its
moment is an error, unless everything up to that moment is known to be stored.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import psycopg

from headrace.backup.errors import RestoreError
from headrace.backup.plan import RestorePlan
from headrace.backup.restore import (
    RestorePlace,
    append_settings,
    forget_recovery,
    recovery_settings,
)
from headrace.backup.temporary import TemporaryFolder
from headrace.embedded.process import Launch, ServerStartError, StopStep
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.lsn import parse_lsn

_PROBE_TIMEOUT_S = 5
# It takes connections after the replay, which may take days; a server that ends is noticed sooner.
_REPLAY_TIMEOUT_S = 30 * 24 * 3600.0
_PROGRESS_S = 2.0
_REDO = re.compile(r"redo in progress, .*current LSN: ([0-9A-F]+/[0-9A-F]+)")
_NOT_REACHED = "recovery ended before configured recovery target was reached"
_PRIVATE = {
    # No network: the cluster has the source's users and passwords.
    "listen_addresses": "",
    "ssl": "off",
    # The source's archive_command would mix this cluster's log with its own.
    "archive_mode": "off",
    # The log is stderr, in a file that errors quote.
    "logging_collector": "off",
    "log_destination": "stderr",
    # A recovery needs no more than these.
    "log_min_messages": "warning",
    # How far it is, in the same file.
    "log_startup_progress_interval": "2s",
}


class RestoredServer(EmbeddedServer):
    """The server of a restored cluster, until it is stopped."""

    kind = "PostgreSQL"
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        "fast": (StopStep(signal.SIGINT, 120), StopStep(signal.SIGQUIT, 10)),
        "immediate": (StopStep(signal.SIGQUIT, 10),),
    }

    def __init__(
        self,
        place: RestorePlace,
        programs: Path,
        superuser: str,
        *,
        start_timeout_s: float = _REPLAY_TIMEOUT_S,
    ) -> None:
        # The port is a part of the socket's name, so any one is free.
        # Its lock and log are in the work folder, so that the cluster's folder has only
        # PostgreSQL's files.
        super().__init__(place.work, 0, start_timeout_s)
        self._place = place
        self._programs = programs
        self._superuser = superuser
        self._sockets: TemporaryFolder | None = None
        self.settings: dict[str, str] = {}
        # Ready is when the recovery has ended; a standby is ready before.
        self.until_promoted = True

    @property
    def sockets(self) -> Path:
        """The folder of its socket."""
        assert self._sockets is not None, "started before"
        return self._sockets.path

    def conninfo(self, database: str) -> str:
        """How to connect to it."""
        return psycopg.conninfo.make_conninfo(
            host=str(self.sockets),
            port=str(self.port),
            user=self._superuser,
            dbname=database,
            connect_timeout=str(_PROBE_TIMEOUT_S),
        )

    def environment(self, database: str) -> dict[str, str]:
        """libpq's variables for a child process."""
        return {
            "PGHOST": str(self.sockets),
            "PGPORT": str(self.port),
            "PGUSER": self._superuser,
            "PGDATABASE": database,
        }

    def _prepare(self) -> None:
        if self._sockets is None:
            # A socket's path may have about a hundred bytes, and a folder's may be longer.
            self._sockets = TemporaryFolder()
        # Everybody who can enter the socket's folder is trusted: the source's pg_hba.conf may
        # refuse local users, or need a directory service.
        access = self._place.work / "access.conf"
        access.write_text("local all all trust\n")
        idents = self._place.work / "idents.conf"
        idents.write_text("")
        # PostgreSQL refuses to run as root, and its account must read these.
        if self._place.account is not None:
            for path in (self.sockets, access, idents):
                self._place.account.own(path)

    def _launch(self) -> Launch:
        work = self._place.work
        given = {
            **_PRIVATE,
            "unix_socket_directories": str(self.sockets),
            "port": str(self.port),
            "hot_standby": "off" if self.until_promoted else "on",
            "hba_file": str(work / "access.conf"),
            "ident_file": str(work / "idents.conf"),
            **self.settings,
        }
        # As arguments: they override every file, and leave no trace in the restored cluster.
        options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        return Launch(
            command=[self._programs / "postgres", "-D", self._place.folder, *options],
            log=work / "server.log",
            death_signal=signal.SIGQUIT,
            account=self._place.account,
            environment={"PATH": os.defpath, "LC_ALL": "C"},
        )

    def _is_ready(self) -> bool:
        try:
            with psycopg.connect(self.conninfo("postgres")) as session:
                row = session.execute("SELECT pg_is_in_recovery()").fetchone()
        # It replays the log, or is starting.
        except psycopg.OperationalError:
            return False
        return row is not None and not (self.until_promoted and row[0])

    def discard(self) -> None:
        """Remove its socket's folder."""
        if self._sockets is not None:
            self._sockets.remove()
            self._sockets = None


@contextlib.contextmanager
def _watched(log: Path, tell: Callable[[int], None]) -> Iterator[None]:
    """Tell how far the replay is, until the block ends; nobody can connect meanwhile."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_PROGRESS_S):
            # The file appears only when the server starts.
            with contextlib.suppress(OSError):
                found = _REDO.findall(log.read_text(errors="replace"))
                if found:
                    tell(parse_lsn(found[-1]))

    watching = threading.Thread(target=look, name="watch-replay", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def recover(
    server: RestoredServer,
    plan: RestorePlan,
    place: RestorePlace,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Start the server and return when it has reached the plan's moment and takes writes."""
    with _watched(place.work / "server.log", tell):
        _recover(server, plan, place)


def _recover(server: RestoredServer, plan: RestorePlan, place: RestorePlace) -> None:
    try:
        server.start_blocking()
    except ServerStartError as error:
        log = (place.work / "server.log").read_text(errors="replace")
        # Any other reason: the folder is damaged, or a library of the source is missing.
        if _NOT_REACHED not in log:
            raise
        # The plan has checked that everything up to its moment is stored: nothing later is.
        # A time or an LSN may lie after the last record, while a commit that is not there can't be
        # reached.
        if plan.target.settings().get("recovery_target_xid"):
            raise RestoreError(f"the log has no commit of {plan.target}") from error
        forget_recovery(place.folder)
        append_settings(place.folder, recovery_settings(place, plan))
        # Again, to the end of the log: it continues where it stopped.
        server.start_blocking()
    forget_recovery(place.folder)
    if place.account is not None:
        for name in ("postgresql.auto.conf", "postgresql.conf"):
            place.account.own(place.folder / name)
