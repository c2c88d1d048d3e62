"""Readers of two mirrors see one moment of the source at every reading, during changes of its
tables and faults of the suite.

The sum over two tables is 0 in every transaction of the source. A reader of each mirror, with a
separate connection, requests the sum continuously, in one statement: the databases' SQL is the
oracle.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.testing.database import Database
from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.plugin import OwnNats
from headrace.testing.seeded import WITH_SNAPSHOTS
from headrace.testing.suite import Suite
from tests.support.own_source import OwnSource

SETTINGS = {
    "HEADRACE_STATUS_INTERVAL_S": "0.2",
    "HEADRACE_LEASE_TTL_S": "1",
    "HEADRACE_CATALOG_INTERVAL_S": "1",
    "HEADRACE_SPARK_START_TIMEOUT_S": "300",
}
PATIENCE_S = 300.0
READ_S = 0.01
SUMS = "SELECT (SELECT sum(n) FROM left_side) + (SELECT sum(n) FROM right_side), (SELECT max(n) FROM steps)"
MADE = """
CREATE TABLE left_side (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE right_side (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE steps (n int PRIMARY KEY);
INSERT INTO left_side SELECT g, 0 FROM generate_series(1, 2000) g;
INSERT INTO right_side VALUES (1, 0);
INSERT INTO steps VALUES (0);
"""
FILLED = "ALTER TABLE left_side ADD note text DEFAULT 'x'"
REWRITTEN = "ALTER TABLE left_side ALTER n TYPE numeric"
TRUNCATED = "TRUNCATE left_side, right_side; INSERT INTO left_side VALUES (1, 5); INSERT INTO right_side VALUES (1, -5)"
REPLACED = (
    "DROP TABLE right_side; CREATE TABLE right_side (id int PRIMARY KEY, n bigint, more text);\
INSERT INTO right_side SELECT 1, -sum(n), 'new' FROM left_side"
)
VOLATILE = "ALTER TABLE right_side ADD at timestamptz DEFAULT clock_timestamp()"

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]


@dataclass
class Reader:
    """Requests the sum until it is stopped."""

    ask: Callable[[], tuple[Any, Any]]
    readings: int = 0
    step: int = 0
    wrong: list[tuple[int, Any]] = field(default_factory=list)

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            found, step = await asyncio.to_thread(self.ask)
            self.readings += 1
            self.step = int(step)
            if found != 0:
                self.wrong.append((self.step, found))
            await asyncio.sleep(READ_S)

    async def sees(self, step: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.step < step:  # noqa: ASYNC110  # nothing notifies a mirror's readers
                await asyncio.sleep(0.05)


async def readable(*readers: Reader) -> None:
    """Wait for the commit of the first copies, which follows their log event."""
    async with asyncio.timeout(PATIENCE_S):
        for reader in readers:
            while True:
                with contextlib.suppress(psycopg.errors.UndefinedTable, sqlite3.OperationalError):
                    reader.ask()
                    break
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def reading(*readers: Reader) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.run(stopping))
        try:
            yield
        finally:
            stopping.set()


@contextlib.asynccontextmanager
async def transferring(source: Database) -> AsyncIterator[None]:
    """Transactions that leave the sum as it is, until the end of the block."""
    stopping = asyncio.Event()

    async def work() -> None:
        connection, number = await source.connect(), 0
        while not stopping.is_set():
            number += 1
            async with connection.transaction():
                await connection.execute(
                    f"UPDATE left_side SET n = n - 1 WHERE id = 1 + {number} % 5"
                )
                done = await connection.execute(
                    f"UPDATE left_side SET n = n - 1 WHERE id = 1 + {number} % 7"
                )
                moved = 1 if done == "UPDATE 1" else 0
                first = (
                    1
                    if await connection.fetchval(
                        f"SELECT count(*) FROM left_side WHERE id = 1 + {number} % 5"
                    )
                    else 0
                )
                await connection.execute(
                    f"UPDATE right_side SET n = n + {moved + first} WHERE id = 1"
                )
            await asyncio.sleep(0.005)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        stopping.set()
        await task


async def step(source: Database, number: int, sql: str = "") -> None:
    """Change the tables, in one transaction with the step's number."""
    await source.execute(
        f"BEGIN; LOCK TABLE left_side, right_side; {sql}; UPDATE steps SET n = {number}; COMMIT"
    )


async def test_every_reading_of_a_mirror_is_a_moment_of_the_source(
    own_source: OwnSource, own_nats: OwnNats, database: Database, tmp_path: Path
) -> None:
    source = await own_source(MADE + "CREATE PUBLICATION headrace FOR ALL TABLES")
    nats = await own_nats()
    environment = {
        **SETTINGS,
        **source.environment(nats.url),
    }
    path = tmp_path / "moments.db"
    lite = MirrorProcess(environment, tmp_path, "sqlite", f"sqlite:///{path}")
    other = MirrorProcess(environment, tmp_path, "postgres", database.dsn)
    mirrors = (lite, other)
    try:
        async with Suite(environment, tmp_path, WITH_SNAPSHOTS) as suite:
            for mirror in mirrors:
                await mirror.start()
            for mirror in mirrors:
                await mirror.logged("event=bootstrap_done", 3, timeout_s=PATIENCE_S)
            with (
                contextlib.closing(
                    sqlite3.connect(path, timeout=60, check_same_thread=False)
                ) as by_file,
                psycopg.connect(database.dsn, autocommit=True, prepare_threshold=None) as by_server,
            ):
                readers = (
                    Reader(lambda: by_file.execute(SUMS).fetchone()),
                    Reader(lambda: by_server.execute(SUMS).fetchone() or (1, 0)),
                )
                await readable(*readers)
                async with reading(*readers), transferring(source):
                    wanted = lite.log.count("event=bootstrap_wanted")
                    await step(source, 1, FILLED)
                    await _seen(readers, 1)
                    assert lite.log.count("event=bootstrap_wanted") == wanted, (
                        "a constant default needs no copy"
                    )
                    await step(source, 2, REWRITTEN)
                    await _copied(mirrors, 1)
                    await step(source, 3, TRUNCATED)
                    await _seen(readers, 3)
                    await step(source, 4, VOLATILE)
                    await _copied(mirrors, 2)
                    await step(source, 5, REPLACED)
                    await lite.logged("event=standing", 3, timeout_s=PATIENCE_S)
                    await lite.kill()
                    await lite.start()
                    await suite.kill("publisher")
                    await suite.start("publisher")
                    await _seen(readers, 5)
                    await step(source, 6, REWRITTEN.replace("numeric", "bigint"))
                    await other.logged("event=standing", 4, timeout_s=PATIENCE_S)
                    await nats.kill()
                    await other.kill()
                    await nats.start()
                    await other.start()
                    await step(source, 7)
                    await _seen(readers, 7)
                for reader, mirror in zip(readers, mirrors, strict=True):
                    assert reader.wrong == []
                    assert reader.readings > 500
                    assert mirror.log.count("event=standing") >= 4, "copies were necessary"
                    assert (await mirror.verified("--wait", "60"))[0] == 0
                    assert await mirror.stop() == 0
    finally:
        for mirror in mirrors:
            if mirror.runs:
                await mirror.kill()


async def _seen(readers: tuple[Reader, ...], number: int) -> None:
    for reader in readers:
        await reader.sees(number)


async def _copied(mirrors: tuple[MirrorProcess, ...], times: int) -> None:
    """Wait until a table was copied again, in addition to the first copies of three; DDL that no row follows
    comes late.
    """
    for mirror in mirrors:
        await mirror.logged("event=standing", times, timeout_s=PATIENCE_S)
        await mirror.logged("event=bootstrap_done", 3 + times, timeout_s=PATIENCE_S)
