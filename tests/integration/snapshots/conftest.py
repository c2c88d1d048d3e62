"""Fixtures of the snapshots' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client

from headrace.jetstream.provisioning import ensure
from headrace.settings import Settings
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats
from tests.support.snapshot_source import settings_between


@pytest.fixture
async def settings(database: Database, own_nats: OwnNats) -> Settings:
    return settings_between(database, await own_nats())


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    """Connected to the server that the settings name, with its streams and buckets."""
    connected = await nats.connect(str(settings.nats.url))
    await ensure(connected.jetstream(), settings.streams)
    yield connected
    await connected.close()
