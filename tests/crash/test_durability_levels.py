"""The losses that each level of durability survives when nats-server returns with an older store,
as after a machine's crash.

The store is restored to an earlier copy, which is how an acknowledged and unsynced tail looks to
the suite.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import Error as NatsError

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.own_source import KEYS_ONLY, OwnSource

pytestmark = pytest.mark.slow
WAIT_S = 60.0


@dataclass(eq=False)
class Rig:
    database: Database
    nats: EmbeddedNats
    suite: Suite
    environment: dict[str, str]

    async def insert(self, first: int, count: int) -> None:
        await self.database.execute(
            "INSERT INTO t SELECT g FROM generate_series($1::int, $2::int) g",
            first,
            first + count - 1,
        )

    async def start(self, **settings: str) -> None:
        for service in ("publisher", "wal-reader"):
            await self.suite.start(service, **settings)
        await self.suite.logged("publisher", "epoch_joined", timeout_s=WAIT_S)

    async def found(self, last: int) -> list[Any]:
        """Operations and ids, in stream order, once the row `last` exists."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    events = [
                        e.payload
                        for e in await stored(self.nats.url)
                        if e.payload["operation"] != "SCHEMA"
                    ]
                except (NatsError, TimeoutError):
                    events = []
                rows = [
                    event["data"]["id"] if event["operation"] == "INSERT" else "GAP"
                    for event in events
                ]
                if last in rows:
                    return rows
                await asyncio.sleep(0.2)

    async def confirmed(self, *, up_to_now: bool) -> bool:
        """Whether the slot is confirmed up to the end of the log within some seconds."""
        end = await self.database.fetchval("SELECT pg_current_wal_lsn()")
        query = "SELECT confirmed_flush_lsn >= $1 FROM pg_replication_slots WHERE slot_name = 'headrace'"
        for _ in range(int(WAIT_S / 0.1) if up_to_now else 30):
            if await self.database.fetchval(query, end):
                return True
            await asyncio.sleep(0.1)
        return False

    async def crash_back_to(self, copy: Path) -> None:
        """As a machine that lost what its disk didn't have yet."""
        store = self.nats.folder / "jetstream"
        await self.nats.kill()
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        await self.nats.start()

    async def copied(self, to: Path) -> Path:
        """What the disk has now."""
        await self.nats.stop()
        shutil.copytree(self.nats.folder / "jetstream", to)
        await self.nats.start()
        return to


@pytest.fixture
async def rig(own_source: OwnSource, own_nats: OwnNats, tmp_path: Path) -> AsyncIterator[Rig]:
    database, server = await own_source(KEYS_ONLY), await own_nats()
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    environment["HEADRACE_ACK_TIMEOUT_S"] = "3"
    async with Suite(environment, tmp_path, services=()) as suite:
        yield Rig(database, server, suite, environment)


async def test_confirmed_on_acknowledgement_an_unsynced_tail_is_told_as_a_gap_and_never_silently_lost(
    rig: Rig, tmp_path: Path
) -> None:
    await rig.start()
    await rig.insert(1, 5)
    await rig.found(5)
    copy = await rig.copied(tmp_path / "copy")
    await rig.insert(6, 5)
    await rig.found(10)
    assert await rig.confirmed(up_to_now=True)
    await rig.crash_back_to(copy)
    await rig.insert(11, 5)
    assert await rig.found(15) == [1, 2, 3, 4, 5, "GAP", 11, 12, 13, 14, 15]


async def test_a_store_that_is_lost_completely_is_a_gap_from_the_beginning(rig: Rig) -> None:
    await rig.start()
    await rig.insert(1, 5)
    await rig.found(5)
    assert await rig.confirmed(up_to_now=True)
    await rig.suite.kill("publisher")
    await rig.nats.kill()
    shutil.rmtree(rig.nats.folder / "jetstream")
    await rig.nats.start()
    await rig.suite.start("publisher")
    await rig.insert(6, 5)
    assert await rig.found(10) == ["GAP", 6, 7, 8, 9, 10]
    gap = next(e.payload for e in await stored(rig.nats.url) if e.payload["operation"] == "GAP")
    assert (gap["after"], gap["reason"]) == ("0/0", "store_lost")


async def test_confirmed_after_the_sync_interval_an_unsynced_tail_comes_again_from_the_slot(
    rig: Rig, tmp_path: Path
) -> None:
    """Also when the publisher is another one by then."""
    sync = {"HEADRACE_DURABILITY": "sync", "HEADRACE_JETSTREAM_SYNC_S": "600"}
    await rig.start(**sync)
    await rig.insert(1, 5)
    await rig.found(5)
    copy = await rig.copied(tmp_path / "copy")
    await rig.insert(6, 5)
    await rig.found(10)
    assert not await rig.confirmed(up_to_now=False)
    await rig.suite.kill("publisher")
    await rig.crash_back_to(copy)
    await rig.suite.start("publisher", **sync)
    await rig.insert(11, 5)
    assert await rig.found(15) == list(range(1, 16))


async def test_when_the_interval_is_over_the_slot_is_confirmed_too(rig: Rig) -> None:
    await rig.start(HEADRACE_DURABILITY="sync", HEADRACE_JETSTREAM_SYNC_S="4")
    await rig.insert(1, 5)
    await rig.found(5)
    assert await rig.confirmed(up_to_now=True)


async def test_a_server_that_syncs_always_keeps_what_it_acknowledged_through_a_kill(
    own_nats: OwnNats, own_postgres: OwnPostgres, tmp_path: Path
) -> None:
    """With its default too: a killed process loses nothing that a machine's crash would."""
    for sync in ("always", "2m"):
        server = await own_nats(config={"jetstream": {"sync_interval": sync}})
        client = await nats.connect(server.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        acknowledged = [(await js.publish("s", b"x")).seq for _ in range(200)]
        await client.close()
        await server.kill()
        await server.start()
        client = await nats.connect(server.url)
        assert (await client.jetstream().stream_info("S")).state.last_seq == acknowledged[-1]
        await client.close()
