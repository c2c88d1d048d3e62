"""Two suites of one database share a stream: each delivers all of its changes, with any duplicate
window.

The oracle is a plain reader of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from headrace.contract.events import decode
from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite

MESSAGES = 20
LARGE_BYTES = 1_500_000
# Delivery, ingest, and the duplicate window: JetStream's own default, and the least that it takes.
WAYS = [
    ("event", "auto", "120"),
    ("event", "chain", "120"),
    ("batch", "auto", "120"),
    ("batch", "chain", "120"),
    ("transaction", "auto", "120"),
    ("event", "auto", "0.1"),
]


@contextlib.asynccontextmanager
async def two_suites(
    database: Database,
    server: EmbeddedNats,
    folder: Path,
    delivery: str,
    ingest: str,
    window_s: str,
) -> AsyncIterator[tuple[str, str]]:
    """Suites of the tables a and b; their sources."""
    await database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)"
    )
    await database.execute("CREATE PUBLICATION p_a FOR TABLE a; CREATE PUBLICATION p_b FOR TABLE b")
    async with contextlib.AsyncExitStack() as stack:
        for name in ("a", "b"):
            environment = {
                **database.environment(server.url),
                "HEADRACE_PUB": f"p_{name}",
                "HEADRACE_SLOT": f"{name}_{database.name}",
                "HEADRACE_MESSAGE_PREFIXES": "audit",
                "HEADRACE_INGEST": ingest,
                "HEADRACE_DELIVERY": delivery,
                "HEADRACE_DEDUPE_WINDOW_S": window_s,
            }
            made = folder / name
            made.mkdir()
            suite = await stack.enter_async_context(Suite(environment, made))
            await suite.logged("publisher", "epoch_joined", timeout_s=60)
        yield f"a_{database.name}", f"b_{database.name}"


async def stored(client: Client) -> list[tuple[str, dict[str, Any]]]:
    """Every event of the stream, with the id of its message."""
    js = client.jetstream()
    state = (await js.stream_info("CDC")).state
    found = []
    for seq in range(1, state.last_seq + 1):
        message = await js.get_msg("CDC", seq=seq)
        payload = decode(message.data or b"")
        msg_id = str((message.headers or {}).get("Nats-Msg-Id"))
        found += [(msg_id, one) for one in (payload if isinstance(payload, list) else [payload])]
    return found


async def complete(
    client: Client, sources: tuple[str, str], rows: int
) -> list[tuple[str, dict[str, Any]]]:
    """The stream's events once each source has delivered so many rows."""
    async with asyncio.timeout(60):
        while True:
            found = await stored(client)
            told = [event["source"] for _, event in found if event["operation"] == "INSERT"]
            if all(told.count(source) == rows for source in sources):
                return found
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(("delivery", "ingest", "window_s"), WAYS)
async def test_every_source_delivers_each_emitted_message(
    database: Database, own_nats: OwnNats, tmp_path: Path, delivery: str, ingest: str, window_s: str
) -> None:
    server = await own_nats()
    async with two_suites(database, server, tmp_path, delivery, ingest, window_s) as sources:
        for n in range(MESSAGES):
            await database.execute(
                f"SELECT pg_logical_emit_message(true, 'audit', '{n}'); INSERT INTO a VALUES ({n});"
                f"INSERT INTO b VALUES ({n})"
            )
        client = await nats.connect(server.url)
        try:
            found = await complete(client, sources, MESSAGES)
        finally:
            await client.close()
    for source in sources:
        emitted = [
            event["content"]
            for _, event in found
            if event["operation"] == "MESSAGE" and event["source"] == source
        ]
        assert emitted == [str(n) for n in range(MESSAGES)]
    ids = [msg_id for msg_id, event in found if event["operation"] == "MESSAGE"]
    assert len(set(ids)) == len(ids) == 2 * MESSAGES


async def test_a_large_message_of_one_source_does_not_replace_anothers(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    server = await own_nats()
    async with two_suites(database, server, tmp_path, "event", "auto", "0.1") as sources:
        await database.execute(
            f"SELECT pg_logical_emit_message(true, 'audit', repeat('x', {LARGE_BYTES}));"
            "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)"
        )
        client = await nats.connect(server.url)
        try:
            found = await complete(client, sources, 1)
            store = await client.jetstream().object_store("headrace_large")
            owners = {}
            for _, event in found:
                if event["operation"] == "MESSAGE":
                    whole = decode((await store.get(event["reference"]["name"])).data or b"")
                    owners[event["source"]] = whole["source"]
        finally:
            await client.close()
    assert owners == {source: source for source in sources}
