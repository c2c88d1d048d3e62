"""Lists of few messages in a large stream have the newest ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js import JetStreamContext

from headrace.console.newest import Newest
from headrace.console.reading import EventReader
from headrace.embedded.nats import EmbeddedNats
from headrace.settings import Settings
from headrace.testing.names import Names

pytestmark = pytest.mark.asyncio

KEPT = 10


@pytest_asyncio.fixture
async def client(nats_server: EmbeddedNats) -> AsyncIterator[Client]:
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()


async def published(js: JetStreamContext, subject: str, numbers: range) -> None:
    for number in numbers:
        await js.publish(f"{subject}.rare", str(number).encode())
        await js.publish(f"{subject}.usual", b"")


async def test_the_newest_messages_of_a_subject_are_listed_once_also_when_many_ask(
    client: Client, names: Names
) -> None:
    js = client.jetstream()
    stream = names.other("newest")
    await js.add_stream(name=stream, subjects=[f"{stream}.>"])
    reader = EventReader(Settings())
    reader.connect(client)
    newest = Newest(reader, stream, f"{stream}.rare", KEPT)

    async def listed() -> list[int]:
        return [int(message.data or b"") for message in await newest.read()]

    try:
        assert await listed() == []
        await published(js, stream, range(25))
        answers = await asyncio.gather(*(listed() for _ in range(5)))
        assert answers == [list(range(15, 25))] * 5
        await published(js, stream, range(25, 28))
        assert await listed() == list(range(18, 28))
        # Messages that retention has removed are gone here, too.
        await js.purge_stream(stream, keep=4)
        assert await listed() == [26, 27]
        # A stream that was created again.
        await js.delete_stream(stream)
        await js.add_stream(name=stream, subjects=[f"{stream}.>"])
        await published(js, stream, range(100, 103))
        assert await listed() == [100, 101, 102]
    finally:
        await js.delete_stream(stream)
