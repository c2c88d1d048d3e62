"""A line with an archive: its tables, the statements that change them, the entries of the archive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.archive import RowEntry, WalReader, WalReaderOptions
from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.line import QUICK
from headrace.testing.oracle import Change, Oracle
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.s3 import S3Server, S3UnavailableError, binary
from headrace.testing.suite import LINE

WITH_ARCHIVE = (*LINE, "archiver")
SETTINGS = {**QUICK, "HEADRACE_ARCHIVE_FILE_AGE_MAX_S": "0.2"}
CHANGES = frozenset({"insert", "update", "delete", "truncate"})
SCRIPT = (
    "INSERT INTO orders SELECT g, g % 7, 'note ' || g FROM generate_series(1, 2000) g",
    "UPDATE orders SET n = n + 1 WHERE id % 3 = 0",
    (
        "INSERT INTO items VALUES (1, 'a'), (2, NULL); UPDATE items SET a = 3 WHERE a = 1; DELETE "
        "FROM items WHERE a = 2"
    ),
    (
        "ALTER TABLE items ADD COLUMN more jsonb; INSERT INTO items VALUES (9, 'x', '{\"deep\": "
        "[1.50, null]}')"
    ),
    "TRUNCATE items, orders",
    (
        "INSERT INTO full_rows VALUES (1, repeat('large ', 20000), 1); UPDATE full_rows SET n = 2; "
        "DELETE FROM full_rows"
    ),
)


@dataclass(frozen=True)
class Archiving:
    """A source, a NATS server and a folder for the archive, which a test has for itself."""

    database: Database
    oracle: Oracle
    nats: EmbeddedNats
    url: str

    def environment(self, **more: str) -> dict[str, str]:
        return environment(self.database, self.nats.url, self.url, **more)


@pytest.fixture
async def archiving(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> AsyncIterator[Archiving]:
    """Servers for a line with an archive, which the test may stop or kill."""
    database = Database(await own_postgres(), "postgres")
    oracle = await prepare(database)
    yield Archiving(database, oracle, await own_nats(), f"file://{tmp_path}/archive")
    await database.close()


@pytest.fixture
async def s3(tmp_path: Path) -> AsyncIterator[S3Server]:
    """An S3 server of the test's own."""
    try:
        await asyncio.to_thread(binary)
    except S3UnavailableError as unavailable:
        pytest.skip(str(unavailable))
    server = S3Server(tmp_path / "s3")
    await server.start()
    yield server
    await server.kill()


async def prepare(database: Database) -> Oracle:
    await database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n int, note text)")
    await database.execute("CREATE TABLE items (a int, b text, PRIMARY KEY (a))")
    await database.execute("CREATE TABLE full_rows (id int PRIMARY KEY, big text, n int)")
    await database.execute(
        "ALTER TABLE full_rows REPLICA IDENTITY FULL; ALTER TABLE full_rows ALTER big SET STORAGE "
        "EXTERNAL"
    )
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    return await Oracle.begun(database, f"oracle_{database.name}")


def as_change(entry: RowEntry) -> Change:
    assert entry.table is not None
    return Change(entry.position, entry.operation.upper(), entry.table)


def changes(entries: Iterable[RowEntry]) -> list[Change]:
    return [as_change(entry) for entry in entries if entry.operation in CHANGES]


async def archived(
    url: str,
    committed: list[Change],
    timeout_s: float = 60.0,
    options: WalReaderOptions | None = None,
) -> list[RowEntry]:
    """Everything in the archive, once it holds as many changes as were committed."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = list(WalReader(url, options).follow(wait=False))
        if len(changes(found)) >= len(committed) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.2)


def environment(database: Database, nats_url: str, url: str, **more: str) -> dict[str, str]:
    return {
        **SETTINGS,
        **database.environment(nats_url),
        "HEADRACE_SLOT": f"slot_{database.name}",
        "HEADRACE_ARCHIVE_URL": url,
        **more,
    }
