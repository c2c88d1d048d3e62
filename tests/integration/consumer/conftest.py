"""Fixtures of the consumer's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from headrace.testing.plugin import OwnNats


@pytest.fixture
async def client(own_nats: OwnNats) -> AsyncIterator[Client]:
    """Connected to a server with an empty change stream."""
    server = await own_nats()
    connection = await nats.connect(server.url)
    await connection.jetstream().add_stream(StreamConfig(name="CDC", subjects=["cdc.>"]))
    yield connection
    await connection.close()
