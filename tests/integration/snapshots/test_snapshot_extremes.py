"""Rows of 100 MB go by reference and tables of 1,600 columns go as any other, in both encodings."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from nats.aio.client import Client

from headrace.consumer.reference import whole
from headrace.contract.events import decode
from headrace.contract.values import Encoding
from headrace.embedded.postgres import SUPERUSER
from headrace.embedded.process import tied
from headrace.settings import Settings
from headrace.snapshot_responder import task
from headrace.snapshot_responder.chunk_permits import ChunkPermits
from headrace.snapshot_responder.drivers import Drivers
from headrace.snapshot_responder.snapshot import Snapshot
from headrace.spark.plan import SnapshotPlan
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import held_snapshot
from headrace.testing.database import Database

LARGE_BYTES = 100_000_000
COLUMNS = 1600
# A row as COPY sends it, received whole, parsed, encoded, put into a message: the number of its
# copies that a worker holds.
ROWS_IN_MEMORY_MAX = {Encoding.MSGPACK: 8, Encoding.JSON: 12}


Run = Callable[[SnapshotPlan, int, Settings], Awaitable[object]]
run_here: Run = task._run

# The work of a Spark worker, and the most memory that it took.
WORKER = """
import resource, sys
from headrace.snapshot_responder.task import run_task
run_task(sys.stdin.buffer.read(), int(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class Workers:
    """Runs each task in a separate process, and keeps the most memory that one took, in bytes."""

    def __init__(self) -> None:
        self.bytes_max = 0

    async def run(self, plan: SnapshotPlan, number: int, settings: Settings) -> None:
        environment = {
            **os.environ,
            "PG_HOST": str(settings.postgres.host),
            "PG_PORT": str(settings.postgres.port),
            "PG_DB": str(settings.postgres.database),
            "POSTGRES_BRIDGE_USER": SUPERUSER,
            "NATS_URL": str(settings.nats.url),
        }
        process = await asyncio.create_subprocess_exec(
            *tied([sys.executable, "-c", WORKER, str(number)], signal.SIGKILL),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        output, _ = await process.communicate(plan.pack())
        assert process.returncode == 0
        self.bytes_max = max(self.bytes_max, int(output) * 1024)


async def copied(
    settings: Settings, client: Client, table: str, run: Run = run_here
) -> list[dict[str, object]]:
    """The chunks of a snapshot whose tasks ran without Spark."""
    request = SnapshotRequest(table, "public", table)
    async with held_snapshot(settings, request) as held:
        snapshot = Snapshot(settings, client, Drivers.of(settings), request, "snap-1")
        plan = snapshot._plan(held)
        office = ChunkPermits(client, plan.permits, snapshot.numbers)
        await office.open()
        for number in range(len(plan.tasks)):
            await run(plan, number, settings)
        office.close()
    await snapshot._verify()
    subjects = [f"init.snap.{table}.snap-1.{number}" for number in range(len(snapshot.numbers))]
    found = [await client.jsm().get_last_msg("INIT", subject, direct=True) for subject in subjects]
    return [decode(message.data or b"") for message in found]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", list(Encoding))
async def test_a_row_of_100_mb_goes_by_reference_between_its_small_neighbours(
    settings: Settings, client: Client, database: Database, encoding: Encoding
) -> None:
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, body text); CREATE PUBLICATION p FOR TABLE t"
    )
    await database.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    await database.execute(
        f"INSERT INTO t VALUES (1, 'a'), (2, repeat('x', {LARGE_BYTES})), (3, 'b')"
    )
    workers = Workers()
    chosen = replace(settings, format=replace(settings.format, encoding=encoding))
    chunks = await copied(chosen, client, "t", workers.run)
    assert workers.bytes_max < ROWS_IN_MEMORY_MAX[encoding] * LARGE_BYTES
    assert [chunk["data"] for chunk in chunks] in (
        [[{"id": 1, "body": "a"}], [{"id": 2}], [{"id": 3, "body": "b"}]],
        [[{"id": 2}], [{"id": 1, "body": "a"}], [{"id": 3, "body": "b"}]],
    )
    (large,) = [chunk for chunk in chunks if "reference" in chunk]
    (row,) = (await whole(client.jetstream(), large))["data"]
    assert row["id"] == 2
    assert len(row["body"]) == LARGE_BYTES


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_a_table_of_1600_columns_is_copied_whole(
    settings: Settings, client: Client, database: Database, encoding: Encoding
) -> None:
    names = [f"c{place}" for place in range(COLUMNS)]
    await database.execute(f"CREATE TABLE t ({', '.join(f'{name} int' for name in names)})")
    await database.execute("CREATE PUBLICATION p FOR TABLE t")
    # NULLs take no room, without which 1,600 columns would not fit a page.
    await database.execute(
        "INSERT INTO t (c0, c7, c1599) SELECT g, -g, g * 2 FROM generate_series(1, 300) g"
    )
    chosen = replace(settings, format=replace(settings.format, encoding=encoding))
    rows = [row for chunk in await copied(chosen, client, "t") for row in chunk["data"]]  # type: ignore[attr-defined]  # a chunk's rows
    empty = dict.fromkeys(names)
    assert sorted(rows, key=lambda row: row["c0"]) == [
        {**empty, "c0": number, "c7": -number, "c1599": number * 2} for number in range(1, 301)
    ]
