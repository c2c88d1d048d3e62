"""Commits of cuts whose outcome is in doubt, and writers that were replaced, in both catalogs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.lake.catalog import Catalog, Cut, Move
from headrace.lake.errors import CutRefusedError, LakeUnreachableError
from headrace.lake.postgres_catalog import PostgresCatalog
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.testing.database import Database
from headrace.testing.proxy import Proxy
from tests.oracle.lake import BucketLake, ForeignLake, ReadableLake
from tests.support.local_lake import LocalLake

OF_THE_WRITER = "application_name = 'headrace lake'"
# The commit takes as long as a lock is held that nobody else needs.
HELD_COMMIT = """
CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER held AFTER INSERT ON headrace_cuts DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION held();
"""
WAITS = f"SELECT count(*) FROM pg_stat_activity WHERE {OF_THE_WRITER} AND wait_event_type = 'Lock'"


class DoubtfulCatalog(SqliteCatalog):
    """A catalog that may fail before or after a commit."""

    fails = ""

    def commit(
        self, cut: Cut, moves: Sequence[Move], first_kept: int, kept_since_us: int = 0
    ) -> None:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise LakeUnreachableError("before the commit")
        super().commit(cut, moves, first_kept, kept_since_us)
        if fails == "after":
            raise LakeUnreachableError("after the commit")


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    """A proxy before the database."""
    async with Proxy(lambda: database.port) as made:
        yield made


@pytest.fixture
def postgres(database: Database) -> Iterator[Callable[..., PostgresCatalog]]:
    """Opens connections to a catalog in the database, by its own port or another."""
    opened = []

    def connect(port: int = database.port) -> PostgresCatalog:
        url = database.dsn.replace(f":{database.port}/", f":{port}/")
        opened.append(PostgresCatalog(url))
        return opened[-1]

    yield connect
    for catalog in opened:
        catalog.close()


@pytest.fixture
async def by_proxy(
    proxy: Proxy, postgres: Callable[..., PostgresCatalog], tmp_path: Path
) -> LocalLake:
    """A lake whose catalog is reached through the proxy."""
    return await asyncio.to_thread(LocalLake, tmp_path, catalog=postgres(proxy.port))


@pytest.fixture
def foreign(database: Database) -> Iterator[BucketLake]:
    """PyIceberg, which reaches the catalog directly."""
    lake = BucketLake(database.dsn, {})
    yield lake
    lake.close()


def ids(lake: ReadableLake) -> list[int]:
    return sorted(row[0] for row in lake.rows("public.numbers", "id"))


async def until(database: Database, query: str) -> None:
    async with asyncio.timeout(60):
        while not await database.fetchval(query):  # noqa: ASYNC110  # the server gives no event
            await asyncio.sleep(0.02)


def test_a_commit_whose_answer_was_lost_is_recognised_in_sqlite(tmp_path: Path) -> None:
    catalog = DoubtfulCatalog(tmp_path / "catalog.db")
    lake = LocalLake(tmp_path, catalog=catalog)
    lake.create()
    lake.insert([1, 2])
    catalog.fails = "after"
    made = lake.cut()
    assert made.number == 2
    lake.delete([1])
    assert lake.cut().number == 3
    assert [cut.number for cut in catalog.cuts("headrace", 10)] == [3, 2, 1]
    assert ids(ForeignLake(tmp_path)) == [2]


def test_a_commit_that_was_not_made_is_made_by_the_next_writer_in_sqlite(tmp_path: Path) -> None:
    catalog = DoubtfulCatalog(tmp_path / "catalog.db")
    lake = LocalLake(tmp_path, catalog=catalog)
    lake.create()
    lake.insert([1, 2])
    catalog.fails = "before"
    with pytest.raises(LakeUnreachableError, match="before the commit"):
        lake.cut()
    assert ids(ForeignLake(tmp_path)) == []
    following = LocalLake(tmp_path)
    following.insert([1, 2])
    assert following.cut().number == 2
    assert ids(ForeignLake(tmp_path)) == [1, 2]


async def test_a_commit_whose_answer_was_lost_is_recognised_in_postgresql(
    database: Database, proxy: Proxy, by_proxy: LocalLake, foreign: BucketLake
) -> None:
    await asyncio.to_thread(by_proxy.create)
    await database.execute(HELD_COMMIT)
    await asyncio.to_thread(by_proxy.insert, [1, 2])
    holder = await database.connect()
    await holder.execute("SELECT pg_advisory_lock(7)")
    cut = asyncio.create_task(asyncio.to_thread(by_proxy.cut))
    await until(database, WAITS)
    proxy.lose(from_server=True)
    await holder.execute("SELECT pg_advisory_unlock(7)")
    await until(database, "SELECT count(*) FROM headrace_cuts WHERE cut = 2")
    proxy.restore()
    proxy.cut()
    assert (await cut).number == 2
    await asyncio.to_thread(by_proxy.delete, [1])
    assert (await asyncio.to_thread(by_proxy.cut)).number == 3
    found = await database.fetch("SELECT cut FROM headrace_cuts ORDER BY cut")
    assert [row[0] for row in found] == [1, 2, 3]
    assert await asyncio.to_thread(ids, foreign) == [2]


async def test_a_connection_that_dies_before_the_commit_leaves_nothing_in_postgresql(
    database: Database,
    proxy: Proxy,
    postgres: Callable[..., PostgresCatalog],
    by_proxy: LocalLake,
    foreign: BucketLake,
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(by_proxy.create)
    await asyncio.to_thread(by_proxy.insert, [1, 2])
    proxy.hold_at = b"COMMIT"
    cut = asyncio.create_task(asyncio.to_thread(by_proxy.cut))
    await asyncio.wait_for(proxy.held.wait(), 30)
    proxy.cut()
    proxy.restore()
    with pytest.raises(LakeUnreachableError):
        await cut
    assert await database.fetchval("SELECT max(cut) FROM headrace_cuts") == 1
    assert await asyncio.to_thread(ids, foreign) == []
    following = LocalLake(tmp_path, catalog=postgres())
    await asyncio.to_thread(following.insert, [1, 2])
    assert (await asyncio.to_thread(following.cut)).number == 2
    assert await asyncio.to_thread(ids, foreign) == [1, 2]


async def test_of_two_commits_at_once_the_later_is_refused_in_postgresql(
    database: Database,
    proxy: Proxy,
    postgres: Callable[..., PostgresCatalog],
    by_proxy: LocalLake,
    foreign: BucketLake,
    tmp_path: Path,
) -> None:
    """The first writer's commit is on its way while the next writer already makes its cut."""
    await asyncio.to_thread(by_proxy.create)
    following = LocalLake(tmp_path, catalog=postgres())
    await asyncio.to_thread(by_proxy.insert, [1, 2])
    await asyncio.to_thread(following.insert, [1, 2])
    proxy.hold_at = b"COMMIT"
    first = asyncio.create_task(asyncio.to_thread(by_proxy.cut))
    await asyncio.wait_for(proxy.held.wait(), 30)
    second = asyncio.create_task(asyncio.to_thread(following.cut))
    await until(database, WAITS)
    proxy.restore()
    assert (await first).number == 2
    with pytest.raises(CutRefusedError):
        await second
    await asyncio.to_thread(following.writer.open)
    assert following.cut_number == 2
    assert await asyncio.to_thread(ids, foreign) == [1, 2]


@pytest.fixture(params=["sqlite", "postgresql"])
def catalogs(
    request: pytest.FixtureRequest, postgres: Callable[..., PostgresCatalog], tmp_path: Path
) -> Callable[[], Catalog]:
    """Opens connections to one catalog."""
    if request.param == "sqlite":
        return lambda: SqliteCatalog(tmp_path / "catalog.db")
    return postgres


def state(catalog: Catalog) -> tuple[Any, ...]:
    return catalog.tables(), catalog.cuts("headrace", 10)


async def test_a_writer_that_was_replaced_writes_nothing(
    catalogs: Callable[[], Catalog], tmp_path: Path
) -> None:
    def writers() -> None:
        replaced = LocalLake(tmp_path, catalog=catalogs())
        replaced.create()
        following = LocalLake(tmp_path, catalog=catalogs())
        following.insert([1])
        following.cut()
        following.insert([2])
        following.cut()
        before = state(catalogs())
        with pytest.raises(CutRefusedError):
            replaced.writer.advance(10_000, 50)
        replaced.insert([3])
        with pytest.raises(CutRefusedError):
            replaced.cut()
        assert state(catalogs()) == before

    await asyncio.to_thread(writers)


async def test_a_cut_never_shows_less_than_it_did(
    catalogs: Callable[[], Catalog], tmp_path: Path
) -> None:
    def writers() -> None:
        replaced = LocalLake(tmp_path, catalog=catalogs())
        replaced.create()
        following = LocalLake(tmp_path, catalog=catalogs())
        following.writer.advance(10_000, 50)
        before = state(catalogs())
        with pytest.raises(CutRefusedError):
            replaced.writer.advance(9_000, 40)
        assert state(catalogs()) == before

    await asyncio.to_thread(writers)
