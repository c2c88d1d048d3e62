"""A line under load: its tables, their writer, and the comparison of the stream with
PostgreSQL's own record of the commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import asyncpg
from nats import connect

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.database import Database
from headrace.testing.oracle import Oracle, Stored, stored

SETTINGS = {
    "HEADRACE_DEDUPE_WINDOW_S": "0.1",
    "HEADRACE_NATS_RECONNECT_WAIT_S": "0.1",
    "HEADRACE_PROGRESS_INTERVAL_S": "0.2",
    "HEADRACE_STATUS_INTERVAL_S": "0.2",
    "HEADRACE_ACK_TIMEOUT_S": "3",
    "HEADRACE_LEASE_TTL_S": "1",
}
# Of transactions, in rows.
SMALL_SIZES = (1, 1, 2, 10)
SIZES = (*SMALL_SIZES, 100, 1000, 5000)


def environment(postgres: EmbeddedPostgres, nats: EmbeddedNats, delivery: str) -> dict[str, str]:
    servers = {**postgres.environment(), "PG_DB": "postgres", "NATS_URL": nats.url}
    return {**SETTINGS, **servers, "HEADRACE_DELIVERY": delivery}


async def prepare(postgres: EmbeddedPostgres) -> tuple[Database, Oracle]:
    database = Database(postgres, "postgres")
    await database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n int, note text)")
    await database.execute("CREATE TABLE items (a int, b text, PRIMARY KEY (a, b))")
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    oracle = await Oracle.begun(database)
    return database, oracle


async def write(
    postgres: EmbeddedPostgres,
    rows: int,
    seed: int,
    first_id: int = 0,
    enough: asyncio.Event | None = None,
) -> None:
    """Transactions of 1 to 5,000 rows, with updates and deletes, through any number of server
    crashes.

    At least `rows` rows, and small transactions from then on until `enough` is set: a slow machine
    has no more to read than a fast one.
    """
    chance = random.Random(seed)
    made = 0
    connection: Any = None
    while made < rows or not (enough is None or enough.is_set()):
        try:
            connection = connection or await asyncpg.connect(postgres.dsn())
            sizes = SIZES if made < rows else SMALL_SIZES
            made += await _transaction(connection, chance, first_id + made, chance.choice(sizes))
            if enough is not None:
                await asyncio.sleep(chance.random() / 10)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            connection = None
            await asyncio.sleep(0.1)
            first_id += 10_000_000
    if connection is not None:
        await connection.close()


async def _transaction(connection: Any, chance: random.Random, first: int, count: int) -> int:
    async with connection.transaction():
        await connection.execute(
            (
                "INSERT INTO orders SELECT g, g % 7, 'note ' || g FROM generate_series($1::bigint, "
                "$2::bigint) g"
            ),
            first,
            first + count - 1,
        )
        if chance.random() < 0.3:
            await connection.execute(
                "UPDATE orders SET n = n + 1 WHERE id % 97 = 0 AND id >= $1", first - 2000
            )
        if chance.random() < 0.2:
            await connection.execute(
                "DELETE FROM orders WHERE id % 101 = 3 AND id >= $1", first - 3000
            )
    return count


async def everything_delivered(
    oracle: Oracle, nats: EmbeddedNats, timeout_s: float, delivery: str = "event"
) -> list[Stored]:
    """The stream, once it has settled; compared with what PostgreSQL committed, change by change."""
    committed = await oracle.changes()
    deadline = time.monotonic() + timeout_s
    found: list[Stored] = []
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            # A batch has several events.
            if delivery == "batch" or await _messages(nats) >= len(committed):
                found = await stored(nats.url)
        if sum(event.payload["operation"] != "SCHEMA" for event in found) >= len(committed):
            break
        await asyncio.sleep(0.3)
    await asyncio.sleep(0.5)
    found = await stored(nats.url)
    rows = [event.change for event in found if event.payload["operation"] != "SCHEMA"]
    if delivery == "batch":
        # In order for each table; tables among themselves are not.
        rows.sort(key=lambda change: change.table)
        committed.sort(key=lambda change: change.table)
    assert rows == committed
    shapes = [
        (e.payload["table"], e.payload["version"])
        for e in found
        if e.payload["operation"] == "SCHEMA"
    ]
    assert len(set(shapes)) == len(shapes)
    ids = [event.payload["msg_id"] for event in found]
    assert len(set(ids)) == len(ids)
    return found


async def _messages(nats: EmbeddedNats) -> int:
    client = await connect(nats.url)
    try:
        return (await client.jetstream().stream_info("CDC")).state.messages
    finally:
        await client.close()


def mirror_of(events: list[Stored]) -> dict[int, tuple[int, str]]:
    rows: dict[int, tuple[int, str]] = {}
    for event in events:
        payload = event.payload
        if payload["table"] != "orders" or payload["operation"] == "SCHEMA":
            continue
        data = payload["data"]
        if payload["operation"] == "DELETE":
            del rows[data["id"]]
        else:
            rows[data["id"]] = (data["n"], data["note"])
    return rows


async def source_rows(database: Database) -> dict[int, tuple[int, str]]:
    return {
        row["id"]: (row["n"], row["note"]) for row in await database.fetch("SELECT * FROM orders")
    }
