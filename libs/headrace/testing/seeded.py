"""Mirrors that follow tables from their first change on, without a snapshot, which would need
Spark.

A target gets empty tables and the state of a mirror whose bootstrap found no rows at the start of
the stream. This is correct only if the tables were empty when the suite's slot was created.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.consumer import Watermark
from headrace.mirror import opened
from headrace.mirror.mirror_state import SEEN, Book
from headrace.mirror.table import Column, Phase, Table, TableState
from headrace.mirror.target import CreateTable
from headrace.testing.database import Database, fresh_database
from headrace.testing.line import SETTINGS
from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers
from headrace.testing.suite import Suite

PUBLICATION = "CREATE PUBLICATION headrace FOR ALL TABLES"
LINE = ("wal-reader", "publisher", "schema-publisher")
WITH_SNAPSHOTS = (*LINE, "snapshot-responder")
_START_S = 60.0
_SHAPE = """
SELECT c.relreplident::text AS identity,
       ARRAY(SELECT attname || E'\\t' || format_type(atttypid, atttypmod) FROM pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum) AS columns,
       ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[])
           WITH ORDINALITY AS k (number, place)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
             WHERE i.indrelid = c.oid AND i.indisprimary AND k.place <= i.indnkeyatts
                 ORDER BY k.place) AS key,
       ARRAY(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid
             AND a.attnum = ANY (i.indkey::int2[]) WHERE i.indrelid = c.oid
                 AND i.indisreplident) AS by_index
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
    AND c.relname = $2
"""


@dataclass
class World:
    """A source, its suite, and an empty database for a mirror."""

    source: Database
    target: Database
    environment: dict[str, str]
    suite: Suite
    nats_url: str

    def mirror(self, folder: Path, to: str, *tables: str) -> MirrorProcess:
        """One for this target, which bootstraps these tables."""
        options = [word for table in tables for word in ("--table", table)]
        return MirrorProcess(self.environment, folder, to.split(":", maxsplit=1)[0], to, *options)

    async def mirrors(self, folder: Path, *tables: str) -> dict[str, MirrorProcess]:
        """Run one mirror of each kind, which follows these tables (`users`, or `app.users`)."""
        places = {"sqlite": f"sqlite:///{folder}/mirror.db", "postgresql": self.target.dsn}
        named = [
            tuple(table.split(".", 1)) if "." in table else ("public", table) for table in tables
        ]
        options = [word for table in tables for word in ("--table", table)]
        for to in places.values():
            await seed(to, self.source, self.environment["HEADRACE_SLOT"], named)
        return {
            kind: MirrorProcess(self.environment, folder, kind, to, *options)
            for kind, to in places.items()
        }


async def seed(to: str, source: Database, slot: str, tables: Sequence[tuple[str, ...]]) -> None:
    """Let the target follow these tables, (schema, name), from the start of the stream."""
    async with opened(to) as target:
        book = Book(target)
        await book.open()
        for state in list(book.tables.values()):
            # From the beginning once more, they would have each row twice.
            book.forget(state)
        for schema, name in tables:
            table = await shape_of(source, schema, name)
            await book.write([CreateTable(table)])
            book.put(
                TableState(schema, name, Phase.FOLLOWING, live=table, why="seeded", source=slot)
            )
        book.keep_lanes({SEEN: Watermark()})
        await book.commit()


async def shape_of(source: Database, schema: str, name: str) -> Table:
    """The table as its schema event describes it."""
    (row,) = await source.fetch(_SHAPE, schema, name)
    columns = tuple(Column(*column.split("\t", 1)) for column in row["columns"])
    whole = [column.name for column in columns]
    identity = {"f": whole, "i": row["by_index"], "d": row["key"]}.get(row["identity"], [])
    return Table(schema, name, columns, tuple(row["key"]), tuple(identity))


@contextlib.asynccontextmanager
async def world(
    session_servers: SessionServers,
    folder: Path,
    setup: str,
    services: Sequence[str] = LINE,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[World]:
    """A suite on a separate database, whose tables `setup` creates."""
    postgres, server = session_servers.shared_postgres(18), session_servers.new_nats()
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(session_servers.discard, server)
        source = await stack.enter_async_context(
            fresh_database(postgres, Names.new().other("source"))
        )
        target = await stack.enter_async_context(
            fresh_database(postgres, Names.new().other("mirror"))
        )
        await source.execute(f"{setup}; {PUBLICATION}")
        environment = {
            **SETTINGS,
            **source.environment(server.url),
            "HEADRACE_SLOT": f"s_{source.name}",
            **(settings or {}),
        }
        suite = await stack.enter_async_context(Suite(environment, folder, services))
        await suite.logged("publisher", "epoch_joined", _START_S)
        if "snapshot-responder" in services:
            await suite.logged("snapshot-responder", "event=ready", _START_S)
        yield World(source, target, environment, suite, server.url)


@contextlib.asynccontextmanager
async def running(*mirrors: MirrorProcess) -> AsyncIterator[None]:
    """Run mirrors until the end of the block, where they stop in order."""
    for mirror in mirrors:
        await mirror.start()
    try:
        yield
        for mirror in mirrors:
            assert await mirror.stop() == 0, mirror.log[-3000:]
    finally:
        for mirror in mirrors:
            if mirror.runs:
                await mirror.kill()
