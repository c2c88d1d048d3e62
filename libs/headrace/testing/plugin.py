"""The pytest plugin: fixtures with real servers, shared by a session or owned by one test.

A shared server starts at its first use, and does not belong to an event loop. A test that stops or
kills a server requests its own (`own_postgres`, `own_nats`). Tests run on PostgreSQL 18 by default;
to run one on two versions:

    @pytest.mark.parametrize("pg_version", [16, 18], indirect=True)
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from headrace.testing.names import Names

__all__ = [
    "database",
    "names",
    "nats_server",
    "own_nats",
    "own_postgres",
    "pg_version",
    "postgres_server",
]

if TYPE_CHECKING:
    # Imported only by the fixtures: pytest loads this plugin in every run.
    from headrace.embedded.nats import EmbeddedNats
    from headrace.embedded.postgres import EmbeddedPostgres
    from headrace.embedded.postgres_install import PostgresVersion
    from headrace.testing.database import Database
    from headrace.testing.servers import SessionServers


try:
    from pytest_asyncio import fixture as async_fixture
except ModuleNotFoundError:
    # pytest loads this plugin wherever Headrace is installed, even if no test uses asyncio.
    async_fixture = pytest.fixture  # type: ignore[assignment]  # takes the same call, with no argument


class OwnPostgres(Protocol):
    """Starts a PostgreSQL server for one test; the type of the fixture `own_postgres`."""

    async def __call__(
        self, version: PostgresVersion | None = None, settings: Mapping[str, str] | None = None
    ) -> EmbeddedPostgres:
        """Start a server and return it; by default of the version `pg_version`."""
        ...


class OwnNats(Protocol):
    """Starts a nats-server for one test; the type of the fixture `own_nats`."""

    async def __call__(self, **options: Any) -> EmbeddedNats:
        """Start a server with options of `EmbeddedNats`, and return it."""
        ...


@pytest.fixture(scope="session")
def session_servers() -> Iterator[SessionServers]:
    """All embedded servers of the session; they stop when it ends."""
    from headrace.testing.servers import SessionServers  # noqa: PLC0415 - loaded only by tests that use it

    servers = SessionServers()
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture
def pg_version(request: pytest.FixtureRequest) -> PostgresVersion:
    """The version of PostgreSQL on which the test runs: 18, or the test's parameter."""
    version: PostgresVersion = getattr(request, "param", 18)
    return version


@pytest.fixture
def postgres_server(
    session_servers: SessionServers, pg_version: PostgresVersion
) -> EmbeddedPostgres:
    """The session's shared PostgreSQL server of the test's version."""
    return session_servers.shared_postgres(pg_version)


@pytest.fixture
def nats_server(session_servers: SessionServers) -> EmbeddedNats:
    """The session's shared nats-server, with JetStream."""
    return session_servers.shared_nats()


@pytest.fixture
def names() -> Names:
    """Names of slots, publications, streams and buckets that no other test uses."""
    return Names.new()


@async_fixture
async def database(postgres_server: EmbeddedPostgres, names: Names) -> AsyncIterator[Database]:
    """An empty database on the shared PostgreSQL server, which is dropped after the test."""
    from headrace.testing.database import fresh_database  # noqa: PLC0415 - loaded only by tests that use it

    async with fresh_database(postgres_server, names.other("db")) as fresh:
        yield fresh


@pytest.fixture
def own_postgres(
    session_servers: SessionServers, pg_version: PostgresVersion
) -> Iterator[OwnPostgres]:
    """A function that starts a PostgreSQL server for this test only, which may stop or kill it."""
    with contextlib.ExitStack() as stack:

        async def make(
            version: PostgresVersion | None = None, settings: Mapping[str, str] | None = None
        ) -> EmbeddedPostgres:
            server = session_servers.new_postgres(version or pg_version, settings)
            stack.callback(session_servers.discard, server)
            await server.start()
            return server

        yield make


@pytest.fixture
def own_nats(session_servers: SessionServers) -> Iterator[OwnNats]:
    """A function that starts a nats-server for this test only, which may stop or kill it."""
    with contextlib.ExitStack() as stack:

        async def make(**options: Any) -> EmbeddedNats:
            server = session_servers.new_nats(**options)
            stack.callback(session_servers.discard, server)
            await server.start()
            return server

        yield make
