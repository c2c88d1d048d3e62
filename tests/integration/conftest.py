"""Fixtures of tests with real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats


@pytest.fixture
async def server(own_nats: OwnNats) -> EmbeddedNats:
    """A nats-server which only this test uses, and may kill."""
    return await own_nats()


@pytest.fixture
async def role(database: Database, names: Names) -> AsyncIterator[str]:
    """A role that may log in, and nothing else; it has a password that nobody is asked for."""
    name = names.other("role")
    await database.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    yield name
    await database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
