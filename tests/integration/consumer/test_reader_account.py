"""Readers in a separate account, as in `deploy/nats/accounts.conf`: they read everything, and can
change nothing.

In the suite's account, a reader's permissions restrict only its own messages, and not the subject
to which the server sends a reply: a reply subject may be any. This is the purpose of the account.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.contract.events import decode, encode
from headrace.contract.values import Encoding
from headrace.embedded.nats import EmbeddedNats
from headrace.jetstream.provisioning import ensure
from headrace.settings import load
from headrace.snapshot_responder.request_pairing import may_be_told
from headrace.testing.plugin import OwnNats

DEPLOY = Path(__file__).parents[3] / "deploy/nats"
WAIT_S = 30.0
# The server reserves the size that a stream may reach.
BYTES_MAX = 64 << 20
SUITES = (
    "CDC",
    "INIT",
    "KV_schemas",
    "KV_headrace_state",
    "OBJ_headrace_large",
    "OBJ_headrace_parked",
)
ASTRAY = (
    *(
        "headrace.s.control",
        "headrace.s.frames",
        "headrace.s.stop",
        "$KV.headrace_state.progress.s",
    ),
    *(
        "$KV.schemas.orders",
        "cdc.orders.insert",
        "init.meta.orders",
        "$O.headrace_large.M.x",
        "$JS.API.STREAM.PURGE.CDC",
    ),
)


def configuration() -> str:
    """The shipped accounts and permissions; listener, store and passwords are the test's own."""
    accounts = (DEPLOY / "accounts.conf").read_text()
    shipped = (DEPLOY / "permissions.conf").read_text() + accounts[accounts.index("accounts {") :]
    return re.sub(r"\$NATS_\w+_PASSWORD", "password", shipped)


@dataclass
class Server:
    server: EmbeddedNats
    admin: Client
    publisher: Client
    consumer: Client

    async def state(self) -> dict[str, int]:
        """How far each stream of the suite is."""
        js = self.admin.jetstream()
        return {name: int((await js.stream_info(name)).state.last_seq or 0) for name in SUITES}

    async def publish(self, number: int) -> None:
        payload = {"subject": "cdc.orders.insert", "operation": "INSERT", "data": {"id": number}}
        await self.publisher.jetstream().publish(
            "cdc.orders.insert", encode(payload, Encoding.MSGPACK)
        )


async def _unheard(_: Exception) -> None:
    """Refusals are what is wanted; what was let through is seen by its effect."""


@pytest.fixture
async def server(own_nats: OwnNats) -> AsyncIterator[Server]:
    running = await own_nats(config=configuration())
    async with contextlib.AsyncExitStack() as stack:

        async def connect(user: str, inbox: str = "_INBOX") -> Client:
            url = f"nats://{user}:password@127.0.0.1:{running.port}"
            client = await nats.connect(url, inbox_prefix=inbox, error_cb=_unheard)
            stack.push_async_callback(client.close)
            return client

        admin = await connect("admin")
        await ensure(admin.jetstream(), load({"HEADRACE_CDC_BYTES_MAX": str(BYTES_MAX)}).streams)
        copier = await connect("readers-admin")
        for path in sorted((DEPLOY / "copies").glob("*.json")):
            copied = json.loads(path.read_text())
            copied |= {"max_bytes": BYTES_MAX} if "max_bytes" in copied else {}
            wanted = json.dumps(copied).encode()
            answer = await copier.request(f"$JS.API.STREAM.CREATE.{path.stem}", wanted, timeout=10)
            assert "error" not in json.loads(answer.data), answer.data
        yield Server(
            running, admin, await connect("publisher"), await connect("consumer", "_INBOX_consumer")
        )


async def test_a_reader_in_an_account_of_its_own_follows_fetches_and_asks(server: Server) -> None:
    await server.publish(1)
    js = server.consumer.jetstream()
    ordered = await js.subscribe("cdc.>", stream="CDC", ordered_consumer=True)
    assert decode((await ordered.next_msg(timeout=WAIT_S)).data)["data"] == {"id": 1}
    durable = await js.pull_subscribe("cdc.>", durable="billing", stream="CDC")
    await server.publish(2)
    ids: list[int] = []
    while len(ids) < 2:
        for message in await durable.fetch(2, timeout=WAIT_S):
            ids.append(decode(message.data)["data"]["id"])
            await message.ack_sync()
    assert ids == [1, 2]
    await server.admin.publish("$KV.schemas.orders", b"its schema")
    async with asyncio.timeout(WAIT_S):
        while await _schema(server.consumer) != b"its schema":  # noqa: ASYNC110  # a copy comes when it comes
            await asyncio.sleep(0.1)


async def _schema(client: Client) -> bytes | None:
    with contextlib.suppress(NatsError):
        return (await (await client.jetstream().key_value("schemas")).get("orders")).value
    return None


async def test_a_readers_request_reaches_the_responder_and_its_answer_the_reader(
    server: Server,
) -> None:
    responder = await nats.connect(
        f"nats://snapshot-responder:password@127.0.0.1:{server.server.port}"
    )
    replies: list[str] = []

    async def answer(message: Msg) -> None:
        replies.append(message.reply)
        await responder.publish(message.reply, b"accepted")

    await responder.subscribe("snapshot.request.>", cb=answer)
    await responder.flush()
    assert (
        await server.consumer.request("snapshot.request.orders", b"", timeout=WAIT_S)
    ).data == b"accepted"
    # The responder looks at a reply subject before it answers: one that came over must do.
    assert all(map(may_be_told, replies))
    assert (await server.admin.jetstream().stream_info("SNAPSHOT_REQUESTS")).state.messages == 1
    await responder.close()


async def test_no_answer_of_the_server_goes_astray_into_the_suite(server: Server) -> None:
    await server.publish(1)
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    for subject in ("headrace.s.control", "headrace.s.frames", "headrace.s.stop"):
        await server.admin.subscribe(subject, cb=hear)
    await server.admin.flush()
    before = await server.state()
    consumer = server.consumer
    for astray in ASTRAY:
        await consumer.publish("$JS.API.STREAM.INFO.CDC", b"", reply=astray)
        await consumer.publish("$JS.API.DIRECT.GET.CDC", b'{"seq":1}', reply=astray)
        for name in ("CDC", "INIT"):
            config = {"deliver_policy": "all", "ack_policy": "none", "deliver_subject": astray}
            wanted = json.dumps({"stream_name": name, "config": config}).encode()
            await consumer.publish(f"$JS.API.CONSUMER.CREATE.{name}", wanted, reply=astray)
            await consumer.publish(f"suite.api.CONSUMER.CREATE.{name}", wanted, reply=astray)
    # Answered after all of these.
    await consumer.request("$JS.API.INFO", b"", timeout=WAIT_S)
    await asyncio.sleep(1)
    assert await server.state() == before
    assert heard == []
