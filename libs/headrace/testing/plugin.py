"""The pytest plugin: real servers for tests, shared by a session or owned by one test.

Shared servers belong to no event loop and start at their first use. A test that stops or kills a
server asks for its own (`own_postgres`, `own_nats`). `@pytest.mark.parametrize("pg_version", [16,
18], indirect=True)` runs a test on both versions of PostgreSQL; without it a test runs on 18.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from headrace.testing.names import Names

if TYPE_CHECKING:
    # Imported where they are used: pytest loads this plugin in every run, also in those without a
    # server.
    from headrace.embedded.nats import EmbeddedNats
    from headrace.embedded.postgres import EmbeddedPostgres
    from headrace.embedded.postgres_install import PostgresVersion
    from headrace.embedded.server import EmbeddedServer
    from headrace.testing.database import Database
    from headrace.testing.servers import SessionServers


try:
    from pytest_asyncio import fixture as async_fixture
except ModuleNotFoundError:
    # pytest loads this plugin wherever Headrace is installed, also beside tests that have nothing
    # to do with asyncio.
    async_fixture = pytest.fixture  # type: ignore[assignment]  # takes the same call, with no argument


class OwnPostgres(Protocol):
    """Creates and starts a PostgreSQL for one test; `pg_version` unless another is named."""

    async def __call__(
        self, version: PostgresVersion | None = None, settings: Mapping[str, str] | None = None
    ) -> EmbeddedPostgres:
        """Return the server, running."""
        ...


class OwnNats(Protocol):
    """Makes and starts a nats-server for one test; options as of `EmbeddedNats`."""

    async def __call__(self, **options: Any) -> EmbeddedNats:
        """Return the server, running."""
        ...


@pytest.fixture(scope="session")
def session_servers() -> Iterator[SessionServers]:
    """Every embedded server of the session; all are ended with it."""
    from headrace.testing.servers import SessionServers  # noqa: PLC0415 - loaded only by tests that use it

    servers = SessionServers()
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture
def pg_version(request: pytest.FixtureRequest) -> PostgresVersion:
    """The version of PostgreSQL the test runs on: 18, or what the test's parameter says."""
    version: PostgresVersion = getattr(request, "param", 18)
    return version


@pytest.fixture
def postgres_server(
    session_servers: SessionServers, pg_version: PostgresVersion
) -> EmbeddedPostgres:
    """The session's shared PostgreSQL of the test's version."""
    return session_servers.shared_postgres(pg_version)


@pytest.fixture
def nats_server(session_servers: SessionServers) -> EmbeddedNats:
    """The session's shared nats-server, with JetStream."""
    return session_servers.shared_nats()


@pytest.fixture
def names() -> Names:
    """The test's own names of slots, publications, streams and buckets."""
    return Names.new()


@async_fixture
async def database(postgres_server: EmbeddedPostgres, names: Names) -> AsyncIterator[Database]:
    """An empty database of the test's own on the shared PostgreSQL."""
    from headrace.testing.database import fresh_database  # noqa: PLC0415 - loaded only by tests that use it

    async with fresh_database(postgres_server, names.other("db")) as fresh:
        yield fresh


@pytest.fixture
def own_postgres(
    session_servers: SessionServers, pg_version: PostgresVersion
) -> Iterator[OwnPostgres]:
    """A function that starts a PostgreSQL which only this test uses, and may kill."""
    made: list[EmbeddedServer] = []

    async def make(
        version: PostgresVersion | None = None, settings: Mapping[str, str] | None = None
    ) -> EmbeddedPostgres:
        server = session_servers.new_postgres(version or pg_version, settings)
        made.append(server)
        await server.start()
        return server

    yield make
    for server in made:
        session_servers.discard(server)


@pytest.fixture
def own_nats(session_servers: SessionServers) -> Iterator[OwnNats]:
    """A function that starts a nats-server which only this test uses, and may kill."""
    made: list[EmbeddedServer] = []

    async def make(**options: Any) -> EmbeddedNats:
        server = session_servers.new_nats(**options)
        made.append(server)
        await server.start()
        return server

    yield make
    for server in made:
        session_servers.discard(server)
