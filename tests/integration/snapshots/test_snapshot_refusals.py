"""JetStream's refusal of an error message ends nothing else: no request waits behind it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from headrace.contract.events import decode, encode
from headrace.contract.subjects_and_ids import meta_subject, snapshot_request_subject
from headrace.contract.values import Encoding
from headrace.settings import load
from headrace.snapshot_responder.results import Results
from headrace.testing.plugin import OwnNats
from headrace.testing.responder import running_responder
from headrace.testing.servers import SessionServers

# Far longer than an answer takes, and a retry's pause.
PATIENCE_S = 60.0
ERRORS = "init.error.*"


async def test_a_request_whose_error_is_refused_is_answered_and_so_is_the_next(
    session_servers: SessionServers, tmp_path: Path
) -> None:
    with running_responder(session_servers, tmp_path) as responder:
        client = await nats.connect(responder.nats.url)
        js = client.jetstream()
        config = (await js.stream_info("INIT")).config
        await js.update_stream(replace(config, max_msg_size=16))
        for table in ("missing", "missing_too"):
            answer = await client.request(snapshot_request_subject(table), b"", timeout=PATIENCE_S)
            assert decode(answer.data)["status"] == "rejected"
        assert responder.log.read_bytes().count(b"event=error_refused") == 2
        await js.update_stream(config)
        told = await js.subscribe(ERRORS, ordered_consumer=True)
        answer = await client.request(snapshot_request_subject("missing"), b"", timeout=PATIENCE_S)
        error = decode((await told.next_msg(PATIENCE_S)).data)
        assert error["snapshot_id"] == decode(answer.data)["snapshot_id"]
        await client.close()


@pytest.fixture
def settings() -> object:
    return load({})


async def failed(client: Client, table: str = "t") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await Results(client, load({})).fail(table, table, "snap-1-a", "an error")


async def test_an_error_for_a_stream_that_is_gone_is_not_waited_for(own_nats: OwnNats) -> None:
    client = await nats.connect((await own_nats()).url)
    await failed(client)
    await client.close()


async def test_an_error_larger_than_a_message_may_be_is_not_waited_for(own_nats: OwnNats) -> None:
    server = await own_nats(config={"max_payload": 1024})
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name="INIT", subjects=["init.>"])
    await failed(client, "t" * 1000)
    await client.close()


async def test_an_error_waits_for_a_jetstream_that_is_away(own_nats: OwnNats) -> None:
    server = await own_nats()
    client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    await client.jetstream().add_stream(name="INIT", subjects=["init.>"])
    await server.stop()
    failing = asyncio.create_task(failed(client))
    done, _ = await asyncio.wait({failing}, timeout=1)
    assert not done
    await server.start()
    await failing
    assert (
        decode((await client.jetstream().get_last_msg("INIT", "init.error.t")).data or b"")["error"]
        == "an error"
    )
    await client.close()


async def test_the_end_of_a_cancelled_snapshot_waits_for_a_jetstream_that_is_away(
    own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await own_nats()
    client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    monkeypatch.setattr(client, "jsm", partial(client.jsm, timeout=0.2))
    js = client.jetstream()
    await js.add_stream(name="INIT", subjects=["init.>"])
    meta = encode({"snapshot_id": "snap-1-a"}, Encoding.MSGPACK)
    await js.publish(meta_subject("t"), meta)
    await server.stop()
    asking = asyncio.create_task(Results(client, load({})).completed_patiently("t", "snap-1-a"))
    done, _ = await asyncio.wait({asking}, timeout=1)
    assert not done
    await server.start()
    async with asyncio.timeout(PATIENCE_S):
        assert await asking
    assert not await Results(client, load({})).completed_patiently("t", "snap-1-b")
    await client.close()
