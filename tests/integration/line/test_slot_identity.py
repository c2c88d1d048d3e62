"""A slot that another suite reads, on another NATS: it is left to that suite, and the reason is
shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from headrace.bus.control import Join
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.ports import free_port
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_install import postgres_binaries
from headrace.postgres.replication import ReplicationConnection
from headrace.settings import load
from headrace.testing.database import Database
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import command, service
from headrace.testing.suite import Suite
from headrace.wal_reader.silence import StaleSlot
from tests.support.hastened import hastened
from tests.support.own_source import ORDERS, OwnSource

pytestmark = pytest.mark.slow

SETTINGS = {
    "HEADRACE_PROGRESS_INTERVAL_S": "0.1",
    "HEADRACE_STATUS_INTERVAL_S": "0.2",
    "HEADRACE_LEASE_TTL_S": "1",
}
STALE_S = 2.0
# Longer than it takes to call a walsender of the suite's own stale.
LONGER_THAN_STALE_S = 2 * STALE_S
HASTENED = hastened({"headrace.wal_reader.silence.STALE_S": STALE_S})


async def reason_of(port: int) -> str:
    """Why the wal-reader on this port is not ready; empty while it does not say."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/readyz") as answer,
    ):
        body: Mapping[str, Any] = await answer.json()
        return "" if answer.status == 200 else str(body["reasons"].get("postgres", ""))


async def reader_of(database: Database) -> tuple[int, str]:
    (row,) = await database.fetch(
        "SELECT s.active_pid, a.application_name FROM pg_replication_slots s "
        "JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = 'headrace'"
    )
    return int(row[0]), str(row[1])


async def is_refused_to_the_commands(settings: dict[str, str], reader: str) -> None:
    """In the second suite's environment each command names the reader, and none ends it."""
    doctor = await command(settings, "doctor", "--json")
    (slot,) = (check for check in json.loads(doctor.out)["checks"] if check["name"] == "slot")
    assert slot["state"] == "fail"
    assert reader in slot["found"]
    assert "another HEADRACE_SLOT" in slot["remedy"]
    teardown = await command(settings, "teardown", "--yes")
    assert teardown.code == 1
    assert reader in teardown.err
    async with service({**settings, "HEADRACE_HTTP_PORT": "0"}, "telemetry") as telemetry:
        # Its table breaks lines between words.
        identity = reader.rsplit(maxsplit=1)[-1]
        async with asyncio.timeout(90):
            while (
                identity
                not in (
                    shown := await command(settings, "status", "--url", await telemetry.url())
                ).out
            ):
                assert shown.code == 0, shown


async def stored_ids(nats: EmbeddedNats, count: int) -> list[int]:
    """The rows of the stream, once there are so many."""
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            events = [event.payload for event in await stored(nats.url)]
            found = [event["data"]["id"] for event in events if event["operation"] == "INSERT"]
            await asyncio.sleep(0.1)
    return found


async def test_a_second_suite_on_another_nats_never_disturbs_the_one_that_reads_the_slot(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, first_nats, second_nats = await own_postgres(), await own_nats(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    shared = {**SETTINGS, **postgres.environment(), "PG_DB": "postgres"}
    port = free_port()
    second = Suite(
        {**shared, "NATS_URL": second_nats.url},
        tmp_path / "second",
        services=("publisher",),
        program=HASTENED,
    )
    first = Suite({**shared, "NATS_URL": first_nats.url}, tmp_path / "first", program=HASTENED)
    async with first, second:
        await first.logged("publisher", "epoch_joined")
        reader = await reader_of(database)
        assert re.fullmatch(r"headrace wal-reader [0-9a-f]{16}", reader[1])
        await second.start("wal-reader", HEADRACE_HTTP_PORT=str(port))
        await second.logged("wal-reader", "is read by another suite")

        async with asyncio.timeout(LONGER_THAN_STALE_S * 5):
            for row in range(int(LONGER_THAN_STALE_S * 10)):
                await database.execute("INSERT INTO orders VALUES ($1)", row)
                await asyncio.sleep(0.1)
        reason = await reason_of(port)
        for words in (
            reader[1],
            "client 127.0.0.1",
            f"process {reader[0]}",
            "since 20",
            "another HEADRACE_SLOT",
        ):
            assert words in reason
        await is_refused_to_the_commands({**shared, "NATS_URL": second_nats.url}, reader[1])
        assert await reader_of(database) == reader
        assert await stored_ids(first_nats, row + 1) == list(range(row + 1))

        # A restart leaves the slot free for a moment: it is not the other one's then either.
        assert await first.stop("wal-reader") == 0
        await database.execute("INSERT INTO orders VALUES ($1)", row + 1)
        await second.logged("wal-reader", "which may be restarting")
        await first.start("wal-reader")
        assert await stored_ids(first_nats, row + 2) == list(range(row + 2))
        assert (await reader_of(database))[1] == reader[1]
        assert "epoch_opened" not in second.log("wal-reader")
        assert "stale_walsender_ended" not in first.log("wal-reader") + second.log("wal-reader")
    await database.close()


@pytest.mark.parametrize("maker", ["headrace init", "terraform"])
async def test_who_makes_the_slot_is_not_waited_for_as_one_that_read_it(
    postgres_server: EmbeddedPostgres, maker: str
) -> None:
    """In Kubernetes the suite starts next to `headrace init`, which waits for transactions that were
    there before.
    """
    where = postgres_server.environment()
    settings = load(
        {
            "PG_HOST": where["PGHOST"],
            "PG_PORT": where["PGPORT"],
            "POSTGRES_BRIDGE_USER": where["PGUSER"],
            "PG_DB": "postgres",
        }
    )
    slot = settings.source.slot
    database = Database(postgres_server, "postgres")
    own = StaleSlot(settings)
    own.on_control(Join("publisher", "session", 0, "abcd"))
    looking = await ReplicationConnection.open(settings.postgres, own.application)
    making = await asyncpg.connect(database.dsn, server_settings={"application_name": maker})
    earlier = await asyncpg.connect(database.dsn)
    try:
        transaction = earlier.transaction()
        await transaction.start()
        await earlier.execute("SELECT pg_current_xact_id()")
        made = asyncio.create_task(
            making.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        )
        async with asyncio.timeout(30):
            while not await database.fetch(  # noqa: ASYNC110  # no event
                "SELECT 1 FROM pg_replication_slots WHERE active_pid IS NOT NULL"
            ):
                await asyncio.sleep(0.05)
        await own.admit(looking)
        await transaction.rollback()
        await made
        await own.admit(looking)
    finally:
        await earlier.close()
        await making.close()
        looking.close()
        await database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        await database.close()


async def test_a_slot_that_another_program_reads_is_named_with_that_program(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database, nats = await own_source(ORDERS), await own_nats()
    await database.execute("SELECT pg_create_logical_replication_slot('headrace', 'pgoutput')")
    environment = {
        **SETTINGS,
        **database.environment(nats.url),
    }
    binary = postgres_binaries(database.server.version, None) / "pg_recvlogical"
    options = ["-o", "proto_version=1", "-o", "publication_names=headrace"]
    arguments = ["-d", "postgres", "--start", "-S", "headrace", *options, "-f", "-"]
    program = await asyncio.create_subprocess_exec(
        binary, *arguments, env=database.server.environment(), stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(30):
            while not await database.fetch("SELECT 1 FROM pg_replication_slots WHERE active"):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)
        async with Suite(environment, tmp_path, program=HASTENED) as suite:
            await suite.logged("wal-reader", "is read by another program (application")
            await asyncio.sleep(LONGER_THAN_STALE_S)
            assert program.returncode is None
            assert (await reader_of(database))[1] == "pg_recvlogical"
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()
