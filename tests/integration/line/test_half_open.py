"""Half-open connections are noticed by their silence, within seconds, and lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.database import Database
from headrace.testing.oracle import Change, Oracle, stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.proxy import Proxy
from headrace.testing.suite import Suite
from tests.support.hastened import hastened

pytestmark = pytest.mark.slow

SETTINGS = {
    "HEADRACE_DEDUPE_WINDOW_S": "0.1",
    "HEADRACE_NATS_RECONNECT_WAIT_S": "0.1",
    "HEADRACE_NATS_PING_INTERVAL_S": "1",
    "HEADRACE_PROGRESS_INTERVAL_S": "0.1",
    "HEADRACE_STATUS_INTERVAL_S": "0.2",
    "HEADRACE_ACK_TIMEOUT_S": "3",
    "HEADRACE_LEASE_TTL_S": "1",
    "HEADRACE_PG_CONNECT_TIMEOUT_S": "2",
}
# Longer than any of these tests: PostgreSQL itself finds out nothing.
NEVER = {"wal_sender_timeout": "1h", "tcp_keepalives_idle": "3600"}
NOTICED_S = 60.0
# The silences that these tests wait out.
STALE_S = 3.0
HASTENED = hastened(
    {
        "headrace.wal_reader.silence.ASK_AFTER_S": 0.5,
        "headrace.wal_reader.silence.ANSWER_S": 1.5,
        "headrace.wal_reader.silence.PROBE_INTERVAL_S": 2,
        "headrace.wal_reader.silence.STALE_S": STALE_S,
        # The publisher's connection to the catalog is half open too.
        "headrace.postgres.relation_facts.VISIBLE_TIMEOUT_S": 2,
    }
)


@dataclass(eq=False)
class Rig:
    """A line whose two services reach both servers through proxies."""

    database: Database
    oracle: Oracle
    nats: EmbeddedNats
    to_postgres: Proxy
    to_nats: Proxy
    environment: dict[str, str]
    committed: int = 0

    async def insert(self, count: int) -> None:
        await self.database.execute(
            "INSERT INTO orders SELECT g FROM generate_series($1::bigint, $2::bigint) g",
            self.committed,
            self.committed + count - 1,
        )
        self.committed += count

    async def delivered(self, timeout_s: float = NOTICED_S) -> None:
        """Wait until the stream has what was committed: exactly that, in that order."""
        committed = await self.oracle.changes()
        found: list[Change] = []
        async with asyncio.timeout(timeout_s):
            while len(found) < self.committed:
                found = [
                    e.change
                    for e in await stored(self.nats.url)
                    if e.payload["operation"] == "INSERT"
                ]
                await asyncio.sleep(0.2)
        assert found[-len(committed) :] == committed
        assert len(found) == self.committed

    async def slot_pid(self) -> int | None:
        pid = await self.database.fetchval(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'headrace'"
        )
        return None if pid is None else int(pid)

    async def delivers_over_another(self, link: Proxy, suite: Suite) -> None:
        """The connections of a link end without a word, and are replaced."""
        link.half_open(server_knows=True)
        await self.insert(100)
        await self.delivered()
        assert suite.running("wal-reader")


@pytest.fixture
async def rig(own_postgres: OwnPostgres, own_nats: OwnNats) -> AsyncIterator[Rig]:
    postgres: EmbeddedPostgres = await own_postgres(settings=NEVER)
    server = await own_nats()
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    oracle = await Oracle.begun(database)
    async with contextlib.AsyncExitStack() as stack:
        to_postgres = await stack.enter_async_context(Proxy(lambda: postgres.port))
        to_nats = await stack.enter_async_context(Proxy(lambda: server.port))
        environment = {
            **SETTINGS,
            **postgres.environment(),
            "PG_DB": "postgres",
            "PGPORT": str(to_postgres.port),
            "NATS_URL": f"nats://127.0.0.1:{to_nats.port}",
        }
        yield Rig(database, oracle, server, to_postgres, to_nats, environment)
    await database.close()


@pytest.fixture
async def suite(rig: Rig, tmp_path: Path) -> AsyncIterator[Suite]:
    """A suite that has delivered rows."""
    async with Suite(rig.environment, tmp_path, program=HASTENED) as running:
        await running.logged("publisher", "epoch_joined")
        await rig.insert(100)
        await rig.delivered()
        yield running


async def test_a_wal_reader_notices_that_its_walsender_is_gone_without_a_word(
    rig: Rig, suite: Suite
) -> None:
    await rig.delivers_over_another(rig.to_postgres, suite)
    assert "the replication connection is dead" in suite.log("wal-reader")


async def test_a_slot_held_by_a_walsender_without_a_reader_is_taken_from_it(
    rig: Rig, suite: Suite
) -> None:
    stale = await rig.slot_pid()
    # PostgreSQL's side stays, and holds the slot for as long as wal_sender_timeout says: an
    # hour.
    rig.to_postgres.half_open(server_knows=False)
    await rig.insert(100)
    await rig.delivered()
    assert stale is not None
    assert await rig.slot_pid() not in (None, stale)
    assert "stale_walsender_ended" in suite.log("wal-reader")


async def test_a_standby_leaves_the_slot_to_a_reader_that_works(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "standby").mkdir()
    standby = Suite(
        rig.environment, tmp_path / "standby", services=("wal-reader",), program=HASTENED
    )
    async with (
        Suite(rig.environment, tmp_path, program=HASTENED) as suite,
        contextlib.AsyncExitStack() as stack,
    ):
        await suite.logged("publisher", "epoch_joined")
        await stack.enter_async_context(standby)
        await standby.logged("wal-reader", "standing by")
        # Idle all the while: longer than it takes to call a walsender stale.
        pid = await rig.slot_pid()
        await asyncio.sleep(STALE_S + 1.5)
        assert await rig.slot_pid() == pid
        assert "stale_walsender_ended" not in suite.log("wal-reader") + standby.log("wal-reader")
        await rig.insert(10)
        await rig.delivered()


async def test_a_half_open_nats_connection_is_noticed_and_replaced(rig: Rig, suite: Suite) -> None:
    await rig.delivers_over_another(rig.to_nats, suite)
