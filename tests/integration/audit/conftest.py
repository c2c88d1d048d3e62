"""Fixtures of several tests of the audit trail."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pytest_asyncio import fixture as async_fixture

from headrace.testing.database import Database
from tests.support.audit_destinations import Destinations


@async_fixture
async def destinations(database: Database) -> AsyncIterator[Destinations]:
    made = Destinations(database)
    yield made
    made.close()
