"""An embedded PostgreSQL, version 16 or 18, ready for logical replication.

It owns one folder: the cluster, its log, its port. It listens on loopback only. Settings are
written at each start, so that the server uses what the caller passes. It is durable unless the
caller's settings say otherwise. If PostgreSQL can't run as this user (root), it runs as `nobody`; a
folder that `nobody` can't reach then only contains a link to the cluster.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import psycopg

from headrace.embedded.account import unprivileged_account
from headrace.embedded.ports import LOOPBACK
from headrace.embedded.postgres_install import PostgresVersion, make_cluster, postgres_binaries
from headrace.embedded.process import (
    AlreadyServedError,
    Launch,
    ServerStartError,
    StopStep,
    kill_all,
)
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.errors import HeadraceError

SUPERUSER = "headrace"

_BASE_SETTINGS = {
    "listen_addresses": LOOPBACK,
    # TCP is enough; a socket's path may have about a hundred bytes, and a folder's may be longer.
    "unix_socket_directories": "",
    "wal_level": "logical",
    # The default is 10; every suite and every snapshot that is being taken needs one.
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    # The log is stderr, in a file: the process's `tail` and its wait for readiness read that.
    "logging_collector": "off",
    "log_destination": "stderr",
}
_ROOTS_CLUSTERS = Path("/var/lib/headrace")
_PROBE_TIMEOUT_S = 5
# Idle backends notice the end of their postmaster within moments; an active one may not.
_ORPHANS_GRACE_S = 2.0
# Of <sys/ipc.h>, on Linux and macOS.
_IPC_RMID = 0


def kept_password(path: Path) -> str:
    """Return the password stored in a file that only its owner can read; create one at the first
    call.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # O_EXCL: a second call must not replace the password that a cluster was created with.
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(24))
    return path.read_text().strip()


class EmbeddedPostgres(EmbeddedServer):
    """One PostgreSQL server over one folder."""

    kind = "PostgreSQL"
    # Fast ends walsenders only once they have sent everything, which a hung client can delay: hence
    # the second step.
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        "fast": (StopStep(signal.SIGINT, 30), StopStep(signal.SIGQUIT, 10)),
        "immediate": (StopStep(signal.SIGQUIT, 10),),
    }

    def __init__(
        self,
        data_dir: Path,
        version: PostgresVersion = 18,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        *,
        password: str | None = None,
        start_timeout_s: float = 120,
    ) -> None:
        """Without a password every local connection is trusted. The password is set when the
        cluster is created.
        """
        super().__init__(data_dir, port, start_timeout_s)
        self.version = version
        self.settings = dict(settings or {})
        self._password = password
        self._account = unprivileged_account()

    @property
    def pgdata(self) -> Path:
        """PostgreSQL's own data directory."""
        # For root it may be a link (`_let_account_reach`), and /proc shows the real path.
        return (self.folder / "pgdata").resolve()

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER) -> str:
        """Return the address of a database, as libpq and asyncpg take it."""
        if self._password is not None and user == SUPERUSER:
            secret = f":{quote(self._password, safe='')}"
        else:
            secret = ""
        address = f"{LOOPBACK}:{self._port}/{quote(dbname, safe='')}"
        return f"postgresql://{quote(user, safe='')}{secret}@{address}"

    def environment(self, dbname: str = "postgres") -> dict[str, str]:
        """Return libpq's variables for a child process."""
        if self._password is None:
            secret = {}
        else:
            secret = {"PGPASSWORD": self._password}
        return {
            "PGHOST": LOOPBACK,
            "PGPORT": str(self._port),
            "PGUSER": SUPERUSER,
            "PGDATABASE": dbname,
        } | secret

    def _prepare(self) -> None:
        if self._account is not None and not (self.folder / "pgdata").is_symlink():
            self._let_account_reach()
        if not (self.pgdata / "PG_VERSION").exists():
            make_cluster(
                postgres_binaries(self.version, self._account),
                self.pgdata,
                user=SUPERUSER,
                password=self._password,
                account=self._account,
                durable=self.settings.get("fsync") != "off",
            )
        self._refuse_other_version()
        # In this order: orphans hold the folder's lock, so `_clear_stale_pid_file` would refuse the
        # start.
        self._end_orphans()
        self._clear_stale_pid_file()

    def _launch(self) -> Launch:
        self._write(
            "headrace.conf",
            _settings_text(_BASE_SETTINGS | self.settings | {"port": str(self._port)}),
        )
        self._write("pg_hba.conf", _access_text(self._password))
        main = self.pgdata / "postgresql.conf"
        include = "include 'headrace.conf'\n"
        # At the end, so that these settings override those above; once, not at each start.
        if not main.read_text().endswith(include):
            self._write(main.name, f"{main.read_text()}{include}")
        return Launch(
            command=[
                postgres_binaries(self.version, self._account) / "postgres",
                "-D",
                self.pgdata,
            ],
            log=self.folder / "server.log",
            # Immediate: a fast shutdown could wait for clients that the parent's death left
            # hanging.
            death_signal=signal.SIGQUIT,
            account=self._account,
            environment={"PATH": os.defpath, "LC_ALL": "C"},
        )

    def _is_ready(self) -> bool:
        """The pid file shows that the server accepts connections; a login then proves that it is
        ours.
        """
        status = self._pid_file_lines()
        # The eighth line is the postmaster's state. The pid excludes a file that a dead server
        # left.
        if len(status) < 8 or status[7].strip() != "ready" or status[0] != str(self.pid):
            return False
        try:
            # It has no TLS, even if PGSSLMODE asks for it elsewhere.
            psycopg.connect(self.dsn(), connect_timeout=_PROBE_TIMEOUT_S, sslmode="disable").close()
        except psycopg.OperationalError as error:
            # No later attempt would succeed: the password was set when the cluster was created.
            if "authentication" in str(error):
                raise ServerStartError(
                    f"PostgreSQL of {self.folder} refuses the password: {error}",
                    remedy=("Use the password that its folder was created with, or a new folder."),
                ) from error
            return False
        return True

    def _write(self, name: str, text: str) -> None:
        path = self.pgdata / name
        path.write_text(text)
        if self._account is not None:
            self._account.own(path)

    def _pid_file_lines(self) -> list[str]:
        try:
            return (self.pgdata / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _end_orphans(self) -> None:
        """An active backend does not notice that its postmaster was killed, and no other server may
        start meanwhile.
        """
        deadline = time.monotonic() + _ORPHANS_GRACE_S
        while orphans := self._process.workers(self.pgdata):
            if self._pid_file_lines()[:1] in [[str(pid)] for pid in orphans]:
                # No orphans: the server lives.
                return
            if time.monotonic() > deadline:
                kill_all(orphans)
                return
            time.sleep(0.05)

    def _clear_stale_pid_file(self) -> None:
        """Remove the pid file of a dead server if another program has its pid now: PostgreSQL would
        refuse to start.
        """
        self._process.refuse_if_served()
        lines = self._pid_file_lines()
        if not lines or not lines[0].isdigit():
            return
        try:
            # A postmaster's working directory is its data directory.
            served = Path(f"/proc/{lines[0]}/cwd").resolve(strict=True)
        except OSError:
            return
        if served == self.pgdata:
            port = lines[3] if len(lines) > 3 else "unknown"
            raise AlreadyServedError(
                f"A PostgreSQL already serves {self.folder}: process {lines[0]} on port {port}"
            )
        (self.pgdata / "postmaster.pid").unlink()

    def _free(self) -> None:
        """Remove the shared memory segment, which stays until the next start or until the machine
        restarts, and of which a machine can have 4,096; and root's cluster.
        """
        lines = self._pid_file_lines()
        # The seventh line has the segment's key and its id.
        if len(lines) > 6 and lines[6].split():
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), _IPC_RMID, None)
        if (self.folder / "pgdata").is_symlink():
            shutil.rmtree(self.pgdata.parent)

    def _refuse_other_version(self) -> None:
        # PostgreSQL would refuse as well, but only in its log.
        found = (self.pgdata / "PG_VERSION").read_text().strip()
        if found != str(self.version):
            raise HeadraceError(
                f"{self.folder} contains a cluster of PostgreSQL {found}, not {self.version}",
                remedy=f"Start it as version {found}, or name another folder.",
            )

    def _let_account_reach(self) -> None:
        """As root, keep the cluster elsewhere if `nobody` can't reach the folder; link to it."""
        assert self._account is not None
        if self._account.reaches(self.folder / "pgdata"):
            return
        try:
            _ROOTS_CLUSTERS.mkdir(parents=True, exist_ok=True)
            # Not named by the folder's path: a folder that is created again where another was moved
            # or removed must not get the other's cluster.
            elsewhere = Path(tempfile.mkdtemp(dir=_ROOTS_CLUSTERS))
            # `nobody` has to traverse both, despite root's umask.
            for folder in (_ROOTS_CLUSTERS, elsewhere):
                folder.chmod(0o755)
            (self.folder / "pgdata").symlink_to(elsewhere / "pgdata")
        except OSError as error:
            raise HeadraceError(
                (
                    f"PostgreSQL runs as 'nobody', who can't reach {self.folder}, and "
                    f"{_ROOTS_CLUSTERS} can't be used: {error}"
                ),
                remedy=(
                    "Name a folder whose parents every user can enter, or run as an ordinary user."
                ),
            ) from error


def _settings_text(settings: Mapping[str, str]) -> str:
    quoted = {
        name: value.replace("\\", "\\\\").replace("'", "''") for name, value in settings.items()
    }
    # In quoted values postgresql.conf reads a backslash as an escape, and a doubled quote as one.
    return "".join(f"{name} = '{value}'\n" for name, value in quoted.items())


def _access_text(password: str | None) -> str:
    # `all` does not match physical replication connections, which have their own keyword.
    method = "trust" if password is None else "scram-sha-256"
    return "".join(
        f"host {database} all {LOOPBACK}/32 {method}\n" for database in ("all", "replication")
    )
