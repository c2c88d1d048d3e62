"""A paused suite publishes nothing, loses nothing, and continues where it stopped, even after
restarts.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import nats
import pytest
from nats.js.errors import NotFoundError

from headrace.bus import signed
from headrace.embedded.nats import EmbeddedNats
from headrace.settings import load
from headrace.suite import pause
from headrace.suite.pause import Pause
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.names import Names
from headrace.testing.process import command, service
from headrace.testing.suite import Suite


def environment(database: Database, nats_url: str, slot: str, **more: str) -> dict[str, str]:
    return {
        **SETTINGS,
        **database.environment(nats_url),
        "HEADRACE_SLOT": slot,
        "HEADRACE_IN_FLIGHT_BYTES_MAX": "65536",
        "HEADRACE_ENCODING": "json",
        **more,
    }


async def ids(server: EmbeddedNats) -> list[int]:
    """The rows in the stream, in its order."""
    client = await nats.connect(server.url)
    try:
        js = client.jetstream()
        last = (await js.stream_info("CDC")).state.last_seq
        found = []
        for seq in range(1, last + 1):
            try:
                message = await js.get_msg("CDC", seq)
            except NotFoundError:
                continue
            if message.subject == "cdc.paused.insert":
                found.append(json.loads(message.data or b"")["data"]["id"])
        return found
    finally:
        await client.close()


async def until(server: EmbeddedNats, rows: int) -> None:
    client = await nats.connect(server.url)
    try:
        async with asyncio.timeout(60):
            while True:
                state = (
                    await client.jetstream().stream_info("CDC", subjects_filter="cdc.paused.insert")
                ).state
                if sum((state.subjects or {}).values()) >= rows:
                    return
                await asyncio.sleep(0.1)
    finally:
        await client.close()


async def insert(database: Database, first: int, last: int) -> None:
    for start in range(first, last + 1, 100):
        await database.execute(
            f"INSERT INTO paused SELECT n, repeat('x', 1000) FROM generate_series({start}, "
            f"{start + 99}) n"
        )


@pytest.fixture
async def settings(database: Database, server: EmbeddedNats, names: Names) -> dict[str, str]:
    await database.execute(
        "CREATE TABLE paused (id int PRIMARY KEY, t text); CREATE PUBLICATION headrace FOR ALL "
        "TABLES"
    )
    return environment(database, server.url, names.slot)


async def test_a_pause_outlives_every_process_and_loses_nothing(
    database: Database, server: EmbeddedNats, settings: dict[str, str], tmp_path: Path
) -> None:
    """Also with more written meanwhile than the bus has credit for: the slot holds it."""
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await insert(database, 1, 200)
        await until(server, 200)
        done = await command(settings, "pause", "--reason", "a test")
        assert done.code == 0, done
        assert "is paused" in done.out
        assert "a test" in suite.log("publisher")
        await insert(database, 201, 700)
        await suite.kill("publisher")
        await suite.start("publisher")
        await suite.kill("wal-reader")
        await suite.start("wal-reader")
        joined = suite.log("publisher").count("lease_acquired")
        async with asyncio.timeout(60):
            while suite.log("publisher").count("event=paused") < 2:  # noqa: ASYNC110  # a file gives no event
                await asyncio.sleep(0.1)
        assert joined >= 1
        await insert(database, 701, 1000)
        assert await ids(server) == list(range(1, 201))
        done = await command(settings, "resume")
        assert done.code == 0, done
        await until(server, 1000)
        assert await ids(server) == list(range(1, 1001))


async def test_pausing_again_and_again_under_load_leaves_each_change_once_and_in_order(
    database: Database, server: EmbeddedNats, settings: dict[str, str], tmp_path: Path
) -> None:
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        client = await nats.connect(server.url)
        state = await client.jetstream().key_value("headrace_state")
        writing = asyncio.create_task(insert(database, 1, 2000), name="writing")
        for _ in range(4):
            for paused in (True, False):
                await pause.write(client, state, load(settings), Pause(paused=paused, by="a test"))
                await asyncio.sleep(0.3)
        await writing
        await until(server, 2000)
        await client.close()
    assert await ids(server) == list(range(1, 2001))


async def test_with_a_token_only_who_has_it_may_pause_or_stop(
    database: Database, server: EmbeddedNats, names: Names
) -> None:
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    settings = environment(database, server.url, names.slot, HEADRACE_SHUTDOWN_TOKEN="s3cret")
    without = {key: value for key, value in settings.items() if key != "HEADRACE_SHUTDOWN_TOKEN"}
    async with service(settings, "publisher") as publisher:
        await publisher.logs("lease_acquired")
        client = await nats.connect(server.url)
        state = await client.jetstream().key_value("headrace_state")
        await pause.write(client, state, load(without), Pause(paused=True, by="someone"))
        await publisher.logs("pause_refused")
        for garbage in (b"\xc1", b"\x01", b"\x80"):
            await state.put(f"pause.{names.slot}", garbage)
            told = len(publisher.events("pause_refused"))
            await client.publish(f"headrace.{names.slot}.pause", b"")
            await publisher.logs("pause_refused", count=told + 1)
        assert "paused" not in (await publisher.readiness(503))["reasons"]
        for forged in (b"", b"{}", signed.command(None, "stop", names.slot, time.time())):
            await client.publish(f"headrace.{names.slot}.stop", forged)
        await publisher.logs("stop_refused", count=3)
        await pause.write(
            client, state, load(settings), Pause(paused=True, by="someone", reason="upgrade")
        )
        await publisher.logs("paused")
        assert (
            "(upgrade); run headrace resume to continue"
            in (await publisher.readiness(503))["reasons"]["paused"]
        )
        stale = signed.command("s3cret", "stop", names.slot, time.time() - 3600)
        await client.publish(f"headrace.{names.slot}.stop", stale)
        await publisher.logs("stop_refused", count=4)
        await client.publish(
            f"headrace.{names.slot}.stop", signed.command("s3cret", "stop", names.slot, time.time())
        )
        assert await publisher.ended() == 0
        await client.close()
