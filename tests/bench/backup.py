"""Backups compared with PostgreSQL's own programs, on the same server, in turns: wal-archiver with
pg_receivewal, a base backup with pg_basebackup. Also the lag of a standby that sees only the store,
and the times of restores.

The store is a folder on the same disk, so the figures contain no network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import asyncpg
import psycopg

from headrace.backup.programs import binaries
from headrace.backup.recovery import RestoredServer
from headrace.backup.restore import place_of
from headrace.embedded.account import unprivileged_account
from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.process import service
from tests.bench.machine import cpu_s
from tests.bench.result import Figure, against, beside, plain
from tests.support.time_machine import DATABASE, SERVICE, TimeMachine

VERSION: PostgresVersion = 18
ROUNDS = 3
# About the size of the log of one of these rows.
ROW_BYTES = 320
CLIENTS = 4
SYNCHRONOUS_S = 8
COMMITS = 25
_COMPRESS = (
    "import sys, zstandard; "
    "zstandard.ZstdCompressor(1).copy_stream(sys.stdin.buffer, sys.stdout.buffer)"
)
_SLOT = "bench_receivewal"
_MIB = 1 << 20


async def measure(rows: int) -> list[Figure]:
    """All of it, with about this many rows of log in each round."""
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        folder = await asyncio.to_thread(_prepared, room)
        settings = {"max_wal_size": "8GB", "full_page_writes": "on"}
        async with EmbeddedPostgres(folder, VERSION, settings=settings) as server:
            bench = _Bench(TimeMachine(server, room, room, {}), rows)
            try:
                return await bench.measure()
            finally:
                await bench.machine.close()


def _prepared(room: Path) -> Path:
    # PostgreSQL's account has to enter both.
    room.chmod(0o711)
    folder = room / "postgres"
    folder.mkdir(mode=0o711)
    return folder


class _Bench:
    def __init__(self, machine: TimeMachine, rows: int) -> None:
        self.machine = machine
        self._rows = rows
        self._programs = binaries(None, VERSION, None)
        self._environment = {**os.environ, **machine.server.environment(DATABASE)}
        self._figures: list[Figure] = []

    async def measure(self) -> list[Figure]:
        execute = self.machine.execute
        await execute("CREATE TABLE t (id bigserial PRIMARY KEY, n int, v text)")
        await execute(f"SELECT pg_create_physical_replication_slot('{_SLOT}', true)")
        await self.machine.run("backup", "init")
        await self._receivers()
        await self._base_backups()
        await self.machine.suite.start(SERVICE)
        await self.machine.backup()
        await self._standby()
        await self._restores()
        await self._synchronous()
        return self._figures

    async def _write_log(self) -> float:
        """Log for a round; returns its size in MiB."""
        begin = await self.machine.value("SELECT pg_current_wal_lsn() - '0/0'")
        for _ in range(10):
            await self.machine.execute(
                "INSERT INTO t (n, v) SELECT n, repeat(md5(n::text), 6) "
                f"FROM generate_series(1, {self._rows // 10}) n"
            )
        await self.machine.execute("SELECT pg_switch_wal()")
        end = await self.machine.value("SELECT pg_current_wal_lsn() - '0/0'")
        return float(end - begin) / _MIB

    # The receivers

    async def _receivers(self) -> None:
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for number in range(ROUNDS):
            size = await self._write_log()
            turns = [(self._archiver, ours), (self._receivewal, theirs)]
            # In turns, because the machine's other load changes.
            for receive, found in turns[:: 1 - 2 * (number % 2)]:
                wall, cpu = await receive()
                found.append((size / wall, cpu / size * 1000))
        speed, limit = _medians(ours, 0), _medians(theirs, 0)
        self._figures.append(
            against("log received and stored", speed, "MiB/s", limit, "pg_receivewal", 0.9)
        )
        self._figures.append(
            beside(
                "  its processor time",
                _medians(ours, 1),
                "ms/MiB",
                _medians(theirs, 1),
                "pg_receivewal, which compresses nothing",
            )
        )

    async def _archiver(self) -> tuple[float, float]:
        """The running service: starting Python is measured elsewhere."""
        await self.machine.suite.start(SERVICE)
        await self.machine.suite.logged(SERVICE, "event=receiving")
        before = cpu_s(self.machine.suite.pid(SERVICE))
        began = time.monotonic()
        await self.machine.stored(600)
        wall = time.monotonic() - began
        cpu = cpu_s(self.machine.suite.pid(SERVICE)) - before
        await self.machine.suite.kill(SERVICE)
        # Its log decides when the next one is ready.
        (self.machine.room / f"{SERVICE}.log").unlink()
        return wall, cpu

    async def _receivewal(self) -> tuple[float, float]:
        end = await self.machine.value("SELECT pg_current_wal_flush_lsn()::text")
        folder = self.machine.room / "receivewal"
        folder.mkdir(exist_ok=True)
        command: list[str | Path] = [
            self._programs / "pg_receivewal",
            f"--directory={folder}",
            f"--slot={_SLOT}",
            f"--endpos={end}",
            "--no-loop",
        ]
        return await self._timed(command)

    async def _timed(self, command: Sequence[str | Path]) -> tuple[float, float]:
        """Wall and processor seconds of a program."""
        before = _children_cpu_s()
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command, env=self._environment, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        wall = time.monotonic() - began
        assert process.returncode == 0, said.decode()
        return wall, _children_cpu_s() - before

    # Base backups

    async def _base_backups(self) -> None:
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        await self.machine.suite.start(SERVICE)
        for number in range(ROUNDS):
            turns = [(self._our_backup, ours), (self._basebackup, theirs)]
            for take, found in turns[:: 1 - 2 * (number % 2)]:
                found.append(await take())
        await self.machine.suite.kill(SERVICE)
        size = await self.machine.value("SELECT sum(pg_database_size(oid)) FROM pg_database")
        mib = float(size) / _MIB
        theirs_name = "pg_basebackup through zstd-1"
        self._figures.append(
            beside(
                "base backup, the command's start included",
                mib / _medians(ours, 0),
                "MiB/s",
                mib / _medians(theirs, 0),
                theirs_name,
            )
        )
        self._figures.append(
            beside(
                "  its processor time",
                _medians(ours, 1) / mib * 1000,
                "ms/MiB",
                _medians(theirs, 1) / mib * 1000,
                theirs_name,
            )
        )

    async def _our_backup(self) -> tuple[float, float]:
        before = _children_cpu_s()
        began = time.monotonic()
        await self.machine.backup()
        return time.monotonic() - began, _children_cpu_s() - before

    async def _basebackup(self) -> tuple[float, float]:
        """Through zstd-1 outside of it, because builds of pg_basebackup may lack it."""
        with tempfile.TemporaryDirectory(dir=self.machine.room) as folder:
            taking = (
                f"{self._programs / 'pg_basebackup'} --pgdata=- --format=tar --wal-method=none "
                "--no-manifest --checkpoint=fast"
            )
            command = f"{taking} | {sys.executable} -c '{_COMPRESS}' > {folder}/base.tar.zst"
            return await self._timed(["sh", "-c", command])

    # Standby and restores

    async def _standby(self) -> None:
        folder = self.machine.room / "standby"
        await self.machine.run("standby", "create", str(folder))
        server = RestoredServer(
            place_of(folder, unprivileged_account()),
            binaries(None, VERSION, unprivileged_account()),
            SUPERUSER,
        )
        server.until_promoted = False
        async with service(self.machine.environment, "standby", "feed", str(folder)), server:
            lags = [await self._lag_ms(server) for _ in range(COMMITS)]
        server.discard()
        lags.sort()
        self._figures.append(
            plain("standby from the store, a commit is visible, p50", statistics.median(lags), "ms")
        )
        self._figures.append(plain("  the slowest of 25", lags[-1], "ms"))

    async def _lag_ms(self, server: RestoredServer) -> float:
        number = await self.machine.value("INSERT INTO t (n) VALUES (0) RETURNING id")
        began = time.monotonic()
        query = f"SELECT count(*) FROM t WHERE id = {int(number)}"  # a number

        def visible() -> None:
            with psycopg.connect(server.conninfo(DATABASE), autocommit=True) as session:
                while (session.execute(query).fetchone() or (0,))[0] == 0:
                    time.sleep(0.005)

        await asyncio.to_thread(visible)
        return (time.monotonic() - began) * 1000

    async def _restores(self) -> None:
        await self.machine.execute("CREATE TABLE lost AS SELECT * FROM t LIMIT 100000")
        await self.machine.stored(600)
        await self.machine.execute("DROP TABLE lost")
        await self.machine.stored(600)
        mib = float(
            await self.machine.value("SELECT sum(pg_database_size(oid)) FROM pg_database") / _MIB
        )
        began = time.monotonic()
        await self.machine.restore()
        wall = time.monotonic() - began
        name = f"cluster of {mib:.0f} MiB restored, to a server that takes writes"
        self._figures.append(plain(name, wall, "s"))
        began = time.monotonic()
        await self.machine.run("restore", "--table", "lost", "--before-drop")
        wall = time.monotonic() - began
        self._figures.append(plain("  one dropped table of it, into the live database", wall, "s"))

    # The synchronous mode

    async def _synchronous(self) -> None:
        await self.machine.suite.kill(SERVICE)
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(2):
            turns = [(self._by_archiver, ours), (self._by_receivewal, theirs)]
            for receiving, found in turns[:: 1 - 2 * (number % 2)]:
                async with receiving():
                    found.append(await self._transactions_s())
        self._figures.append(
            against(
                f"synchronous commits, {CLIENTS} clients",
                statistics.mean(ours),
                "tx/s",
                statistics.mean(theirs),
                "pg_receivewal --synchronous",
                0.8,
            )
        )

    @contextlib.asynccontextmanager
    async def _waited_for(self, name: str) -> AsyncIterator[None]:
        await self._set_standby(name)
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        try:
            async with asyncio.timeout(120):
                while await self.machine.value(query) == 0:  # noqa: ASYNC110  # a view gives no event
                    await asyncio.sleep(0.05)
            yield
        finally:
            await self._set_standby("")

    async def _set_standby(self, name: str) -> None:
        await self.machine.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        await self.machine.execute("SELECT pg_reload_conf()")

    @contextlib.asynccontextmanager
    async def _by_archiver(self) -> AsyncIterator[None]:
        await self.machine.suite.start(SERVICE, HEADRACE_BACKUP_SYNCHRONOUS="true")
        async with self._waited_for("headrace_backup"):
            yield
        await self.machine.suite.kill(SERVICE)

    @contextlib.asynccontextmanager
    async def _by_receivewal(self) -> AsyncIterator[None]:
        process = await asyncio.create_subprocess_exec(
            self._programs / "pg_receivewal",
            f"--directory={self.machine.room / 'receivewal'}",
            f"--slot={_SLOT}",
            "--synchronous",
            env={**self._environment, "PGAPPNAME": "pg_receivewal"},
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with self._waited_for("pg_receivewal"):
            yield
        process.kill()
        await process.wait()

    async def _transactions_s(self) -> float:
        done = [0]
        end = time.monotonic() + SYNCHRONOUS_S
        await asyncio.gather(*(self._commits(end, done) for _ in range(CLIENTS)))
        return done[0] / SYNCHRONOUS_S

    async def _commits(self, end: float, done: list[int]) -> None:
        session = await asyncpg.connect(self.machine.server.dsn(DATABASE))
        while time.monotonic() < end:
            await session.execute("INSERT INTO t (n, v) VALUES (1, 'row')")
            done[0] += 1
        await session.close()


def _medians(found: Sequence[tuple[float, float]], place: int) -> float:
    return statistics.median(one[place] for one in found)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
