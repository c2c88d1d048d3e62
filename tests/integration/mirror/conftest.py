"""Fixtures of the mirror's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client

from headrace.jetstream.provisioning import ensure
from headrace.settings import StreamSettings
from headrace.testing.plugin import OwnNats
from tests.support.sink_servers import mariadb, mariadb_database

__all__ = ["mariadb", "mariadb_database"]


@pytest.fixture
async def client(own_nats: OwnNats) -> AsyncIterator[Client]:
    """Connected to a server with the suite's streams and buckets."""
    server = await own_nats()
    connection = await nats.connect(server.url)
    await ensure(connection.jetstream(), StreamSettings())
    yield connection
    await connection.close()
