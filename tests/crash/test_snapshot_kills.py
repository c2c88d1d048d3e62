"""A snapshot during which any process is killed ends complete or with an error, and never with a
meta message for half of it.

tests/integration/snapshots/test_snapshot_faults.py kills the JVM and the responder, with the shared
responder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import nats
import nats.errors
import pytest
import pytest_asyncio
from nats.aio.client import Client

from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import (
    chunk_subject,
    meta_subject,
    snapshot_error_subject,
    snapshot_request_subject,
)
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.responder import child_pids
from headrace.testing.suite import Suite

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SERVICE = "snapshot-responder"
TABLE = "killed"
ROWS = 60_000
PATIENCE_S = 150.0
SETTINGS = {
    "HEADRACE_PUB": "p",
    "HEADRACE_SLOT": "s",
    # Slow enough for a kill to come in the middle.
    "HEADRACE_SNAPSHOT_RATE_BYTES_S_MAX": "8000000",
    "HEADRACE_SNAPSHOT_RANGE_BYTES": str(1024 * 1024),
    "HEADRACE_DEDUPE_WINDOW_S": "0.1",
    "HEADRACE_NATS_RECONNECT_WAIT_S": "0.1",
    "HEADRACE_LEASE_TTL_S": "2",
    "HEADRACE_SNAPSHOT_ACK_WAIT_S": "3",
    "HEADRACE_LOG_LEVEL": "debug",
}


@dataclass
class World:
    """A responder on separate servers, and what a consumer finds in the stream."""

    postgres: EmbeddedPostgres
    server: EmbeddedNats
    suite: Suite
    client: Client

    async def ask(self) -> str:
        """The id of a new snapshot; asks until somebody answers."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(nats.errors.Error):
                    answer = await self.client.request(
                        snapshot_request_subject(TABLE), b"", timeout=5
                    )
                    if (body := decode(answer.data))["status"] != "rejected":
                        return str(body["snapshot_id"])
                await asyncio.sleep(0.2)

    async def last(self, subject: str) -> dict[str, Any] | None:
        try:
            return dict(decode((await self.client.jsm().get_last_msg("INIT", subject)).data or b""))
        except nats.errors.Error:
            return None

    async def in_the_middle(self, snapshot_id: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await self.last(chunk_subject(TABLE, snapshot_id, 3)):  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.05)

    async def outcome(self, snapshot_id: str) -> tuple[str, dict[str, Any]]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for kind, subject in (
                    ("meta", meta_subject(TABLE)),
                    ("error", snapshot_error_subject(TABLE)),
                ):
                    body = await self.last(subject)
                    if body is not None and body["snapshot_id"] == snapshot_id:
                        return kind, body
                await asyncio.sleep(0.2)

    async def check_whole(self, meta: dict[str, Any]) -> None:
        ids: list[int] = []
        for number in range(meta["batch_count"]):
            chunk = await self.last(chunk_subject(TABLE, meta["snapshot_id"], number))
            assert chunk is not None, f"chunk {number} is not there, and the meta message is"
            ids += [row["id"] for row in chunk["data"]]
        assert sorted(ids) == list(range(1, ROWS + 1))

    async def check_that_it_goes_on(self, snapshot_id: str) -> str:
        """The snapshot ended whole or with an error, and the next one is whole; how it ended."""
        kind, body = await self.outcome(snapshot_id)
        if kind == "meta":
            await self.check_whole(body)
            return kind
        assert body["error"]
        kind, after = await self.outcome(await self.ask())
        assert kind == "meta", after
        await self.check_whole(after)
        metas = await self.client.jsm().stream_info(
            "INIT", subjects_filter=f"init.snap.{TABLE}.{snapshot_id}.>"
        )
        assert not metas.state.subjects, "chunks of a snapshot that failed are left"
        return "error"


@pytest_asyncio.fixture
async def world(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> AsyncIterator[World]:
    postgres, server = await own_postgres(), await own_nats()
    connection = await asyncpg.connect(postgres.dsn())
    await connection.execute(
        f"CREATE TABLE {TABLE} (id int, pad text); CREATE PUBLICATION p FOR TABLE {TABLE}"
    )
    await connection.execute(
        f"INSERT INTO {TABLE} SELECT g, repeat('x', 400) FROM generate_series(1, {ROWS}) g"
    )
    await connection.close()
    environment = {
        **SETTINGS,
        **postgres.environment(),
        "PG_DB": "postgres",
        "NATS_URL": server.url,
    }
    async with Suite(environment, tmp_path, [SERVICE]) as suite:
        client = await nats.connect(server.url, reconnect_time_wait=0.1, max_reconnect_attempts=-1)
        yield World(postgres, server, suite, client)
        await client.close()


def workers(pid: int) -> list[int]:
    """Spark's Python workers: the processes below the JVM that have no children."""
    return [
        child
        for child in child_pids(pid)
        if _command(child).count("pyspark") and not child_pids(child)
    ]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


async def test_killed_workers_servers_and_source_leave_no_meta_of_an_incomplete_snapshot(
    world: World,
) -> None:
    """One after the other on one Spark, which starts slowly."""
    snapshot_id = await world.ask()
    await world.in_the_middle(snapshot_id)
    killed = workers(world.suite.pid(SERVICE))
    assert killed, "no worker was found to kill"
    for worker in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    kind, body = await world.outcome(snapshot_id)
    assert kind == "meta", (
        f"a task whose worker died is run again, and does not fail the snapshot: {body}"
    )
    await world.check_whole(body)

    snapshot_id = await world.ask()
    await world.in_the_middle(snapshot_id)
    await world.server.kill()
    await world.server.start()
    await world.check_that_it_goes_on(snapshot_id)

    snapshot_id = await world.ask()
    await world.in_the_middle(snapshot_id)
    await world.postgres.kill()
    await world.postgres.start()
    # The snapshot was in its memory: no other attempt could have the same moment.
    assert await world.check_that_it_goes_on(snapshot_id) == "error"
