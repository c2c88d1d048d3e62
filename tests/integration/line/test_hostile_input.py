"""Names and values made to break out of where they belong, messages made to break what reads them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path

import aiohttp
import nats
import pytest

from headrace.bus import subjects
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import table_token
from headrace.embedded.nats import EmbeddedNats
from headrace.errors import DecodeError
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.names import Names
from headrace.testing.oracle import Stored, stored
from headrace.testing.process import service
from headrace.testing.suite import Suite

NAMES = (
    "t; DROP TABLE victim; --",
    'quo"te',
    "quo'te",
    "back\\slash",
    "wild.*.>",
    "a\nNats-Msg-Id: forged",
    "a\r\nPUB cdc.forged 1\r\nx",
    "$JS.API.STREAM.DELETE.CDC",
    "ünïcödé ☃",
    "x" * 63,
)
VALUES = (
    "'; DROP TABLE victim; --",
    "\r\nPUB cdc.forged 1\r\nx\r\n",
    "\x01\x02\x7f",
    '"\\\n\t',
    "☃" * 1000,
    "9" * 10_000,
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture
def environment(database: Database, server: EmbeddedNats, names: Names) -> dict[str, str]:
    return {
        **SETTINGS,
        **database.environment(server.url),
        **names.settings,
        "HEADRACE_CATALOG_INTERVAL_S": "0.5",
    }


@pytest.mark.slow
async def test_no_name_and_no_value_breaks_out_of_its_place(
    database: Database, server: EmbeddedNats, environment: dict[str, str], tmp_path: Path
) -> None:
    await database.execute(
        "CREATE TABLE victim (id int PRIMARY KEY); INSERT INTO victim VALUES (1)"
    )
    await database.execute(f"CREATE PUBLICATION {environment['HEADRACE_PUB']} FOR ALL TABLES")
    async with Suite(
        environment, tmp_path, services=("publisher", "wal-reader", "schema-publisher")
    ) as suite:
        await suite.logged("publisher", "epoch_joined")
        for name in NAMES:
            table, column = quoted(name), quoted(name[::-1])
            await database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {column} text)")
            for number, value in enumerate(VALUES):
                await database.execute(f"INSERT INTO {table} VALUES ($1, $2)", number, value)
        found: list[Stored] = []
        async with asyncio.timeout(60):
            while len(found) < len(NAMES) * len(VALUES):
                with contextlib.suppress(nats.errors.Error):
                    found = [
                        e for e in await stored(server.url) if e.payload["operation"] == "INSERT"
                    ]
                await asyncio.sleep(0.2)
        for event, (name, value) in zip(
            found, [(n, v) for n in NAMES for v in VALUES], strict=True
        ):
            assert event.payload["table"] == name
            assert event.payload["data"][name[::-1]] == value
            assert event.subject == f"cdc.{table_token('public', name)}.insert"
            assert event.subject.count(".") == 2
            assert event.msg_id == event.payload["msg_id"]
        for running in ("publisher", "wal-reader", "schema-publisher"):
            assert suite.running(running), suite.log(running)[-2000:]
    assert await database.fetchval("SELECT count(*) FROM victim") == 1


@pytest.mark.slow
async def test_garbage_on_the_internal_subjects_costs_an_epoch_at_most(
    database: Database,
    server: EmbeddedNats,
    names: Names,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION {names.publication} FOR TABLE t"
    )
    async with Suite(
        environment, tmp_path, services=("publisher", "wal-reader", "telemetry")
    ) as suite:
        await suite.logged("publisher", "epoch_joined")
        client = await nats.connect(server.url)
        for subject in (
            subjects.frames(names.slot),
            subjects.control(names.slot),
            subjects.stats(names.slot, "publisher"),
            f"cdc.{secrets.token_hex(4)}.insert",
        ):
            for size in (0, 1, 15, 300, 100_000):
                await client.publish(subject, secrets.token_bytes(size))
        await client.flush()
        await client.close()
        await database.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        rows: list[int] = []
        async with asyncio.timeout(60):
            while len(rows) < 1000:
                rows = await _ids(server)
                await asyncio.sleep(0.2)
        assert rows == list(range(1, 1001))
        for running in ("publisher", "wal-reader", "telemetry"):
            assert suite.running(running), suite.log(running)[-2000:]


async def _ids(server: EmbeddedNats) -> list[int]:
    """The rows of the stream; what is no event of ours is skipped."""
    client = await nats.connect(server.url)
    found: list[int] = []
    try:
        subscription = await client.jetstream().subscribe(
            "cdc.t.insert", stream="CDC", ordered_consumer=True
        )
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                message = await subscription.next_msg(timeout=1)
                with contextlib.suppress(DecodeError):
                    found.append(decode(message.data)["data"]["id"])
    finally:
        await client.close()
    return found


async def test_the_http_port_bounds_what_it_takes(
    database: Database, server: EmbeddedNats, names: Names
) -> None:
    settings = {"PG_DB": database.name, "NATS_URL": server.url, **database.server.environment()}
    async with service(settings, "telemetry") as telemetry:
        url = await telemetry.url()
        async with aiohttp.ClientSession() as http:
            for path in (
                "/%00",
                "/streams/info?stream=../../x",
                "/streams/info?stream=" + "x" * 5000,
            ):
                async with http.get(url + path) as answer:
                    assert answer.status in (400, 404, 503), path
            async with http.get(f"{url}/status", headers={"X": "y" * 100_000}) as answer:
                assert answer.status == 400
            async with http.post(f"{url}/status", data=b"x" * 500_000) as answer:
                assert answer.status in (404, 405, 413)
            async with http.get(f"{url}/livez") as answer:
                assert answer.status == 200
