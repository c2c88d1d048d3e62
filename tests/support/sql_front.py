"""A SQL server as a process over a lake in a local folder, and clients of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from headrace.embedded.ports import free_port
from headrace.embedded.process import tied
from tests.support.local_lake import LocalLake

HEADRACE = Path(sys.executable).with_name("headrace")
START_TIMEOUT_S = 90.0
PASSWORD = "a password"
READER = "reader"


@dataclass
class SqlServer:
    """The process `headrace sql-server`, and the lake that it shows."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.lake = LocalLake(self.folder / "lake")
        self.lake.create(rows=100)
        self.port = free_port()

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PG", "HEADRACE_", "NATS"))
        }
        return {
            **kept,
            "HEADRACE_LAKE_URL": f"file://{self.folder}/lake",
            "HEADRACE_SQL_FOLDER": str(self.folder / "sql"),
            "HEADRACE_SQL_PORT": str(self.port),
            "HEADRACE_SQL_POLL_INTERVAL_S": "0.05",
            "HEADRACE_HTTP_PORT": "0",
            **self.settings,
        }

    def start(self) -> None:
        """Start it, and return when clients can read the lake."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                tied([HEADRACE, "sql-server"], signal.SIGKILL),
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.until("the server is ready", lambda: "event=ready" in self.log())

    @property
    def pid(self) -> int:
        """The process's number, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start_again(self) -> None:
        """Start it after it was killed."""
        (self.folder / "log").rename(self.folder / f"log.{time.monotonic_ns()}")
        self.start()

    def until(self, what: str, holds: Any) -> None:
        """Wait for a state."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not holds():
            assert self._process is not None
            assert self._process.poll() is None, self.log()[-3000:]
            assert time.monotonic() < deadline, f"not: {what}. {self.log()[-3000:]}"
            time.sleep(0.02)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(30)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def command(self, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """A command of `headrace`."""
        return subprocess.run(
            [HEADRACE, *arguments],
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            check=False,
        )

    def add_user(self, name: str = READER, *options: str) -> None:
        path = self.folder / "password"
        path.write_text(PASSWORD)
        done = self.command("sql", "users", "add", name, "--password-file", str(path), *options)
        assert done.returncode == 0, done.stderr

    def address(self, user: str = READER, **more: str) -> dict[str, Any]:
        """For libpq."""
        given = {"host": "127.0.0.1", "port": self.port, "user": user, "dbname": "lake"}
        return {**given, "password": PASSWORD, **more}

    def connect(self, user: str = READER, **more: Any) -> psycopg.Connection[Any]:
        """A client's connection."""
        return psycopg.connect(**self.address(user), **{"autocommit": True, **more})

    def rows(self, query: Any, values: Sequence[object] | None = None) -> list[Any]:
        """A query's rows, as the reader sees them on a new connection."""
        with self.connect() as connection:
            return connection.execute(query, values).fetchall()

    def admin(self) -> psycopg.Connection[Any]:
        """The private PostgreSQL itself, as superuser."""
        folder = self.folder / "sql"
        return psycopg.connect(
            host="127.0.0.1",
            port=int((folder / "postgres" / "port").read_text()),
            user="headrace",
            password=(folder / "postgres-password").read_text().strip(),
            dbname="lake",
            autocommit=True,
        )

    def psql(
        self, text: str, *options: str, user: str = READER
    ) -> subprocess.CompletedProcess[str]:
        """PostgreSQL's own client."""
        return subprocess.run(
            ["psql", "-X", "-q", "-A", "-t", "-v", "VERBOSITY=verbose", *options],  # noqa: S607  # where the PATH says
            env={
                "PATH": os.environ["PATH"],
                "PGHOST": "127.0.0.1",
                "PGPORT": str(self.port),
                "PGUSER": user,
                "PGDATABASE": "lake",
                "PGPASSWORD": PASSWORD,
            },
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    def cut(self) -> str:
        """Make a cut of what was changed, and wait until clients see it; returns its LSN."""
        made = self.lake.cut()
        lsn = f"0/{made.lsn:X}"
        assert self.rows("SELECT headrace.wait_for(%s::pg_lsn) >= %s::pg_lsn", [lsn, lsn])
        return lsn


@contextmanager
def sql_server(folder: Path, **settings: str) -> Iterator[SqlServer]:
    """A SQL server that runs while the block does, with a user who reads everything."""
    server = SqlServer(folder, settings)
    server.start()
    try:
        server.add_user()
        yield server
    finally:
        server.stop()
