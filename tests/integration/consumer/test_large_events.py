"""Rows larger than a message: kept in the object store, referred to, given whole by the consumer
library.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pytest
from nats.js import JetStreamContext
from pytest_asyncio import fixture as async_fixture

from headrace.consumer import Event, MemoryWatermarks, Subscription, follow
from headrace.contract import events
from headrace.embedded.ports import free_port
from headrace.jetstream.object_store import LargeMissingError
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS, Line, Lines, only
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUCKET = "headrace_large"
SMALL, LARGE = 2_000_000, 24_000_000
MODES = {
    "event": {"HEADRACE_DELIVERY": "event"},
    "batch": {"HEADRACE_DELIVERY": "batch"},
    "transaction": {"HEADRACE_DELIVERY": "transaction"},
    "json": {"HEADRACE_ENCODING": "json"},
}


@pytest.fixture(params=list(MODES))
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    return MODES[request.param]


@contextlib.asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def consumed(line: Line, table: str) -> list[Event]:
    """The table's events as the consumer library gives them."""
    client = await nats.connect(line.nats_url)
    found: list[Event] = []
    try:
        async with follow(
            client, Subscription(filters=(f"cdc.{table}.>",)), MemoryWatermarks()
        ) as consumer:
            while (event := await consumer.next(0.5)) is not None:
                found.append(event)
                await consumer.done(event)
    finally:
        await client.close()
    return [event for event in found if event.advances]


async def delivered(line: Line, table: str, changes: int) -> None:
    """Wait until the stream has so many changes of the table."""
    async with asyncio.timeout(60):
        while [event.payload["table"] for event in await rows(line.nats_url)].count(  # noqa: ASYNC110
            table
        ) < changes:
            # A stream gives no event.
            await asyncio.sleep(0.1)


async def references(url: str, table: str) -> list[dict[str, Any]]:
    """The payloads of the messages that refer to an object."""
    return [
        event.payload
        for event in await stored(url)
        if event.payload["table"] == table and "reference" in event.payload
    ]


@async_fixture(loop_scope="module")
async def line(lines: Lines, settings: dict[str, str]) -> Line:
    return await lines(18, **settings)


async def test_a_row_over_max_payload_comes_by_reference_and_whole(
    line: Line,
) -> None:
    table = "rows"
    await line.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int, note text)",
        f"INSERT INTO {table} VALUES (1, 1, 'small');"
        f"INSERT INTO {table} SELECT 2, 2, string_agg(md5(g::text), '') FROM generate_series(1, "
        f"{SMALL // 32}) g;"
        f"INSERT INTO {table} VALUES (3, 3, 'small')",
    )
    whole = await line.database.fetchval(f"SELECT note FROM {table} WHERE id = 2")
    await delivered(line, table, 3)
    (reference,) = await references(line.nats_url, table)
    assert reference["data"] == {"id": 2}
    assert reference["subject"] == f"cdc.{table}.insert"
    assert reference["reference"] == {
        "bucket": BUCKET,
        "name": reference["msg_id"],
        "bytes": reference["reference"]["bytes"],
    }
    found = await consumed(line, table)
    assert [event.data for event in found] == [
        {"id": 1, "n": 1, "note": "small"},
        {"id": 2, "n": 2, "note": whole},
        {"id": 3, "n": 3, "note": "small"},
    ]
    assert [event.position.seq for event in found] == [0, 1, 2]
    async with jetstream(line.nats_url) as js:
        kept = await (await js.object_store(BUCKET)).get(reference["msg_id"])
    data = kept.data or b""
    assert len(data) == reference["reference"]["bytes"]
    event = events.decode(data)
    assert {**event, "data": {"id": 2}} == {k: v for k, v in reference.items() if k != "reference"}


@pytest.mark.slow
async def test_updates_and_deletes_of_a_large_row_with_its_whole_old_row(
    line: Line,
) -> None:
    table = "full_rows"
    await line.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int, note text); ALTER TABLE {table} REPLICA "
        "IDENTITY FULL;"
        f"ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO {table} VALUES (1, 1, repeat('é', {LARGE // 2}))",
        f"UPDATE {table} SET n = 2",
        f"DELETE FROM {table}",
    )
    await delivered(line, table, 3)
    assert [reference["data"] for reference in await references(line.nats_url, table)] == [
        {"id": 1}
    ] * 3
    inserted, updated, deleted = await consumed(line, table)
    note = "é" * (LARGE // 2)
    assert inserted.data == {"id": 1, "n": 1, "note": note}
    assert (updated.old, updated.data["n"]) == (inserted.data, 2)
    # PostgreSQL sends an unchanged value once, as part of the old row.
    assert updated.data.get("note", note) == note
    assert (deleted.data, deleted.old) == (
        {"id": 1, "n": None, "note": None},
        {"id": 1, "n": 2, "note": note},
    )


async def test_a_large_row_without_any_key_has_no_data_beside_its_reference(lines: Lines) -> None:
    line = await lines(18, **MODES["event"])
    await line.take()
    await line.execute(
        "CREATE TABLE keyless (n int, note text); ALTER TABLE keyless REPLICA IDENTITY FULL",
        f"INSERT INTO keyless VALUES (1, repeat('x', {SMALL})); INSERT INTO keyless VALUES (2, 'y')",
    )
    first, second = only(await line.take(), "INSERT")
    assert (first.row, second.row) == ({}, {"n": 2, "note": "y"})
    assert (await consumed(line, "keyless"))[0].data == {"n": 1, "note": "x" * SMALL}


async def test_an_object_is_there_before_its_message_is(lines: Lines) -> None:
    line = await lines(18, **MODES["transaction"])
    await line.execute("CREATE TABLE early (id int PRIMARY KEY, note text)")
    async with jetstream(line.nats_url) as js:
        store = await js.object_store(BUCKET)
        waiting = await js.subscribe("cdc.early.insert", ordered_consumer=True)
        for number in range(5):
            await line.execute(f"INSERT INTO early VALUES ({number}, repeat('x', {SMALL}))")
            message = await waiting.next_msg(timeout=10)
            info = await store.get_info(events.decode(message.data)["reference"]["name"])
            assert (info.size or 0) > SMALL
    await line.take()


async def test_an_object_that_is_gone_is_an_error_and_the_event_is_not_passed_over(
    lines: Lines,
) -> None:
    line = await lines(18, **MODES["event"])
    await line.execute(
        "CREATE TABLE gone (id int PRIMARY KEY, note text)",
        f"INSERT INTO gone VALUES (1, repeat('x', {SMALL}))",
    )
    (only_one,) = only(await line.take(), "INSERT")
    client = await nats.connect(line.nats_url)
    try:
        store = await client.jetstream().object_store(BUCKET)
        kept = (await store.get(only_one.msg_id)).data or b""
        await store.delete(only_one.msg_id)
        async with follow(
            client, Subscription(filters=("cdc.gone.insert",)), MemoryWatermarks()
        ) as consumer:
            for _ in range(2):
                with pytest.raises(LargeMissingError, match="bootstrap"):
                    await consumer.next(1)
            await store.put(only_one.msg_id, kept)
            event = await consumer.next(1)
        assert event is not None
        assert event.data == {"id": 1, "note": "x" * SMALL}
    finally:
        await client.close()


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.parametrize("delivery", ["event", "batch", "transaction"])
async def test_an_object_store_that_refuses_stops_the_line_visibly_until_it_has_room(
    database: Database, own_nats: OwnNats, tmp_path: Path, delivery: str
) -> None:
    server, port = await own_nats(), free_port()
    source = f"slot_{database.name}"
    await database.execute(
        "CREATE TABLE rows (id int PRIMARY KEY, note text); CREATE PUBLICATION headrace FOR ALL "
        "TABLES"
    )
    environment = {
        **SETTINGS,
        **database.environment(server.url),
        "HEADRACE_SLOT": source,
        "HEADRACE_DELIVERY": delivery,
    }
    async with (
        Suite(environment, tmp_path, services=("wal-reader",)) as suite,
        jetstream(server.url) as js,
    ):
        await suite.start("publisher", HEADRACE_HTTP_PORT=str(port))
        await suite.logged("publisher", "epoch_joined")
        config = (await js.stream_info(f"OBJ_{BUCKET}")).config
        config.max_bytes = 300_000
        await js.update_stream(config)
        await database.execute("INSERT INTO rows VALUES (1, 'before')")
        await database.execute(f"INSERT INTO rows VALUES (2, repeat('x', {SMALL}))")
        at = await database.fetchval("SELECT pg_current_wal_lsn()")
        await database.execute("INSERT INTO rows VALUES (3, 'after')")
        await readiness(port, 503, "the object store refused")
        # It stays so, and what was behind the row stays in the slot.
        for _ in range(20):
            await asyncio.sleep(0.1)
            assert (await ready(port))[0] == 503
        confirmed = "SELECT confirmed_flush_lsn < $1 FROM pg_replication_slots WHERE slot_name = $2"
        assert await database.fetchval(confirmed, at, source)
        assert [event.payload["data"] for event in await rows(server.url)] == [
            {"id": 1, "note": "before"}
        ]
        config.max_bytes = -1
        await js.update_stream(config)
        async with asyncio.timeout(20):
            while len(found := await rows(server.url)) < 3:  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.1)
        assert [event.payload["data"]["id"] for event in found] == [1, 2, 3]
        await readiness(port, 200, "ok")
        async with asyncio.timeout(10):
            while await database.fetchval(confirmed, at, source):  # noqa: ASYNC110  # PostgreSQL gives no event
                await asyncio.sleep(0.1)


async def rows(url: str) -> list[Any]:
    return [event for event in await stored(url) if event.payload["operation"] != "SCHEMA"]


async def ready(port: int) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/readyz") as answer,
    ):
        return answer.status, await answer.text()


async def readiness(port: int, status: int, words: str) -> None:
    async with asyncio.timeout(20):
        while (found := await ready(port))[0] != status or words not in found[1]:  # noqa: ASYNC110  # nor does a port
            await asyncio.sleep(0.05)
