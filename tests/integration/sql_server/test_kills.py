"""Killed at any moment, the server shows whole cuts to those who read, and in the end the last one."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.support.sql_front import SqlServer, sql_server

KILLS = int(os.environ.get("SQL_KILLS", "6"))
SEED = int(os.environ.get("SQL_SEED", "1"))
TOTAL = 1000
# The first runs in DuckDB, the second in the private PostgreSQL.
SUMS = (
    "SELECT count(*), max(CASE WHEN id = 0 THEN note END), max(CASE WHEN id = 1 THEN note END) FROM numbers",
    "SELECT count(*), max(note) FILTER (WHERE id = 0 AND cbrt(8) = 2), max(note) FILTER (WHERE id = 1) FROM numbers",
)
RECONNECT_S = 90.0


class Readers:
    """Clients that read transfers between two rows, and connect again whenever they have to."""

    def __init__(self, server: SqlServer) -> None:
        self._server = server
        self._stop = threading.Event()
        self.wrong: list[object] = []
        self.read = [0] * len(SUMS)
        self._threads = [
            threading.Thread(target=self._run, args=(which,), daemon=True)
            for which in range(len(SUMS))
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, which: int) -> None:
        while not self._stop.is_set():
            try:
                with self._server.connect(connect_timeout=10) as connection:
                    while not self._stop.is_set():
                        self._once(connection, which)
            except psycopg.Error as error:
                # A killed server, or one that starts: never a refusal of the statement.
                if isinstance(error, psycopg.errors.FeatureNotSupported):
                    self.wrong.append(str(error))
                time.sleep(0.05)

    def _once(self, connection: psycopg.Connection[object], which: int) -> None:
        rows = connection.execute(SUMS[which]).fetchall()
        if not rows or rows[0][0] != 100 or int(rows[0][1]) + int(rows[0][2]) != TOTAL:  # type: ignore[index]
            self.wrong.append((which, rows))
        self.read[which] += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def kill(server: SqlServer, target: str) -> None:
    """End the process that serves, the private PostgreSQL, or one process of it."""
    if target == "front":
        server.kill()
        server.start_again()
        return
    if target == "postmaster":
        server.until("the private PostgreSQL runs", lambda: _postmaster(server) is not None)
        os.kill(_postmaster(server) or 0, signal.SIGKILL)
        return
    try:
        with server.admin() as admin:
            row = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE usename = 'reader' ORDER BY random() LIMIT 1"
            ).fetchone()
            if row is not None:
                os.kill(row[0], signal.SIGKILL)
    except (psycopg.Error, ProcessLookupError):
        return


def _postmaster(server: SqlServer) -> int | None:
    """The parent of the process that answers, if there is one."""
    try:
        with server.admin() as admin:
            row = admin.execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            status = Path(f"/proc/{row[0]}/stat").read_text()
    except (psycopg.Error, OSError):
        return None
    return int(status.rpartition(")")[2].split()[1])


def test_no_cut_is_lost_and_none_is_mixed_when_processes_are_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with sql_server(tmp_path) as server:
        server.lake.update([0], str(TOTAL))
        server.lake.update([1], "0")
        server.cut()
        readers = Readers(server)
        amount = 0
        for number in range(KILLS):
            for _ in range(3):
                amount = chance.randrange(TOTAL)
                server.lake.update([0], str(TOTAL - amount))
                server.lake.update([1], str(amount))
                made = server.lake.cut()
                time.sleep(chance.random() / 5)
            kill(server, ("front", "postmaster", "backend")[number % 3])
            before = sum(readers.read)
            deadline = time.monotonic() + RECONNECT_S
            while sum(readers.read) == before and time.monotonic() < deadline:
                time.sleep(0.05)
            assert sum(readers.read) > before, "nobody reads any more: " + server.log()[-2000:]
        readers.stop()
        assert readers.wrong == []
        assert all(readers.read)
        lsn = f"0/{made.lsn:X}"
        waited = "SELECT headrace.wait_for(%s::pg_lsn, '4 min') = %s::pg_lsn"
        assert rows_again(server, waited, [lsn, lsn])
        assert rows_again(server, "SELECT note FROM numbers WHERE id = 1") == [(str(amount),)]
        exact = "SELECT max(note || cbrt(8)) FROM numbers WHERE id = 1"
        assert rows_again(server, exact) == [(f"{amount}2",)]


def rows_again(server: SqlServer, query: str, values: Sequence[object] | None = None) -> list[Any]:
    """A query's rows, when the private PostgreSQL has recovered from the last kill."""
    deadline = time.monotonic() + RECONNECT_S
    while True:
        try:
            return server.rows(query, values)
        except psycopg.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
