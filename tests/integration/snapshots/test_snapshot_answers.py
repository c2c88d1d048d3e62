"""Every request gets a final answer: late ones, ones during a failure, and ones to a responder that
died.

The tables are empty, so Spark is not needed; an older transaction delays snapshots for as long as a
test needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.contract.events import REPLY_HEADER, decode
from headrace.contract.subjects_and_ids import snapshot_request_subject
from headrace.jetstream.provisioning import ensure
from headrace.settings import StreamSettings
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite
from tests.support.hastened import hastened

RESPONDER = "snapshot-responder"
PATIENCE_S = 60.0
PAIRING_PATIENCE_S = 1.5
HASTENED = hastened(
    {"headrace.snapshot_responder.answering.PAIRING_PATIENCE_S": PAIRING_PATIENCE_S}
)


@dataclass
class World:
    """A responder, and the ends of snapshots that it reported."""

    client: Client
    database: Database
    suite: Suite
    starts: int = 0
    ends: dict[str, str] = field(default_factory=dict)
    end: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, **settings: str) -> None:
        self.starts += 1
        await self.suite.start(RESPONDER, **settings)
        async with asyncio.timeout(PATIENCE_S):
            while self.suite.log(RESPONDER).count("event=ready") < self.starts:  # noqa: ASYNC110  # a file gives no event
                await asyncio.sleep(0.05)

    async def ask(self, payload: bytes = b"") -> dict[str, Any]:
        answer = await self.client.request(
            snapshot_request_subject("asked"), payload, timeout=PATIENCE_S
        )
        return dict(decode(answer.data))

    async def note(self, message: Msg) -> None:
        self.ends[str(decode(message.data)["snapshot_id"])] = message.subject.split(".")[1]
        self.end.set()

    async def ended(self, snapshot_id: str) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while snapshot_id not in self.ends:
                self.end.clear()
                await self.end.wait()
        return self.ends[snapshot_id]

    @contextlib.asynccontextmanager
    async def older_transaction(self) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self.database.dsn)
        try:
            await connection.execute("BEGIN; SELECT pg_current_xact_id()")
            yield
        finally:
            await connection.close()


@pytest_asyncio.fixture
async def world(database: Database, own_nats: OwnNats, tmp_path: Path) -> AsyncIterator[World]:
    server = await own_nats()
    client = await nats.connect(server.url)
    await ensure(client.jetstream(), StreamSettings())
    await database.execute(
        "CREATE TABLE asked (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE asked"
    )
    environment = {
        **database.environment(server.url),
        "HEADRACE_PUB": "p",
        "HEADRACE_SLOT": "s",
        "HEADRACE_LEASE_TTL_S": "1",
        "HEADRACE_LOG_LEVEL": "debug",
    }
    async with Suite(environment, tmp_path, (), program=HASTENED) as suite:
        made = World(client, database, suite)
        for subject in ("init.meta.>", "init.error.>"):
            await client.subscribe(subject, cb=made.note)
        yield made
    await client.close()


async def test_a_request_that_waits_its_turn_is_not_told_that_it_was_lost(world: World) -> None:
    await world.start()
    connection = await asyncpg.connect(world.database.dsn)
    await connection.execute("BEGIN; LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE")
    asked = [
        asyncio.create_task(world.ask(b'{"filter": [["id", ">", %d]]}' % number))
        for number in range(2)
    ]
    # A PostgreSQL that answers late: neither request is judged meanwhile.
    await asyncio.sleep(PAIRING_PATIENCE_S * 2.5)
    await connection.close()
    for task in asked:
        answer = await task
        assert answer["status"] == "accepted", answer
        assert await world.ended(answer["snapshot_id"]) == "meta"


async def test_who_asks_when_the_error_arrives_gets_a_snapshot_of_their_own(world: World) -> None:
    await world.start(HEADRACE_SNAPSHOT_SLOT_WAIT_S="0.1")
    told: set[str] = set()
    async with world.older_transaction():
        for _ in range(20):
            answer = await world.ask()
            assert await world.ended(answer["snapshot_id"]) == "error"
            told.add(answer["snapshot_id"])
    assert len(told) == 20


async def test_what_a_dead_responder_began_ends_under_its_own_id_whoever_asks_before(
    world: World,
) -> None:
    await world.start(HEADRACE_SNAPSHOT_ACK_WAIT_S="8")
    async with world.older_transaction():
        begun = await world.ask()
        await world.suite.kill(RESPONDER)
        await world.start(HEADRACE_SNAPSHOT_ACK_WAIT_S="8")
        # Before the request that is there already is handed out again.
        newer = await world.ask()
        assert newer["snapshot_id"] != begun["snapshot_id"]
        assert await world.ended(begun["snapshot_id"]) == "error"
    assert await world.ended(newer["snapshot_id"]) == "meta"


async def test_a_reply_subject_that_leads_into_another_account_is_answered_and_the_inbox_there_is_not(
    world: World,
) -> None:
    await world.start()
    across = await world.client.subscribe(world.client.new_inbox())
    inbox = await world.client.subscribe(world.client.new_inbox())
    headers = {REPLY_HEADER: inbox.subject}
    for _ in range(2):
        await world.client.publish(
            snapshot_request_subject("asked"), b"", reply=across.subject, headers=headers
        )
        answer = decode((await across.next_msg(timeout=PATIENCE_S)).data)
        assert answer["status"] in {"accepted", "joined"}
        assert await world.ended(answer["snapshot_id"]) == "meta"
    assert (across.pending_msgs, inbox.pending_msgs) == (0, 0)
