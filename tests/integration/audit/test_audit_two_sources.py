"""Two suites of one database, and one audit table: each trail is whole, with the contexts that were
given.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite

SOURCES = {"a": "p1", "b": "p2"}
ROWS = 40


@pytest.mark.slow
async def test_two_suites_write_one_trail_also_of_transactions_that_touch_tables_of_both(
    own_nats: OwnNats, database: Database, tmp_path: Path
) -> None:
    """JetStream's duplicate window is the default: what each suite emits of one message is no
    duplicate.
    """
    server = await own_nats()
    await database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)"
    )
    await database.execute("CREATE PUBLICATION p1 FOR TABLE a; CREATE PUBLICATION p2 FOR TABLE b")
    async with contextlib.AsyncExitStack() as stack:
        for name, publication in SOURCES.items():
            environment = {
                **database.environment(server.url),
                "HEADRACE_PUB": publication,
                "HEADRACE_SLOT": f"{name}_{database.name}",
                "HEADRACE_MESSAGE_PREFIXES": "_bemi",
                # Most transactions come in parts, and their context late.
                "HEADRACE_AUDIT_WHOLE_ROWS_MAX": "3",
            }
            folder = tmp_path / name
            folder.mkdir()
            suite = await stack.enter_async_context(Suite(environment, folder))
            await suite.logged("publisher", "epoch_joined", timeout_s=60)
            await suite.start("audit-writer")
        for n in range(0, ROWS, 5):
            rows = ", ".join(f"({one})" for one in range(n, n + 5))
            told = f"SELECT pg_logical_emit_message(true, '_bemi', '{{\"n\": {n}}}')"
            await database.execute(
                f"INSERT INTO a VALUES {rows}; INSERT INTO b VALUES {rows}; {told}"
            )
        await until_written(database, 2 * ROWS)
    for table in SOURCES:
        trail = await database.fetch(
            "SELECT primary_key::int, (context ->> 'n')::int, source FROM changes"
            f" WHERE \"table\" = '{table}' ORDER BY position, ordinal"
        )
        source = f"{table}_{database.name}"
        assert [tuple(row) for row in trail] == [
            (one, one - one % 5, source) for one in range(ROWS)
        ]


async def until_written(database: Database, count: int) -> None:
    """Until the trail has so many rows, each with its context."""
    async with asyncio.timeout(90):
        while True:
            with contextlib.suppress(Exception):
                if (
                    await database.fetchval("SELECT count(*) FROM changes WHERE context <> '{}'")
                    >= count
                ):
                    return
            await asyncio.sleep(0.1)
