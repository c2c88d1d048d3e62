"""The first changes a newcomer sees: a small table, one transaction on it, its events from
JetStream.

Owns the table `headrace_demo` of the embedded database (with several suites, one for each), and
touches no other. Each run leaves one more row, which shows a later run that the data was kept.
"""

from __future__ import annotations

import asyncio

import asyncpg

from headrace.cli.session import nats, postgres
from headrace.consumer import Event, MemoryWatermarks, Start, Subscription, follow
from headrace.contract.subjects_and_ids import CDC, table_token
from headrace.errors import HeadraceError
from headrace.postgres.quoting import quote_name
from headrace.settings import Settings

TABLE = "headrace_demo"
ARRIVAL_TIMEOUT_S = 30.0

_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    price numeric(10, 2),
    tags jsonb
)"""


class NotArrivedError(HeadraceError):
    """The sample changes did not arrive in time."""

    remedy = "See the logs of wal-reader and publisher in .headrace/logs."


async def make_database(settings: Settings, name: str) -> None:
    """Create the database named in the settings, connected to PostgreSQL's default one."""
    # CREATE DATABASE needs a connection to a database that already exists.
    administration = await asyncpg.connect(
        host=settings.postgres.host,
        port=settings.postgres.port,
        user=settings.postgres.user,
        password=settings.postgres.password,
        database="postgres",
    )
    try:
        if not await administration.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
            await administration.execute(f"CREATE DATABASE {quote_name(name)}")
    finally:
        await administration.close()


async def make_table(settings: Settings, table: str) -> None:
    """The demo's table, if missing."""
    async with postgres(settings, "up") as session:
        # Looked up in the catalog first: with IF NOT EXISTS, the client would get a notice at every
        # later run.
        if await session.fetchval("SELECT to_regclass($1)", f"public.{quote_name(table)}") is None:
            await session.execute(_CREATE.format(table=quote_name(table)))


async def kept_events(settings: Settings) -> int:
    """The number of events in the change stream."""
    async with nats(settings, "up") as (client, _):
        return int((await client.jetstream().stream_info(settings.streams.cdc)).state.messages)


async def sample_changes(settings: Settings, table: str) -> list[Event]:
    """Commit one transaction on the demo table, and receive its events from the stream."""
    subscription = Subscription(
        settings.streams.cdc,
        (f"{CDC}.{table_token('public', table)}.>",),
        start=Start.NEW,
        state_bucket=settings.streams.state,
    )
    try:
        async with (
            nats(settings, "up") as (client, _),
            follow(client, subscription, MemoryWatermarks()) as consumer,
        ):
            # The consumer exists before the transaction commits, so that NEW misses nothing.
            xid = await _write(settings, table)
            found: list[Event] = []
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                while not (found and found[-1].payload["tx"]["last"]):
                    event = await consumer.next()
                    # A schema event stands at the position of the row behind it (docs/adr/0008).
                    if event is not None and event.payload["tx"]["xid"] == xid and event.advances:
                        found.append(event)
                    if event is not None:
                        await consumer.done(event)
            return found
    except TimeoutError as error:
        raise NotArrivedError(
            f"the sample changes did not arrive in {ARRIVAL_TIMEOUT_S:g} s"
        ) from error


async def _write(settings: Settings, table: str) -> int:
    """An insert of two rows, an update and a delete in one transaction; returns its id as in the
    stream.
    """
    name = quote_name(table)
    async with postgres(settings, "up") as session, session.transaction():
        # The stream has the lower 32 bits; pg_current_xact_id() has 64.
        xid = await session.fetchval(
            "SELECT (pg_current_xact_id()::text::numeric % 4294967296)::bigint"
        )
        first, second = await session.fetch(
            f"INSERT INTO {name} (name, price, tags)"
            """ VALUES ('lamp', 19.90, '["new"]'), ('chair', 49.00, NULL) RETURNING id"""
        )
        await session.execute(f"UPDATE {name} SET price = 17.50 WHERE id = $1", first["id"])
        await session.execute(f"DELETE FROM {name} WHERE id = $1", second["id"])
    return int(xid)
