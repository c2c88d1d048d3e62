"""Two schema-publishers and two telemetries: one is killed during its work, and the other misses
nothing.

Both of a pair work at all times, and neither may undo or repeat what the other writes.
test_high_availability.py and test_snapshot_kills.py test how the standbys of wal-reader, publisher
and snapshot-responder take over.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from headrace.contract.events import decode
from headrace.testing.line import SETTINGS
from headrace.testing.plugin import OwnNats
from headrace.testing.process import ServiceProcess, service
from headrace.testing.suite import Suite
from tests.support.own_source import KEYS_OF_ALL, KEYS_ONLY, OwnSource

pytestmark = pytest.mark.slow

WAIT_S = 60.0
COLUMNS = 6


async def test_a_killed_schema_publisher_loses_no_version_and_none_is_written_twice(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database, server = await own_source(KEYS_OF_ALL), await own_nats()
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    environment["HEADRACE_CATALOG_INTERVAL_S"] = "0.1"
    client = await nats.connect(server.url)
    (tmp_path / "b").mkdir()
    one, other = ("schema-publisher",), Suite(environment, tmp_path / "b", ["schema-publisher"])
    async with Suite(environment, tmp_path, one) as suite, other:
        await _schema(client, columns=1)
        pair = [suite, other]
        for number in range(1, COLUMNS + 1):
            await database.execute(f"ALTER TABLE t ADD c{number} int")
            victim = pair[number % 2]
            if number % 3 == 0:
                began = time.monotonic()
                await victim.kill("schema-publisher")
                await database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
                await _schema(client, columns=number + 1)
                await _schema(client, columns=1, table=f"t{number}")
                print(
                    f"schema-publisher: the other continues within {time.monotonic() - began:.1f} s"
                )
                await victim.start("schema-publisher")
            else:
                await _schema(client, columns=number + 1)
        history = await (await client.jetstream().key_value("schemas")).history("t")
        versions = [decode(entry.value or b"")["version"] for entry in history]
        assert versions == list(range(1, COLUMNS + 2))
    await client.close()


async def _schema(client: Client, *, columns: int, table: str = "t") -> dict[str, Any]:
    """The table's schema in the bucket, once it has so many columns."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                entry = await (await client.jetstream().key_value("schemas")).get(table)
                found = dict(decode(entry.value or b""))
                if len(found["columns"]) == columns:
                    return found
            except APIError:
                pass
            await asyncio.sleep(0.05)


async def test_a_killed_telemetry_leaves_another_that_shows_the_whole_suite(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database, server = await own_source(KEYS_ONLY), await own_nats()
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    environment |= {"HEADRACE_STATS_INTERVAL_S": "0.1", "HEADRACE_SLOT_INTERVAL_S": "0.1"}
    async with Suite(environment, tmp_path) as suite, service(environment, "telemetry") as other:
        await suite.logged("publisher", "epoch_joined")
        async with service(environment, "telemetry") as one:
            await database.execute("INSERT INTO t SELECT generate_series(1, 500)")
            assert await _shows(one, 501) == await _shows(other, 501)
            await one.kill()
        await database.execute("INSERT INTO t SELECT generate_series(501, 1000)")
        began = time.monotonic()
        before = await _shows(other, 1001)
        print(f"telemetry: the other shows it all after {time.monotonic() - began:.1f} s")
        async with service(environment, "telemetry") as heir:
            assert await _shows(heir, 1001) == before


async def _shows(telemetry: ServiceProcess, published: int) -> dict[str, str]:
    """The state of each service, once the publisher's count is this: the rows, and their table's
    schema.
    """
    status: dict[str, Any] = {}
    try:
        async with asyncio.timeout(WAIT_S):
            while status.get("cdc_events_published") != published or not status["is_connected"]:
                status = json.loads((await telemetry.get("/status"))[1])
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{published} events were published: {status}") from None
    return {name: str(found["state"]) for name, found in status["services"].items()}
