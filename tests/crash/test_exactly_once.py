"""Every committed change is in the stream exactly once, in commit order, even if any process is
killed.

The duplicate window is at its minimum, so that it can't hide a duplicate. PostgreSQL itself,
through a second slot, reports what was committed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.exactly_once import (
    environment,
    everything_delivered,
    mirror_of,
    prepare,
    source_rows,
    write,
)


async def copy(postgres: EmbeddedPostgres, rows: int) -> None:
    connection = await asyncpg.connect(postgres.dsn())
    try:
        await connection.copy_records_to_table(
            "items", records=[(i, f"item {i}") for i in range(rows)]
        )
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delivery", "header"),
    [("event", "Headrace-Msg-Id"), ("batch", "Nats-Msg-Id"), ("transaction", "Nats-Msg-Id")],
)
async def test_nothing_is_lost_or_doubled_when_every_part_is_killed_under_load(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path, delivery: str, header: str
) -> None:
    postgres, nats = await own_postgres(), await own_nats()
    database, oracle = await prepare(postgres)
    chosen = {**environment(postgres, nats, delivery), "HEADRACE_MSG_ID_HEADER": header}
    async with Suite(chosen, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        enough = asyncio.Event()
        writer = asyncio.create_task(write(postgres, 30_000, seed=1, enough=enough))
        for victim in (
            "publisher",
            "wal-reader",
            "nats",
            "publisher",
            "postgres",
            "wal-reader",
            "publisher",
        ):
            await asyncio.sleep(1.0)
            if victim == "nats":
                await nats.kill()
                await asyncio.sleep(0.5)
                await nats.start()
            elif victim == "postgres":
                await postgres.kill()
                await postgres.start()
            else:
                await suite.kill(victim)
                await suite.start(victim)
        enough.set()
        await writer
        await copy(postgres, 5000)
        # Written while everything is down.
        await suite.kill("wal-reader")
        await suite.kill("publisher")
        await nats.kill()
        await write(postgres, 10_000, seed=2, first_id=900_000_000)
        await nats.start()
        await suite.start("wal-reader")
        await suite.start("publisher")
        await database.close()
        found = await everything_delivered(oracle, nats, timeout_s=120, delivery=delivery)
        assert len(found) > 45_000
        assert mirror_of(found) == await source_rows(database)
    await database.close()
