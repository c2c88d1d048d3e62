"""Lines that the tests of one module share, and the responder that all tests of snapshots do."""

from __future__ import annotations

import contextlib
import gc
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings
from pytest_asyncio import fixture as async_fixture

from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.database import Database, fresh_database
from headrace.testing.line import ALL_TABLES, Line, Lines, running_line
from headrace.testing.names import Names
from headrace.testing.plugin import OwnPostgres
from headrace.testing.responder import Consumer, Responder, connected_consumer, running_responder
from headrace.testing.servers import SessionServers
from tests import skips
from tests.support import failed
from tests.support.order import long_files_first
from tests.support.own_source import OwnSource
from tests.support.spark_classes import use_archive


def pytest_configure(config: pytest.Config) -> None:
    skips.pytest_configure(config)
    config.pluginmanager.register(failed)
    use_archive()
    # A script's background job (`./taskw test &`) ignores SIGINT, and so would every program that
    # a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reorder tests for several workers; a single one runs them in the order of their files."""
    if hasattr(config, "workerinput"):
        items[:] = long_files_first(items)


# No verdict depends on how fast the machine is, or how busy.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


@pytest.fixture(autouse=True, scope="session")
def roots_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As root, a cluster in pytest's folders is a link to one elsewhere, which nobody else removes."""
    yield
    for link in tmp_path_factory.getbasetemp().rglob("pgdata"):
        if link.is_symlink():
            shutil.rmtree(link.resolve().parent, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A connection that a module's tests leave open is reported for this module, and not for
    whichever test the garbage collector happens to run in.
    """
    yield
    if not {"unit", "property"} & set(request.path.parts):
        gc.collect()


@async_fixture(scope="module", loop_scope="module")
async def lines(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Lines]:
    """A function that gives the module's line of this PostgreSQL, publication and settings; started
    at first use.
    """
    started: dict[object, Line] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def line(
            version: PostgresVersion = 18, publication: str = ALL_TABLES, **settings: str
        ) -> Line:
            key = (version, publication, *sorted(settings.items()))
            if key not in started:
                postgres = session_servers.shared_postgres(version)
                nats_server = session_servers.new_nats()
                stack.callback(session_servers.discard, nats_server)
                await nats_server.start()
                database = await stack.enter_async_context(
                    fresh_database(postgres, Names.new().other("line"))
                )
                folder = tmp_path_factory.mktemp("line")
                started[key] = await stack.enter_async_context(
                    running_line(database, nats_server, folder, settings, publication)
                )
            return started[key]

        yield line


@async_fixture
async def own_source(own_postgres: OwnPostgres) -> AsyncIterator[OwnSource]:
    """A function that starts a PostgreSQL which only this test uses, and runs SQL in it."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(setup: str, settings: Mapping[str, str] | None = None) -> Database:
            source = Database(await own_postgres(settings=settings), "postgres")
            stack.push_async_callback(source.close)
            await source.execute(setup)
            return source

        yield make


@pytest.fixture
def version() -> PostgresVersion:
    """PostgreSQL's version where a test names none."""
    return 18


@pytest.fixture(scope="session")
def responder(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Responder]:
    """A snapshot-responder that all tests of snapshots share."""
    with running_responder(session_servers, tmp_path_factory.mktemp("responder")) as running:
        yield running


@async_fixture
async def consumer(responder: Responder) -> AsyncIterator[Consumer]:
    """A consumer of the shared responder's snapshots."""
    async with connected_consumer(responder) as connected:
        yield connected
