"""A cluster with a backup store, a running wal-archiver, and the restores of it.

A restored cluster is served by another server class than the restore's own, and compared by hashes
of what SQL shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.backup.names import NamesBook
from headrace.backup.store import BackupStore
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.plugin import OwnPostgres
from headrace.testing.process import Outcome, command
from headrace.testing.suite import Suite

DATABASE = "postgres"
SERVICE = "wal-archiver"
# Nothing listens there: backups need no NATS.
NO_NATS = "nats://127.0.0.1:9"
READY_S = 240.0

_TABLES = """
SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1
"""


async def digests(dsn: str) -> dict[str, str]:
    """A hash of every table's rows, in any order."""
    session = await asyncpg.connect(dsn)
    try:
        async with session.transaction(isolation="repeatable_read", readonly=True):
            return await digests_in(session)
    finally:
        await session.close()


async def digests_in(session: Any) -> dict[str, str]:
    """The same, in an open transaction."""
    found = {}
    for (table,) in await session.fetch(_TABLES):
        found[table] = await session.fetchval(
            "SELECT md5(coalesce(string_agg(md5(t::text), '' ORDER BY md5(t::text)), '')) || ' ' "
            f"|| count(*) FROM {table} t"
        )
    return found


class TimeMachine:
    """One cluster, its store, its wal-archiver."""

    def __init__(
        self, server: EmbeddedPostgres, room: Path, logs: Path, extra: Mapping[str, str]
    ) -> None:
        self.server = server
        self.room = room
        self.store = room / "store"
        self.environment = {
            **server.environment(DATABASE),
            "PG_DB": DATABASE,
            "NATS_URL": NO_NATS,
            "HEADRACE_BACKUP_URL": self.store.as_uri(),
            "HEADRACE_BACKUP_CHUNK_INTERVAL_S": "0.1",
            "HEADRACE_STATUS_INTERVAL_S": "0.5",
            **extra,
        }
        self._logs = logs
        self.suite = self.suite_with(self.environment)
        self._session: Any = None

    def suite_with(self, environment: Mapping[str, str]) -> Suite:
        """The services with another environment, not started."""
        return Suite(environment, self._logs, ())

    async def run(self, *arguments: str, code: int = 0, **extra: str) -> Outcome:
        """Run `headrace` with these arguments; it must end with this code."""
        done = await command({**self.environment, **extra}, *arguments, timeout_s=900)
        assert done.code == code, f"{arguments}: {done.code}\n{done.out}\n{done.err}"
        return done

    async def name_stored(self, table: str) -> None:
        """Wait until the table's name is stored: one that lived for a moment has no known name."""
        book = NamesBook(BackupStore(self.store.as_uri()))
        async with asyncio.timeout(60):
            # A folder gives no event.
            while table not in {each.relation.name for each in await asyncio.to_thread(book.read)}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def begin(self, **environment: str) -> None:
        """Create the store and start the wal-archiver."""
        await self.run("backup", "init")
        await self.suite.start(SERVICE, **environment)

    async def backup(self, *arguments: str) -> str:
        """Take a backup, and return its label."""
        done = await self.run("backup", "now", *arguments)
        return done.out.split()[1].rstrip(":")

    async def session(self) -> Any:
        """A connection to the cluster, again after it was restarted."""
        if self._session is None or self._session.is_closed():
            self._session = await asyncpg.connect(self.server.dsn(DATABASE))
        return self._session

    async def execute(self, statement: str) -> str:
        """Run a statement in the cluster."""
        return str(await (await self.session()).execute(statement))

    async def value(self, query: str) -> Any:
        """The first value that a query gives."""
        return await (await self.session()).fetchval(query)

    async def digests(self) -> dict[str, str]:
        """The rows as they are now."""
        return await digests(self.server.dsn(DATABASE))

    async def stored(self, timeout_s: float = READY_S) -> None:
        """Wait until everything committed so far is confirmed to the slot."""
        lsn = await self.value("SELECT pg_current_wal_flush_lsn()::text")
        reached = (
            "SELECT coalesce(bool_or(restart_lsn >= $1::text::pg_lsn), false) "
            "FROM pg_replication_slots WHERE slot_type = 'physical'"
        )
        async with asyncio.timeout(timeout_s):
            while not await (await self.session()).fetchval(reached, lsn):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def restore(self, *moment: str, name: str = "restored") -> Path:
        """Restore the cluster, and return the folder that `serving` takes."""
        folder = self.room / name
        folder.mkdir(mode=0o711)
        await self.run("restore", "--to", str(folder / "pgdata"), *moment)
        return folder

    @contextlib.asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[EmbeddedPostgres]:
        """A server of a restored cluster."""
        async with EmbeddedPostgres(folder, self.server.version) as server:
            yield server

    async def restored_digests(self, *moment: str, name: str = "restored") -> dict[str, str]:
        """The rows of a moment, from a restored cluster, which is removed."""
        folder = await self.restore(*moment, name=name)
        async with self.serving(folder) as server:
            found = await digests(server.dsn(DATABASE))
        await asyncio.to_thread(shutil.rmtree, folder)
        return found

    async def close(self) -> None:
        """Close the connection, and end the services."""
        if self._session is not None:
            self._session.terminate()
        await self.suite.__aexit__()


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder that PostgreSQL's account can enter."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-time-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@async_fixture
async def machine(
    own_postgres: OwnPostgres, pg_version: PostgresVersion, room: Path, tmp_path: Path
) -> AsyncIterator[TimeMachine]:
    """A cluster whose store isn't created yet."""
    server = await own_postgres(
        pg_version, {"full_page_writes": "on", "track_commit_timestamp": "on"}
    )
    made = TimeMachine(server, room, tmp_path, {})
    try:
        yield made
    finally:
        await made.close()
