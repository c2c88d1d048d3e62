"""The archive played again: into a stream it gives the events that the publisher gave; into a
database the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from headrace.archive import WalReader
from headrace.archive.layout import file_name
from headrace.archive.store import Store
from headrace.consumer import Watermark
from headrace.mirror import opened
from headrace.mirror.mirror_state import SEEN, Book
from headrace.testing.database import Database
from headrace.testing.oracle import Change, stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.archiving import (
    SCRIPT,
    WITH_ARCHIVE,
    Archiving,
    archived,
    environment,
)

MORE = (
    "INSERT INTO orders SELECT g, g % 7, 'again ' || g FROM generate_series(1, 3000) g",
    "UPDATE orders SET id = id + 10000 WHERE id <= 20; DELETE FROM orders WHERE id % 11 = 0",
    "INSERT INTO full_rows VALUES (5, repeat('large ', 20000), 1); UPDATE full_rows SET n = 3",
    (
        "INSERT INTO values_of VALUES (1, 1.50, '{\"b\": [1.50, null]}', '\\x00ff', '2025-01-02 "
        "03:04:05+00', 'NaN', true)"
    ),
)


async def command(settings: dict[str, str], *arguments: str, code: int = 0) -> str:
    """Run `headrace …` to its good end, or the one that is due; what it printed."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "HEADRACE", "NATS"))
    }
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("headrace"),
        *arguments,
        env={**inherited, **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == code, said.decode()
    return said.decode()


async def copied_in_halves(settings: dict[str, str], target: str, committed: list[Change]) -> None:
    """A replay that ends in the middle, one that continues there, and one with nothing left."""
    half = committed[len(committed) // 2].position.lsn
    replay = ("replay", "--into", target)
    first = await command(settings, *replay, "--to", f"{half >> 32:X}/{half & 0xFFFFFFFF:X}")
    rest = await command(settings, *replay)
    assert int(first.split()[0]) + int(rest.split()[0]) == len(committed)
    assert int(rest.split()[0]) > 0
    assert (await command(settings, *replay)).startswith("0 changes")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_range_played_again_gives_the_same_events_and_the_same_tables(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle = archiving.database, archiving.oracle
    await database.execute(
        "CREATE TABLE values_of (id int PRIMARY KEY, n numeric, j jsonb, b bytea, t timestamptz, f "
        "float8, yes bool)"
    )
    url = archiving.url
    settings = archiving.environment(HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ENCODING="json")
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        for statement in (*SCRIPT, *MORE):
            await database.execute(statement)
        committed = await oracle.changes()
        await archived(url, committed)
        await suite.logged("publisher", "epoch_joined")
        async with asyncio.timeout(60):
            while len(published := await live(archiving.nats.url)) < len(committed):  # noqa: ASYNC110  # a stream's length gives no event
                await asyncio.sleep(0.2)
        said = await command(settings, "replay", "--into", "jetstream")
        assert said.startswith(f"{len(committed)} changes")
        assert "the end of the archive" in said
        again = [event.payload for event in await stored(archiving.nats.url, "REPLAY")]
        # The archive names no key as of the change.
        published = [
            {name: value for name, value in body.items() if name != "key"} for body in published
        ]
        assert again == published
        assert (await command(settings, "replay", "--into", "jetstream")).startswith("0 changes")

        await database.execute("CREATE DATABASE copy")
        for target in (
            f"sqlite:///{tmp_path}/copy.db",
            f"postgresql://headrace@127.0.0.1:{database.server.port}/copy",
        ):
            await copied_in_halves(settings, target, committed)
            await seen(archiving.nats.url, target)
            assert "orders" in await command(settings, "verify", "--to", target)

        # Garbage collection removes files that it has not read yet: to continue would skip them.
        late = f"sqlite:///{tmp_path}/late.db"
        await command(settings, "replay", "--into", late, "--to", "2")
        for number in range(2):
            await database.execute(
                f"INSERT INTO orders VALUES ({50_000 + number}, 1, 'in a separate file')"
            )
            committed += await oracle.changes()
            await archived(url, committed)
        assert (await command(settings, "replay", "--into", target)).startswith("2 changes")
        await command(settings, "archive", "gc", "--older-than", "0")
        refused = await command(settings, "replay", "--into", late, code=1)
        assert "does not reach back" in refused
        away = await command(
            settings, "replay", "--into", "postgresql://nobody@127.0.0.1:1/copy", code=1
        )
        assert "The mirror tries again" not in away
        assert "--into names" in away
        assert (await command(settings, "replay", "--into", target)).startswith("0 changes"), (
            "nothing is missing there"
        )


async def test_a_replay_from_a_file_inside_a_wal_record_gives_the_original_ids(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, url = archiving.database, archiving.url
    await database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    settings = archiving.environment(HEADRACE_ARCHIVE_FILE_ROWS_MAX="25", HEADRACE_ENCODING="json")
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        # A WAL record of COPY has some two hundred of these rows, a file has fifty.
        connection = await database.connect()
        await connection.copy_records_to_table("t", records=[(number,) for number in range(700)])
        await connection.close()
        async with asyncio.timeout(60):
            while len(published := await live(archiving.nats.url)) < 700:  # noqa: ASYNC110  # a stream's length gives no event
                await asyncio.sleep(0.2)
            while len(await asyncio.to_thread(WalReader(url).list)) < 14:  # noqa: ASYNC110  # nor does a folder
                await asyncio.sleep(0.2)
        original = {body["data"]["id"]: body["msg_id"] for body in published}  # type: ignore[index]  # JSON
        for begin in ("2", "4", "9"):
            stream = f"FROM{begin}"
            await command(
                settings,
                *f"replay --into jetstream --from {begin} --stream {stream} --prefix {stream}".split(),
            )
            again = [event.payload for event in await stored(archiving.nats.url, stream)]
            assert len(again) == 700 - 50 * (int(begin) - 1)
            assert {
                body["data"]["id"]: body["msg_id"] for body in again
            }.items() <= original.items()
        # Without the file before, nobody knows them.
        for file_id in (1, 2, 3):
            Store(url).delete(file_name(file_id))
        late = ("--from", "4", "--stream", "LATE", "--prefix", "late")
        refused = await command(settings, "replay", "--into", "jetstream", *late, code=1)
        assert "starts inside a transaction" in refused


NOT_IN_ROWS = {
    "replaced": "DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, v varchar(9))",
    "swapped": "ALTER TABLE {t} RENAME TO old; ALTER TABLE other RENAME TO {t}",
    "computed": "ALTER TABLE {t} ALTER v TYPE text USING v || '!'",
    "widened": "ALTER TABLE {t} ALTER v TYPE varchar(20)",
    "emptied": "TRUNCATE {t}",
}


async def test_a_table_whose_rows_changed_without_a_change_is_not_replayed_past_that(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    """The first run ended before the change, and the second one continues."""
    postgres, nats_server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    for table in (*NOT_IN_ROWS, "other"):
        await database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(9))")
    url = f"file://{tmp_path}/archive"
    settings = environment(database, nats_server.url, url)
    copy = f"{tmp_path}/copy.db"

    async def archived_rows(number: int) -> None:
        async with asyncio.timeout(60):
            while sum(file.info.rows for file in WalReader(url).files()) < number:  # noqa: ASYNC110  # a folder gives no event
                await asyncio.sleep(0.2)

    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        for table in (*NOT_IN_ROWS, "other"):
            await database.execute(f"INSERT INTO {table} VALUES (1, '{table[:3]}')")
        await archived_rows(len(NOT_IN_ROWS) + 1)
        for table in NOT_IN_ROWS:
            await command(
                settings, "replay", "--into", f"sqlite:///{copy}.{table}", "--table", table
            )
        for table, statement in NOT_IN_ROWS.items():
            await database.execute(statement.format(t=table))
            await database.execute(f"INSERT INTO {table} VALUES (2, 'new')")
        await archived_rows(2 * len(NOT_IN_ROWS) + 2)
        for table in NOT_IN_ROWS:
            follows = table in {"widened", "emptied"}
            into = ("--into", f"sqlite:///{copy}.{table}", "--table", table)
            said = await command(settings, "replay", *into, code=0 if follows else 1)
            if follows:
                assert rows_of(f"{copy}.{table}", table) == await texts(database, table)
            else:
                assert f"public.{table} may have got values that no change reports" in said
        assert rows_of(f"{copy}.replaced", "replaced") == [("1", "rep")]
    await database.close()


def rows_of(file: str, table: str) -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as connection:
        query = f"SELECT CAST(id AS text), v FROM {table} ORDER BY id"
        return list(connection.execute(query))


async def texts(database: Database, table: str) -> list[tuple[str, str]]:
    query = f"SELECT id::text, v FROM {table} ORDER BY id"
    return [tuple(row) for row in await database.fetch(query)]


async def seen(nats_url: str, target_url: str) -> None:
    """Say in the mirror's account that the whole stream is in it: `verify` looks there for what it
    might lack.
    """
    events = await stored(nats_url)
    async with opened(target_url) as target:
        book = Book(target)
        await book.open()
        book.keep_lanes({**book.lanes, SEEN: Watermark(stream_seq=events[-1].seq)})
        await book.commit()


async def live(nats_url: str) -> list[dict[str, object]]:
    """The publisher's events without schema events."""
    return [
        event.payload for event in await stored(nats_url) if event.payload["operation"] != "SCHEMA"
    ]
