"""Compressed events, with dictionaries in a state bucket of another name, are read by all that read
the stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.mirror.snapshots import Snapshots, StoredSnapshot
from headrace.testing.process import command
from headrace.testing.seeded import LINE, World, running, world
from headrace.testing.servers import SessionServers

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUCKET = "another_state"
SETTINGS = {
    "HEADRACE_ZSTD_EVENTS": "true",
    "HEADRACE_STATE_BUCKET": BUCKET,
    "HEADRACE_AUDIT_TABLES": "a,b",
}
# More than a dictionary is trained from.
ROWS = 1500
PATIENCE_S = 120.0
NOTE = "'a note of some length, this one is number '"


@async_fixture(scope="module", loop_scope="module")
async def compressed(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Two tables, whose events are compressed by now."""
    setup = "CREATE TABLE a (id int PRIMARY KEY, note text); CREATE TABLE b (id int PRIMARY KEY, note text)"
    folder = tmp_path_factory.mktemp("compressed")
    async with world(session_servers, folder, setup, (*LINE, "audit-writer"), SETTINGS) as made:
        for table in ("a", "b"):
            await made.source.execute(
                f"INSERT INTO {table} SELECT g, {NOTE} || g FROM generate_series(1, {ROWS}) g"
            )
        async with asyncio.timeout(PATIENCE_S):
            while made.suite.log("publisher").count("event=dictionary_trained") < 2:  # noqa: ASYNC110  # a file
                await asyncio.sleep(0.05)
        yield made


async def test_the_audit_trail_has_every_change(compressed: World) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await compressed.source.fetchval("SELECT count(*) FROM changes") < 2 * ROWS:  # noqa: ASYNC110  # a table
            await asyncio.sleep(0.1)


async def test_tail_shows_every_event(compressed: World) -> None:
    shown = await command(
        compressed.environment,
        "tail",
        "a",
        "--json",
        "--from-start",
        "--limit",
        str(ROWS),
        timeout_s=PATIENCE_S,
    )
    events = [json.loads(line) for line in shown.out.splitlines()]
    assert [event["data"]["id"] for event in events if event["operation"] == "INSERT"][
        -1
    ] >= ROWS - 10, shown.err


async def test_a_mirror_follows_and_is_verified_while_its_table_is_written_to(
    compressed: World, tmp_path: Path
) -> None:
    mirrors = await compressed.mirrors(tmp_path, "a")
    stop = asyncio.Event()

    async def write() -> None:
        number = ROWS
        connection = await compressed.source.connect()
        while not stop.is_set():
            number += 1
            await connection.execute(f"INSERT INTO a VALUES ($1, {NOTE})", number)

    async with running(*mirrors.values()):
        writing = asyncio.create_task(write())
        try:
            for mirror in mirrors.values():
                code, (verdict,) = await mirror.verified("--wait", "60")
                assert (code, verdict["equal"]) == (0, True), verdict
                assert verdict["rows"] > ROWS
        finally:
            stop.set()
            await writing


async def test_a_transaction_that_ends_in_another_tables_compressed_event_is_applied(
    compressed: World, tmp_path: Path
) -> None:
    mirrors = await compressed.mirrors(tmp_path, "a")
    async with running(*mirrors.values()):
        await compressed.source.execute(
            f"BEGIN; INSERT INTO a VALUES (-1, {NOTE}); INSERT INTO b VALUES (-1, {NOTE}); END"
        )
        for mirror in mirrors.values():
            assert (await mirror.verified("--wait", "60"))[0] == 0
        assert await compressed.target.fetchval("SELECT count(*) FROM a WHERE id = -1") == 1


async def test_a_place_is_found_in_a_stream_that_begins_with_a_compressed_event(
    compressed: World,
) -> None:
    client = await nats.connect(compressed.nats_url)
    try:
        js = client.jetstream()
        # The stream's last event may be another: a table's shape, or one from before its
        # dictionary.
        await compressed.source.execute(f"INSERT INTO a VALUES (-2, {NOTE})")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await js.get_last_msg("CDC", "cdc.a.insert")
                if (message.headers or {}).get("Content-Encoding") == "zstd":
                    break
                await asyncio.sleep(0.05)
        first = int(message.seq or 0)
        await js.purge_stream("CDC", seq=first)
        snapshot = StoredSnapshot(
            "snap", "a", 1 << 62, 0, 0, compressed.environment["HEADRACE_SLOT"], note=None
        )
        assert await Snapshots(client, "CDC", "INIT", BUCKET).place(snapshot) == first - 1
    finally:
        await client.close()
