"""The errors when JetStream does not answer: missing permissions, or a server that disappeared."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import nats
import pytest
from nats.js import JetStreamContext

from headrace.embedded.ports import free_port
from headrace.jetstream.errors import ConnectionLostError, MissingObjectError
from headrace.jetstream.provisioning import ensure
from headrace.settings import StreamSettings
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite

_GIB = 1024**3

NO_RIGHTS = {
    "authorization": {
        "users": [
            {
                "user": "u",
                "password": "p",
                "permissions": {"publish": ["other.>"], "subscribe": ["_INBOX.>"]},
            }
        ]
    }
}


async def test_a_server_that_is_killed_while_it_is_asked_is_not_taken_for_missing_rights(
    own_nats: OwnNats,
) -> None:
    server = await own_nats()
    client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    # It takes the question, and answers nothing any more.
    os.kill(server.pid, signal.SIGSTOP)
    asking = asyncio.create_task(ensure(JetStreamContext(client, timeout=2), StreamSettings()))
    await server.kill()
    with pytest.raises(ConnectionLostError, match="NATS was lost") as lost:
        await asking
    assert lost.value.retry
    await server.start()
    await ensure(client.jetstream(), StreamSettings())
    await client.close()


async def test_rights_that_are_missing_are_still_named(own_nats: OwnNats) -> None:
    server = await own_nats(config=NO_RIGHTS)
    client = await nats.connect(server.url, user="u", password="p")
    with pytest.raises(
        MissingObjectError, match=r'permissions violation.*"\$js.api.stream.info'
    ) as no:
        await ensure(JetStreamContext(client, timeout=0.5), StreamSettings())
    assert "Grant it" in no.value.remedy
    await client.close()


async def test_an_account_with_too_few_streams_is_named_as_the_cause(own_nats: OwnNats) -> None:
    account = {
        "users": [{"user": "u", "password": "p"}],
        "jetstream": {"max_file": 100 * _GIB, "max_mem": _GIB, "max_streams": 2},
    }
    server = await own_nats(config={"accounts": {"few": account}})
    client = await nats.connect(server.url, user="u", password="p")
    with pytest.raises(MissingObjectError, match="maximum number of streams") as refused:
        await ensure(client.jetstream(), StreamSettings())
    assert "max_streams" in refused.value.remedy
    await client.close()


async def test_a_server_that_is_slow_is_not_taken_for_missing_rights(own_nats: OwnNats) -> None:
    server = await own_nats()
    client = await nats.connect(server.url)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(MissingObjectError, match="did not answer about stream CDC in time"):
        await ensure(JetStreamContext(client, timeout=0.5), StreamSettings())
    os.kill(server.pid, signal.SIGCONT)
    await client.close()


async def test_a_publisher_waits_for_room_for_its_stream(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    server = await own_nats(config={"jetstream": {"max_file_store": 10 * _GIB}})
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="OTHER", subjects=["other"], max_bytes=4 * _GIB)
    await database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    await database.execute("CREATE PUBLICATION headrace FOR TABLE t")
    port = str(free_port())
    settings = {
        **SETTINGS,
        **database.environment(server.url),
        "HEADRACE_SLOT": f"slot_{database.name}",
    }
    async with Suite(settings, tmp_path, services=("wal-reader",)) as suite:
        await suite.start("publisher", HEADRACE_HTTP_PORT=port)
        await suite.logged("publisher", "not_ready")
        code, reasons = await _readiness(port)
        assert (code, sorted(reasons)) == (503, ["start", "stream"])
        assert "no room for the 8.0 GiB" in reasons["stream"]
        assert "HEADRACE_CDC_BYTES_MAX" in reasons["stream"]
        await client.jetstream().delete_stream("OTHER")
        await suite.logged("publisher", "epoch_joined", timeout_s=60)
        await database.execute("INSERT INTO t VALUES (1)")
        async with asyncio.timeout(30):
            while "cdc.t.insert" not in [one.subject for one in await stored(server.url)]:  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.05)
        assert "stream" not in (await _readiness(port))[1]
    await client.close()


async def _readiness(port: str) -> tuple[int, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/readyz") as answer,
    ):
        return answer.status, (await answer.json())["reasons"]
