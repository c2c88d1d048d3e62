"""The servers that a benchmark runs on, and what their processes cost.

Real servers with their durable, file-backed defaults on a disk, never the tests' (which live in
memory without fsync). Figures of a process come from /proc, so that measuring costs nothing in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from headrace.embedded.account import unprivileged_account
from headrace.embedded.nats import GROUP_MESSAGES_MAX, EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_install import postgres_binaries
from headrace.testing.responder import child_pids

POSTGRES_SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
PUBLICATION = "bench"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int, *, children: bool = False) -> float:
    """Processor time that the process took so far, in all its threads; also that of children which
    have ended, if wanted.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    last = 15 if children else 13
    return sum(int(ticks) for ticks in fields[11:last]) / _TICKS_PER_S


def family_cpu_s(pid: int) -> dict[str, float]:
    """Processor time of the process and all that descend from it, those that ended too, by the name
    of the program.
    """
    parents, names, seconds = {}, {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, tail = stat.read_text().rpartition(")")
            one, fields = int(head.split()[0]), tail.split()
            parents[one], names[one] = int(fields[1]), head.partition("(")[2]
            seconds[one] = sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S
    family = {pid}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    total: dict[str, float] = {}
    for one in family & seconds.keys():
        total[names[one]] = total.get(names[one], 0.0) + seconds[one]
    return total


def spark_kind(pid: int) -> str:
    """The kind of a descendant of a service with Spark."""
    command = ""
    with contextlib.suppress(OSError):
        command = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    if "headrace.spark.driver" in command:
        return "Spark's driver"
    if "pyspark.daemon" in command:
        return "a Spark worker"
    return "Spark's JVM" if "java" in command.partition(" ")[0] else "others"


@dataclass(slots=True)
class Family:
    """A service that may have Spark's processes, and what it has cost since the last `forget`."""

    pid: int
    name: str
    _before: dict[str, float] = field(default_factory=dict)

    def _members(self) -> dict[int, str]:
        return {self.pid: self.name} | {pid: spark_kind(pid) for pid in child_pids(self.pid)}

    def _cpu_s(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for pid, kind in self._members().items():
            with contextlib.suppress(OSError):
                total[kind] = total.get(kind, 0.0) + cpu_s(pid, children=True)
        return total

    def forget(self) -> None:
        """Begin with nothing: neither time nor a peak of memory."""
        for pid in self._members():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._before = self._cpu_s()

    def cpu_s(self) -> dict[str, float]:
        """Processor time since then, by kind of process."""
        spent = {kind: now - self._before.get(kind, 0.0) for kind, now in self._cpu_s().items()}
        return {kind: seconds for kind, seconds in spent.items() if seconds > 0}

    def rss_max_mib(self) -> dict[str, float]:
        """The most memory since then of one process of each kind."""
        peaks: dict[str, float] = {}
        for pid, kind in self._members().items():
            with contextlib.suppress(OSError):
                peaks[kind] = max(peaks.get(kind, 0.0), rss_max_mib(pid))
        peaks.pop("others", None)
        return peaks


def rss_max_mib(pid: int) -> float:
    """The most memory that the process held so far."""
    return _status_mib(pid, "VmHWM:")


def rss_mib(pid: int) -> float:
    """The memory that the process holds."""
    return _status_mib(pid, "VmRSS:")


def _status_mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


@dataclass(slots=True)
class Machine:
    """PostgreSQL and NATS, running, and a folder for what else there is."""

    folder: Path
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    database: Any

    def environment(self, slot: str, **more: str) -> dict[str, str]:
        """The environment of a service of the suite."""
        return {
            **self.postgres.environment(),
            "PG_DB": "postgres",
            "NATS_URL": self.nats.url,
            # As `headrace up` has it with this server.
            "HEADRACE_ATOMIC_MESSAGES_MAX": str(GROUP_MESSAGES_MAX),
            "HEADRACE_PUB": PUBLICATION,
            "HEADRACE_SLOT": slot,
            **more,
        }

    def binary(self, name: str) -> Path:
        """A program of this PostgreSQL."""
        return postgres_binaries(18, unprivileged_account()) / name

    async def run(self, program: str, *arguments: str) -> float:
        """Run a program of PostgreSQL to its end, its output thrown away; the seconds it took."""
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            self.binary(program),
            *arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{program} failed: {said.decode()}")
        return time.monotonic() - began

    async def walsender(self, slot: str) -> int:
        """The process of PostgreSQL that serves the wal-reader of this slot."""
        return int(
            await self.database.fetchval(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", slot
            )
        )

    async def _active(self, slot: str) -> bool:
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
        return bool(await self.database.fetchval(query, slot))

    async def drop_slot(self, name: str) -> None:
        """Drop a slot as soon as its walsender is gone."""
        async with asyncio.timeout(30):
            while await self._active(name):  # noqa: ASYNC110  # PostgreSQL gives no event for it
                await asyncio.sleep(0.05)
        await self.database.execute("SELECT pg_drop_replication_slot($1)", name)


def _folder() -> Path:
    """On a disk, and one that PostgreSQL's own user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir="/var/tmp"))
    folder.chmod(0o711)
    return folder


@contextlib.asynccontextmanager
async def machine() -> AsyncIterator[Machine]:
    """The servers, for as long as the block runs."""
    folder = _folder()
    postgres = EmbeddedPostgres(folder / "postgres", settings=POSTGRES_SETTINGS)
    nats = EmbeddedNats(folder / "nats")
    try:
        await postgres.start()
        await nats.start()
        async with asyncpg.create_pool(
            postgres.dsn(), min_size=1, max_size=4, command_timeout=600
        ) as database:
            yield Machine(folder, postgres, nats, database)
    finally:
        await nats.stop("immediate")
        await postgres.stop("immediate")
        shutil.rmtree(postgres.pgdata, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
