"""What is said when JetStream gives no answer: rights that are missing, or a server that went away."""

from __future__ import annotations

import asyncio
import os
import signal

import nats
import pytest
from nats.js import JetStreamContext

from headrace.jetstream.errors import ConnectionLostError, MissingObjectError
from headrace.jetstream.provisioning import ensure
from headrace.settings import StreamSettings
from headrace.testing.plugin import OwnNats

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
    with pytest.raises(MissingObjectError, match="probably may not use"):
        await ensure(JetStreamContext(client, timeout=0.5), StreamSettings())
    await client.close()
