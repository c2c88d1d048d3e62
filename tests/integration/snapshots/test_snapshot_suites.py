"""Durable requests are answered whenever they were asked, and two suites on one NATS keep to their
own tables.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import nats
import nats.errors
import pytest
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

RESPONDER, SCHEMAS = "snapshot-responder", "schema-publisher"
PATIENCE_S = 60.0


@dataclass
class Two:
    """Two suites, each with its own publication and slot, and a client of the NATS that they share."""

    client: Client
    suites: dict[str, Suite]

    async def ready(self, name: str) -> None:
        await self.suites[name].start(RESPONDER)
        await self.suites[name].logged(RESPONDER, "event=ready", PATIENCE_S)


@pytest_asyncio.fixture
async def two(database: Database, own_nats: OwnNats, tmp_path: Path) -> AsyncIterator[Two]:
    server = await own_nats()
    client = await nats.connect(server.url)
    await ensure(client.jetstream(), StreamSettings())
    async with contextlib.AsyncExitStack() as stack:
        suites = {}
        for name in ("a", "b"):
            await database.execute(
                # Empty, which needs no Spark.
                f"CREATE TABLE of_{name} (id int PRIMARY KEY); CREATE PUBLICATION pub_{name} "
                f"FOR TABLE of_{name}"
            )
            environment = {
                **database.environment(server.url),
                "HEADRACE_PUB": f"pub_{name}",
                "HEADRACE_SLOT": f"suite_{name}",
                "HEADRACE_LEASE_TTL_S": "1",
                "HEADRACE_SNAPSHOT_ACK_WAIT_S": "2",
                "HEADRACE_LOG_LEVEL": "debug",
            }
            folder = tmp_path / name
            folder.mkdir()
            suites[name] = await stack.enter_async_context(Suite(environment, folder, ()))
        yield Two(client, suites)
    await client.close()


async def test_a_request_from_before_the_responder_is_answered_where_its_header_says(
    two: Two,
) -> None:
    inbox = two.client.new_inbox()
    answers = await two.client.subscribe(inbox)
    metas = await two.client.subscribe("init.meta.of_a")
    await two.client.publish(snapshot_request_subject("of_a"), b"", headers={REPLY_HEADER: inbox})
    await two.client.publish(
        snapshot_request_subject("nowhere"), b"", headers={REPLY_HEADER: inbox}
    )
    await two.client.flush()
    await two.ready("a")
    bodies = [decode((await answers.next_msg(timeout=PATIENCE_S)).data) for _ in range(2)]
    assert sorted(body["status"] for body in bodies) == ["accepted", "rejected"]
    (accepted,) = [body for body in bodies if body["status"] == "accepted"]
    meta = decode((await metas.next_msg(timeout=PATIENCE_S)).data)
    assert meta["snapshot_id"] == accepted["snapshot_id"]
    # Asked while it listens, a request has both ways to be answered, and takes one.
    await two.client.publish(
        snapshot_request_subject("nowhere"), b"", reply=inbox, headers={REPLY_HEADER: inbox}
    )
    assert decode((await answers.next_msg(timeout=PATIENCE_S)).data)["status"] == "rejected"
    plain = await two.client.request(snapshot_request_subject("nowhere"), b"", timeout=PATIENCE_S)
    assert decode(plain.data)["status"] == "rejected"
    assert answers.pending_msgs == 0


async def test_two_suites_on_one_nats_each_serve_their_own_tables_and_wait_for_each_other(
    two: Two,
) -> None:
    for name in two.suites:
        await two.suites[name].start(SCHEMAS)
    schemas = f"KV_{StreamSettings().schemas}"
    async with asyncio.timeout(PATIENCE_S):
        while (await two.client.jsm().stream_info(schemas)).state.messages < 2:  # noqa: ASYNC110  # until both exist
            await asyncio.sleep(0.1)
    await two.ready("a")
    results: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def note(message: Msg) -> None:
        results.put_nowait((message.subject, decode(message.data).get("source", "")))

    await two.client.subscribe("init.meta.>", cb=note)
    await two.client.subscribe("init.error.>", cb=note)
    # b is not there: its request waits, and a neither refuses nor serves it.
    with pytest.raises(nats.errors.TimeoutError):
        await two.client.request(snapshot_request_subject("of_b"), b"", timeout=8)
    await two.client.request(snapshot_request_subject("of_a"), b"", timeout=20)
    async with asyncio.timeout(PATIENCE_S):
        assert await results.get() == ("init.meta.of_a", "suite_a")
    await two.ready("b")
    async with asyncio.timeout(PATIENCE_S):
        assert await results.get() == ("init.meta.of_b", "suite_b")
    for round_ in range(3):
        for name in two.suites:
            payload = b'{"filter": [["id", "<", %d]]}' % round_
            reply = await two.client.request(
                snapshot_request_subject(f"of_{name}"), payload, timeout=20
            )
            assert decode(reply.data)["status"] == "accepted"
            async with asyncio.timeout(PATIENCE_S):
                assert await results.get() == (f"init.meta.of_{name}", f"suite_{name}")
    # A request leaves the queue behind its meta message.
    async with asyncio.timeout(PATIENCE_S):
        while (await two.client.jetstream().stream_info("SNAPSHOT_REQUESTS")).state.messages:  # noqa: ASYNC110  # a queue tells nobody
            await asyncio.sleep(0.1)


async def test_who_asks_when_the_meta_message_arrives_gets_a_snapshot_of_their_own(
    two: Two,
) -> None:
    await two.ready("a")
    metas = await two.client.subscribe("init.meta.of_a")
    told: set[str] = set()
    for _ in range(20):
        reply = await two.client.request(snapshot_request_subject("of_a"), b"", timeout=PATIENCE_S)
        answer = decode(reply.data)
        meta = decode((await metas.next_msg(timeout=PATIENCE_S)).data)
        assert meta["snapshot_id"] == answer["snapshot_id"], answer
        told.add(meta["snapshot_id"])
    assert len(told) == 20
