"""Base snapshots in the archive: a replay from them gives the source's rows, without the files before.

The source's own SQL is the oracle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace.archive import WalReader
from headrace.archive.bases import BaseRecord, Bases
from headrace.archive.errors import FileTakenError
from headrace.archive.layout import base_beginning, file_name
from headrace.archive.store import Names, Store
from headrace.testing.database import Database
from headrace.testing.oracle import Change
from headrace.testing.process import Outcome
from headrace.testing.process import command as run
from headrace.testing.s3 import S3Server
from headrace.testing.suite import Suite
from tests.support.archive_maker import table_info
from tests.support.archiving import WITH_ARCHIVE, Archiving

TYPES = (
    "CREATE DOMAIN percent AS numeric(5, 2)",
    (
        'CREATE TABLE "Hostile, ""name""" (id int, tenant int, "a,b" text, n numeric, d percent, '
        "v varchar(9), j jsonb, b bytea, at timestamptz, f float8, yes bool, list int[], "
        "PRIMARY KEY (tenant, id))"
    ),
    "CREATE TABLE keyless (a int, b text); ALTER TABLE keyless REPLICA IDENTITY FULL",
    "CREATE TABLE empty (id int PRIMARY KEY)",
)
HOSTILE = (
    'INSERT INTO "Hostile, ""name""" VALUES '
    "(1, 1, E'line\\n\"two\", \\\\', 1.50, 12.30, 'x', '{\"b\": [1.50, null], \"n\": 12345678901234567890.5}', "
    "'\\x00ff', '2025-01-02 03:04:05+00', 'NaN', true, '{1,NULL}'), "
    "(2, 1, '', 'NaN', NULL, NULL, 'null', '', '0044-03-15 BC', '-Infinity', NULL, '{}')"
)
TABLES = ("orders", "items", "full_rows", '"Hostile, ""name"""', "keyless", "empty")


async def texts(dsn: str, tables: tuple[str, ...] = TABLES) -> dict[str, list[str]]:
    """Every table's rows as PostgreSQL writes them."""
    session = await asyncpg.connect(dsn)
    try:
        return {
            table: [
                row[0] for row in await session.fetch(f"SELECT t::text FROM {table} t ORDER BY 1")
            ]
            for table in tables
        }
    finally:
        await session.close()


async def headrace(
    settings: dict[str, str], *arguments: str, code: int = 0, **more: str
) -> Outcome:
    done = await run({**settings, **more}, *arguments, timeout_s=300)
    assert done.code == code, f"{arguments}: {done.code}\n{done.out}\n{done.err}"
    return done


async def bases(settings: dict[str, str]) -> list[dict[str, Any]]:
    done = await headrace(settings, "archive", "base", "ls", "--json")
    return [json.loads(line) for line in done.out.splitlines()]


def in_sqlite(file: Path, table: str = "orders") -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(file)) as copy:
        return copy.execute(f"SELECT id, n, note FROM {table} ORDER BY id").fetchall()


async def orders(database: Database) -> list[tuple[Any, ...]]:
    query = "SELECT id, n, note FROM orders ORDER BY id"
    return [tuple(row) for row in await database.fetch(query)]


async def reached(url: str, committed: list[Change]) -> None:
    """Wait until the archive has the last of these changes; it may lack those before its slot."""
    wanted = committed[-1].position
    async with asyncio.timeout(60):
        while not any(file.info.last >= wanted for file in WalReader(url).files()):  # noqa: ASYNC110  # a folder gives no event
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def writing(database: Database) -> AsyncIterator[None]:
    """Rows come, change and go all the time."""
    over = asyncio.Event()

    async def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            await database.execute(f"INSERT INTO orders VALUES ({10_000 + number}, 1, 'during')")
            await database.execute(f"UPDATE orders SET n = n + 1 WHERE id % 50 = {number % 50}")
            await database.execute(f"DELETE FROM orders WHERE id = {10_000 + number // 2}")
            await database.execute(f"UPDATE keyless SET b = 'k{number % 4}' WHERE a = 2")
            await asyncio.sleep(0.02)
        assert number > 1

    task = asyncio.create_task(write(), name="writing")
    try:
        yield
    finally:
        over.set()
        await task


async def test_a_replay_from_bases_needs_no_file_from_before_them(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    for statement in (*TYPES, HOSTILE, "INSERT INTO orders VALUES (7, 7, 'before the slot')"):
        await database.execute(statement)
    settings = archiving.environment(HEADRACE_ARCHIVE_FILE_ROWS_MAX="500")
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        await database.execute(
            "INSERT INTO orders SELECT g, 1, 'a' FROM generate_series(10, 2000) g"
        )
        await database.execute("INSERT INTO keyless SELECT g % 3, 'k' FROM generate_series(1, 9) g")
        async with writing(database):
            await headrace(settings, "archive", "base", "now")
        assert {base["table"] for base in await bases(settings)} >= {"orders", "keyless", "empty"}
        for statement in (
            "UPDATE orders SET n = 2 WHERE id % 3 = 0; DELETE FROM orders WHERE id % 5 = 0",
            'UPDATE "Hostile, ""name""" SET "a,b" = \'changed\' WHERE id = 2',
            "DELETE FROM keyless WHERE a = 1; INSERT INTO empty VALUES (1)",
            "ALTER TABLE items ADD COLUMN more jsonb; INSERT INTO items VALUES (9, 'x', '[1.50]')",
        ):
            await database.execute(statement)
        await reached(url, await oracle.changes())
        await headrace(settings, "archive", "gc", "--older-than", "0")
        assert WalReader(url).list()[0].id > 1
        await database.execute("CREATE DATABASE copy")
        target = f"postgresql://headrace@127.0.0.1:{database.server.port}/copy"
        said = await headrace(settings, "replay", "--into", target)
        assert "rows loaded from" in said.out
        assert "the end of the archive" in said.out
        assert await texts(target) == await texts(database.server.dsn(database.name))
        again = await headrace(settings, "replay", "--into", target)
        assert again.out.startswith("0 changes")
        then = await database.fetch("SELECT clock_timestamp()::text, sum(n), count(*) FROM orders")
        await database.execute("UPDATE orders SET note = 'later' WHERE id = 7")
        await reached(url, await oracle.changes())
        await headrace(settings, "replay", "--into", target)
        assert await texts(target) == await texts(database.server.dsn(database.name))
        await headrace(
            settings, "replay", "--into", f"sqlite:///{tmp_path}/copy.db", "--table", "orders"
        )
        assert in_sqlite(tmp_path / "copy.db") == await orders(database)
        [(at, total, count)] = then
        restore = ("restore", "--table", "orders", "--way", "logical", "--at", at)
        await headrace(settings, *restore, "--into", f"sqlite:///{tmp_path}/then.db")
        restored = in_sqlite(tmp_path / "then.db", "orders_restored")
        assert (sum(row[1] for row in restored), len(restored)) == (total, count)
        assert all(note != "later" for _, _, note in restored)


async def test_a_bucket_lists_complete_bases_creates_a_record_once_and_removes_all_of_a_base(
    s3: S3Server,
) -> None:
    store = Store(s3.url("log"), s3.options())
    kept = Bases(store)
    record = BaseRecord("one", "made", "headrace", "1", table_info("orders"), 100, 7, 1, 0, ())
    await asyncio.to_thread(store.put_new, file_name(1), b"a file of the log")
    await asyncio.to_thread(kept.begin, "one")
    await asyncio.to_thread(kept.begin, "two")
    assert await asyncio.to_thread(kept.all) == []
    await asyncio.to_thread(kept.complete, record)
    assert [one.record for one in await asyncio.to_thread(kept.all)] == [record]
    assert [one.id for one in await asyncio.to_thread(kept.unfinished)] == ["two"]
    with pytest.raises(FileTakenError):
        await asyncio.to_thread(kept.complete, record)
    await asyncio.to_thread(kept.remove, record)
    left = await asyncio.to_thread(store.ask, Names(""))
    assert [item.location for item in left] == [file_name(1), base_beginning("two")]


async def test_a_kill_leaves_no_base_that_counts_and_a_replay_that_can_be_repeated(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    # Ranges of one page, and a part for each.
    settings = archiving.environment(
        HEADRACE_ARCHIVE_FILE_ROWS_MAX="100", HEADRACE_SNAPSHOT_RANGE_BYTES="8192"
    )
    now = ("archive", "base", "now", "orders")
    replay = ("replay", "--into", f"sqlite:///{tmp_path}/copy.db", "--table", "orders")
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        await database.execute("INSERT INTO orders SELECT g, 1, 'a' FROM generate_series(1, 900) g")
        await reached(url, await oracle.changes())
        for point in ("base.after_part", "base.after_part:3", "base.before_record"):
            await headrace(settings, *now, code=-9, HEADRACE_FAILPOINT=point)
            assert await bases(settings) == []
        await headrace(settings, *now, code=-9, HEADRACE_FAILPOINT="base.after_record")
        [base] = await bases(settings)
        parts = base["parts"]
        assert (base["rows"], len(parts) > 3) == (900, True)
        await database.execute("UPDATE orders SET note = 'b' WHERE id % 2 = 0")
        await reached(url, await oracle.changes())
        for point in ("replay.base_part", "replay.base_part:2", "replay.bases_loaded"):
            await headrace(settings, *replay, code=-9, HEADRACE_FAILPOINT=point)
            with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
                query = "SELECT count(*) FROM sqlite_master WHERE name = 'orders'"
                assert copy.execute(query).fetchone() == (0,), "readers see no part of a table"
        await headrace(settings, *replay)
        assert in_sqlite(tmp_path / "copy.db") == await orders(database)
        said = await headrace(settings, "archive", "verify")
        assert " 1 bases," in said.out

        # A damaged base is named, and never used.
        part = Path(url.removeprefix("file://"), parts[1]["name"])
        await asyncio.to_thread(lambda: part.write_bytes(part.read_bytes()[::-1]))
        said = await headrace(settings, "archive", "verify", code=1)
        assert part.name in said.out
        other = (*replay[:2], f"sqlite:///{tmp_path}/other.db", *replay[3:])
        said = await headrace(settings, *other, code=1)
        assert part.name in said.err


async def test_a_table_whose_first_changes_are_gone_is_refused_and_not_begun_in_the_middle(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    settings = archiving.environment()
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        for statement in (
            "INSERT INTO orders VALUES (1, 1, 'first')",
            "INSERT INTO items VALUES (1, 'first')",
            "INSERT INTO orders VALUES (2, 2, 'second')",
        ):
            await database.execute(statement)
            await reached(url, await oracle.changes())
        await headrace(settings, "archive", "gc", "--older-than", "0")
        copy = ("replay", "--into", f"sqlite:///{tmp_path}/copy.db")
        said = await headrace(settings, *copy, "--table", "orders", code=1)
        assert "public.orders has no base" in said.err
        await headrace(settings, "archive", "base", "now", "orders")
        # A moment before the base is as far out of reach as before.
        said = await headrace(settings, *copy, "--table", "orders", "--to", "2020-01-01", code=1)
        assert "public.orders has no base" in said.err
        await headrace(settings, *copy, "--table", "orders")
        await database.execute("ALTER TABLE orders RENAME TO sales")
        await database.execute("INSERT INTO sales VALUES (3, 3, 'third')")
        reader = WalReader(url)
        async with asyncio.timeout(60):
            while reader.list()[-1].id < 4:  # noqa: ASYNC110  # a folder gives no event
                await asyncio.sleep(0.2)
        said = await headrace(settings, *copy, code=1)
        assert "it was public.orders before" in said.err
