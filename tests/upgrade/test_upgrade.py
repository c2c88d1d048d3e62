"""Services of an earlier revision and of this one work together: frames, streams, buckets, slots.

Each service is replaced while rows are written, by the newer one and by the earlier one again, in
the order that the pages name: a publisher reads the frames of an earlier wal-reader. PostgreSQL's own record of the commits is the oracle.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats as nats_client
import pytest

from headrace.embedded.nats import EmbeddedNats
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

SERVICES = ("wal-reader", "publisher", "schema-publisher")
# The service, whether it is replaced by the newer one, and whether the former one is killed.
REPLACEMENTS = (
    ("schema-publisher", True, False),
    ("publisher", True, True),
    ("wal-reader", True, False),
    ("wal-reader", False, True),
    ("publisher", False, False),
    ("publisher", True, False),
    ("wal-reader", True, True),
)
# Messages that a new process must have published before the next one is replaced.
MESSAGES = 20
WAIT_S = 120.0


async def messages(server: EmbeddedNats) -> int:
    client = await nats_client.connect(server.url)
    try:
        return (await client.jetstream().stream_info("CDC")).state.last_seq
    finally:
        await client.close()


async def works(server: EmbeddedNats, suite: Suite) -> None:
    """Wait until rows that are written from now on reach the stream."""
    before = await messages(server)
    try:
        async with asyncio.timeout(WAIT_S):
            while await messages(server) < before + MESSAGES:  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.2)
    except TimeoutError:
        logs = "\n".join(suite.log(service)[-2000:] for service in SERVICES)
        raise AssertionError(f"nothing arrives after a replacement:\n{logs}") from None


@pytest.mark.parametrize("delivery", ["event", "batch", "transaction"])
async def test_services_of_both_revisions_lose_no_change_and_double_none(
    own_postgres: OwnPostgres,
    own_nats: OwnNats,
    tmp_path: Path,
    earlier: dict[str, str],
    delivery: str,
) -> None:
    postgres, nats = await own_postgres(), await own_nats()
    database, oracle = await prepare(postgres)
    async with Suite(environment(postgres, nats, delivery), tmp_path, ()) as suite:
        for service in SERVICES:
            await suite.start(service, **earlier)
        await suite.logged("publisher", "epoch_joined")
        enough = asyncio.Event()
        writer = asyncio.create_task(write(postgres, 5_000, seed=1, enough=enough))
        await works(nats, suite)
        for service, newer, killed in REPLACEMENTS:
            if killed:
                await suite.kill(service)
            else:
                assert await suite.stop(service) == 0, suite.log(service)[-2000:]
            await suite.start(service, **({} if newer else earlier))
            await works(nats, suite)
        enough.set()
        await writer
        found = await everything_delivered(oracle, nats, timeout_s=WAIT_S, delivery=delivery)
        assert mirror_of(found) == await source_rows(database)
    await database.close()
