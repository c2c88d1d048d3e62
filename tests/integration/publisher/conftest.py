"""Fixtures of the publisher's tests."""

from __future__ import annotations

from pytest_asyncio import fixture as async_fixture

from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.line import Line, Lines


@async_fixture(loop_scope="module")
async def line(lines: Lines, version: PostgresVersion) -> Line:
    """A line that publishes all tables; nothing of an earlier test is left in it."""
    found = await lines(version, HEADRACE_MESSAGE_PREFIXES="orders,odd prefix.ü")
    await found.take()
    return found
