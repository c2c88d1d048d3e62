"""A slot that PostgreSQL invalidated is reported clearly and, with the operator's permission,
created again with an exact gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest
from nats.errors import Error as NatsError

from headrace.lsn import format_lsn
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite
from tests.support.own_source import KEYS_ONLY, OwnSource
from tests.support.slot import confirmed_lsn

pytestmark = pytest.mark.slow
WAIT_S = 60.0
SMALL = {"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "48MB"}


async def found(url: str, last: int) -> list[dict[str, Any]]:
    """Rows and gaps, in stream order, once the row `last` exists."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(NatsError, TimeoutError):
                events = [
                    e.payload
                    for e in await stored(url)
                    if e.payload["operation"] in ("INSERT", "GAP")
                ]
                if any(event.get("data", {}).get("id") == last for event in events):
                    return events
            await asyncio.sleep(0.2)


async def give_up(database: Database) -> None:
    """Write WAL until PostgreSQL no longer keeps what the slot needs."""
    query = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'headrace'"
    async with asyncio.timeout(WAIT_S):
        while await database.fetchval(query) != "lost":
            await database.execute(
                "SELECT pg_logical_emit_message(false, 'nobody', repeat('x', 1000000))"
            )
            await database.execute("SELECT pg_switch_wal()")
            await database.execute("CHECKPOINT")


async def test_a_slot_that_was_given_up_is_told_with_the_remedy_and_made_anew_only_if_allowed(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database, server = await own_source(KEYS_ONLY, SMALL), await own_nats()
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    async with Suite(environment, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        await database.execute("INSERT INTO t VALUES (1)")
        await found(server.url, 1)
        await suite.stop("wal-reader")
        confirmed = await confirmed_lsn(database)
        await database.execute("INSERT INTO t VALUES (2)")
        await give_up(database)
        await suite.start("wal-reader")
        assert await suite.exit_code("wal-reader", WAIT_S) == 1
        assert "SlotLostError" in suite.log("wal-reader")
        assert "HEADRACE_RECREATE_SLOT" in suite.log("wal-reader")
        # Killed between the two halves of it, it continues where it was.
        allowed = {"HEADRACE_RECREATE_SLOT": "true"}
        await suite.start(
            "wal-reader", HEADRACE_FAILPOINT="wal_reader.after_slot_dropped", **allowed
        )
        assert await suite.exit_code("wal-reader", WAIT_S) == -signal.SIGKILL
        epochs = suite.log("publisher").count("epoch_joined")
        await suite.start("wal-reader", **allowed)
        async with asyncio.timeout(WAIT_S):
            while suite.log("publisher").count("epoch_joined") == epochs:  # noqa: ASYNC110  # a file gives no event
                await asyncio.sleep(0.1)
        await database.execute("INSERT INTO t VALUES (3)")
        events = await found(server.url, 3)
    assert [event.get("data", {}).get("id", "GAP") for event in events] == [1, "GAP", 3]
    assert events[1]["reason"] == "slot_moved"
    # Everything up to there was delivered; not a byte more is called missing.
    assert events[1]["after"] == format_lsn(confirmed)
    assert events[1]["lsn"] < events[2]["tx"]["lsn"]
