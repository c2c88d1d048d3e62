"""Changes that can't be recovered or read are reported or stop the stream; no change is lost
silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import nats
import pytest
from nats.js.errors import NotFoundError

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.lsn import parse_lsn
from headrace.testing.database import Database, fresh_database
from headrace.testing.names import Names
from headrace.testing.oracle import Stored, stored
from headrace.testing.suite import Suite
from tests.support.slot import until_confirmed


def environment(
    database: Database, server: EmbeddedNats, names: Names, **settings: str
) -> dict[str, str]:
    return {
        **database.environment(server.url),
        **names.settings,
        "HEADRACE_PROGRESS_INTERVAL_S": "0.1",
        "HEADRACE_STATUS_INTERVAL_S": "0.1",
        "HEADRACE_LEASE_TTL_S": "1",
        **settings,
    }


async def until(found: Callable[[], Awaitable[Any]], timeout_s: float = 20) -> Any:
    """The first answer that is not empty."""
    async with asyncio.timeout(timeout_s):
        while True:
            with contextlib.suppress(nats.errors.Error):
                if answer := await found():
                    return answer
            await asyncio.sleep(0.1)


async def of_operation(server: EmbeddedNats, operation: str, count: int = 1) -> list[Stored]:
    found = [event for event in await stored(server.url) if event.payload["operation"] == operation]
    return found if len(found) >= count else []


async def test_a_slot_that_was_made_anew_is_told_as_a_gap_once_between_the_rows_around_it(
    database: Database, server: EmbeddedNats, names: Names, tmp_path: Path
) -> None:
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t"
    )
    settings = environment(database, server, names)
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await database.execute("INSERT INTO t VALUES (1)")
        await until(lambda: of_operation(server, "INSERT"))
        await suite.stop("wal-reader")
        await suite.stop("publisher")
        await database.execute("SELECT pg_drop_replication_slot($1)", names.slot)
        await database.execute("INSERT INTO t VALUES (2)")
        for rows in (2, 3):
            await suite.start("publisher")
            await suite.start("wal-reader")
            await until(lambda: of_operation(server, "GAP"))
            await database.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            await until(functools.partial(of_operation, server, "INSERT", rows))
            await suite.stop("wal-reader")
            await suite.stop("publisher")
    found = [e for e in await stored(server.url) if e.payload["operation"] != "SCHEMA"]
    assert [(e.payload["operation"], e.payload.get("data", {}).get("id")) for e in found] == [
        ("INSERT", 1),
        ("GAP", None),
        ("INSERT", 3),
        ("INSERT", 4),
    ]
    gap = found[1]
    assert (gap.subject, gap.payload["reason"]) == ("cdc._gap", "slot_moved")


@pytest.fixture
async def ascii_database(
    postgres_server: EmbeddedPostgres, names: Names
) -> AsyncIterator[Database]:
    """A database that takes any bytes as text."""
    options = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    async with fresh_database(postgres_server, names.other("ascii"), options) as database:
        await database.execute(
            f"CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION {names.publication} "
            "FOR TABLE t"
        )
        yield database


POISON = r"""
BEGIN; INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, E'\xff\xfe'); INSERT INTO t VALUES (3, 'c'); COMMIT
"""


async def test_a_change_that_can_not_be_read_stops_the_stream_visibly(
    ascii_database: Database, server: EmbeddedNats, names: Names, tmp_path: Path
) -> None:
    async with Suite(environment(ascii_database, server, names), tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await ascii_database.execute(POISON)
        assert await suite.exit_code("publisher", 20) == 1
        assert "UTF-8" in suite.log("publisher")
    query = "SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = $1"
    assert await ascii_database.fetchval(query, names.slot), "the slot still has it"


@pytest.mark.parametrize("delivery", ["event", "batch", "transaction"])
async def test_with_park_it_is_put_aside_raw_with_the_reason_and_the_stream_goes_on(
    ascii_database: Database, server: EmbeddedNats, names: Names, tmp_path: Path, delivery: str
) -> None:
    settings = environment(
        ascii_database, server, names, HEADRACE_POISON="park", HEADRACE_DELIVERY=delivery
    )
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await ascii_database.execute(POISON)
        rows = await until(lambda: of_operation(server, "INSERT", 2))
        assert suite.running("publisher")
    assert [
        (e.payload["data"]["id"], e.payload["tx"]["seq"], e.payload["tx"]["last"]) for e in rows
    ] == [
        (1, 0, False),
        (3, 2, True),
    ]
    client = await nats.connect(server.url)
    store = await client.jetstream().object_store("headrace_parked")
    (entry,) = await store.list()
    body = msgpack.unpackb((await store.get(entry.name)).data or b"")
    await client.close()
    assert b"\xff\xfe" in body["message"]
    assert "UTF-8" in body["reason"]
    assert body["position"] == [rows[0].payload["tx"]["lsn"], 1]


def older_stream(older: Path, store: Path) -> None:
    """Only the stream of changes is restored."""
    part = next(store.rglob("streams/CDC")).relative_to(store)
    shutil.rmtree(store / part)
    shutil.copytree(older / part, store / part)


def older_store(older: Path, store: Path) -> None:
    """All streams are as they were, the suite's state too."""
    shutil.rmtree(store / "jetstream")
    shutil.copytree(older / "jetstream", store / "jetstream")


def no_stream(_: Path, store: Path) -> None:
    """The stream of changes is gone."""
    shutil.rmtree(next(store.rglob("streams/CDC")))


def half_a_block(_: Path, store: Path) -> None:
    """The file of the stream's messages ends too early; nats-server continues behind the numbers that
    it had.
    """
    (block,) = store.rglob("streams/CDC/msgs/*.blk")
    block.write_bytes(block.read_bytes()[: block.stat().st_size // 2])


DAMAGES = (older_stream, older_store, no_stream, half_a_block)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__ for damage in DAMAGES])
async def test_what_a_damaged_store_lost_and_the_slot_no_longer_has_is_a_gap_with_its_bounds(
    database: Database,
    server: EmbeddedNats,
    names: Names,
    tmp_path: Path,
    damage: Callable[[Path, Path], None],
) -> None:
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t"
    )
    (tmp_path / "suite").mkdir()
    async with Suite(environment(database, server, names), tmp_path / "suite") as suite:
        await suite.logged("publisher", "epoch_joined")

        async def written(first: int, last: int) -> dict[int, int]:
            for n in range(first, last + 1):
                await database.execute(f"INSERT INTO t VALUES ({n})")
            events = await until(lambda: of_operation(server, "INSERT", last))
            await until_confirmed(database, names.slot)
            return {event.payload["data"]["id"]: event.payload["tx"]["lsn"] for event in events}

        await written(1, 5)
        await server.stop()
        shutil.copytree(server.folder, tmp_path / "older")
        await server.start()
        places = await written(6, 10)
        await server.stop()
        damage(tmp_path / "older", server.folder)
        await server.start()
        await until(lambda: of_operation(server, "GAP"), 60)
        await database.execute("INSERT INTO t VALUES (11)")
        events = await until(lambda: has_row(server, 11), 60)
    kept = {
        event.payload["data"]["id"] for event in events if event.payload["operation"] == "INSERT"
    }
    (gap,) = [event.payload for event in events if event.payload["operation"] == "GAP"]
    after, up_to = parse_lsn(gap["after"]), parse_lsn(gap["up_to"])
    lost = set(places) - kept
    assert 10 in lost
    assert all(after <= places[n] < up_to for n in lost)
    # No more than that is said to be missing: the transaction at `after` may be there.
    assert all(not after < places[n] < up_to for n in set(places) & kept)


async def has_row(server: EmbeddedNats, row: int) -> list[Stored]:
    """The stream's events, once this row is among them."""
    events = await stored(server.url)
    there = any(
        e.payload["operation"] == "INSERT" and e.payload["data"]["id"] == row for e in events
    )
    return events if there else []


async def parked(server: EmbeddedNats) -> list[bytes]:
    """Everything that is put aside, as it is kept."""
    client = await nats.connect(server.url)
    try:
        store = await client.jetstream().object_store("headrace_parked")
        try:
            entries = await store.list()
        except NotFoundError:
            return []
        return [(await store.get(entry.name)).data or b"" for entry in entries]
    finally:
        await client.close()


@pytest.mark.parametrize("poison", ["stop", "park"])
async def test_an_excluded_table_is_neither_read_nor_put_aside(
    ascii_database: Database, server: EmbeddedNats, names: Names, tmp_path: Path, poison: str
) -> None:
    await ascii_database.execute(
        "CREATE TABLE secret (id int PRIMARY KEY, v text);"
        "ALTER TABLE secret REPLICA IDENTITY FULL;"
        f"ALTER PUBLICATION {names.publication} ADD TABLE secret"
    )
    settings = environment(
        ascii_database, server, names, HEADRACE_POISON=poison, HEADRACE_EXCLUDE="secret"
    )
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await ascii_database.execute(
            r"INSERT INTO secret VALUES (1, E'top secret \xff'); UPDATE secret SET id = 2; DELETE FROM secret;"
            "INSERT INTO t VALUES (1, 'a')"
        )
        (row,) = await until(lambda: of_operation(server, "INSERT", 1))
        assert (row.payload["data"]["id"], row.payload["tx"]["seq"]) == (1, 3)
        assert suite.running("publisher")
        assert "top secret" not in suite.log("publisher")
    assert await parked(server) == []


async def test_what_is_put_aside_has_nothing_of_an_excluded_column(
    ascii_database: Database, server: EmbeddedNats, names: Names, tmp_path: Path
) -> None:
    await ascii_database.execute(
        "ALTER TABLE t ADD hidden text; ALTER TABLE t REPLICA IDENTITY FULL"
    )
    settings = environment(
        ascii_database, server, names, HEADRACE_POISON="park", HEADRACE_EXCLUDE_COLUMNS="t.hidden"
    )
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await ascii_database.execute(
            r"INSERT INTO t VALUES (1, E'bad \xff', 'top secret'); UPDATE t SET hidden = 'top secret too';"
            "DELETE FROM t; INSERT INTO t VALUES (2, 'fine', E'top secret \xff')"
        )
        rows = await until(lambda: of_operation(server, "INSERT", 1))
        assert [row.payload["data"] for row in rows] == [{"id": 2, "v": "fine"}]
    kept = await parked(server)
    assert len(kept) == 3
    assert all(b"bad \xff" in body and b"top secret" not in body for body in kept)


@pytest.mark.parametrize("transactional", ["true", "false"])
async def test_a_message_whose_prefix_is_not_utf8_stops_nothing(
    ascii_database: Database,
    server: EmbeddedNats,
    names: Names,
    tmp_path: Path,
    transactional: str,
) -> None:
    settings = environment(ascii_database, server, names, HEADRACE_MESSAGE_PREFIXES="audit")
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await ascii_database.execute(
            rf"SELECT pg_logical_emit_message({transactional}, E'\xff', 'x'); INSERT INTO t VALUES (1, 'fine')"
        )
        await until(lambda: of_operation(server, "INSERT", 1))
        assert suite.running("publisher")
