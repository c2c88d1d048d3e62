"""A database for one test on a shared PostgreSQL server.

It is empty at first, and dropped at the end, after everything that prevents that: connections,
walsenders and replication slots.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres

_SLOT_RELEASE_TIMEOUT_S = 10.0
_SLOT_RELEASE_INTERVAL_S = 0.02


class Database:
    """A database for one test; the type of the fixture `database`."""

    def __init__(self, server: EmbeddedPostgres, name: str) -> None:
        # The server on which it is.
        self.server = server
        # Its name.
        self.name = name
        # A superuser, who needs no password.
        self.user = SUPERUSER
        self._connections: list[Any] = []

    @property
    def port(self) -> int:
        """The server's port on 127.0.0.1."""
        return self.server.port

    @property
    def dsn(self) -> str:
        """The database's address."""
        return self.server.dsn(self.name)

    def environment(self, nats_url: str, **settings: str) -> dict[str, str]:
        """The environment of services between this database and a NATS server."""
        servers = {**self.server.environment(), "PG_DB": self.name, "NATS_URL": nats_url}
        return servers | settings

    async def connect(self) -> Any:
        """Open an asyncpg connection, which is closed at the end of the test."""
        connection = await asyncpg.connect(self.dsn)
        self._connections.append(connection)
        return connection

    async def execute(self, sql: str, *arguments: object) -> str:
        """Run a statement (or several, without arguments) in its own transaction, and return its
        status.
        """
        return str(await (await self._shared()).execute(sql, *arguments))

    async def fetch(self, sql: str, *arguments: object) -> list[Any]:
        """Run a query and return its rows."""
        return list(await (await self._shared()).fetch(sql, *arguments))

    async def fetchval(self, sql: str, *arguments: object) -> Any:
        """Run a query and return the first value of its first row."""
        return await (await self._shared()).fetchval(sql, *arguments)

    async def close(self) -> None:
        """Close all connections that were opened through this object."""
        for connection in self._connections:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=2)
        self._connections.clear()

    async def _shared(self) -> Any:
        if not self._connections or self._connections[0].is_closed():
            self._connections.insert(0, await asyncpg.connect(self.dsn))
        return self._connections[0]


@contextlib.asynccontextmanager
async def fresh_database(
    server: EmbeddedPostgres, name: str, options: str = ""
) -> AsyncIterator[Database]:
    """Create a database with options of CREATE DATABASE, and drop it when the block ends."""
    async with _administration(server) as administration:
        await administration.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 {options}')
    database = Database(server, name)
    try:
        yield database
    finally:
        await database.close()
        # A test may have left the shared server stopped.
        await server.start()
        async with _administration(server) as administration:
            await _drop_slots(administration, name)
            await administration.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextlib.asynccontextmanager
async def _administration(server: EmbeddedPostgres) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server.dsn())
    try:
        yield connection
    finally:
        await connection.close()


async def _drop_slots(administration: Any, name: str) -> None:
    """Drop the database's slots; a slot in use is free when its walsender has ended."""
    async with asyncio.timeout(_SLOT_RELEASE_TIMEOUT_S):
        while slots := await administration.fetch(
            (
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = $1 AND "
                "NOT temporary"
            ),
            name,
        ):
            for slot in slots:
                if slot["active_pid"] is not None:
                    await administration.execute(
                        "SELECT pg_terminate_backend($1)", slot["active_pid"]
                    )
                with contextlib.suppress(asyncpg.ObjectInUseError, asyncpg.UndefinedObjectError):
                    await administration.execute(
                        "SELECT pg_drop_replication_slot($1)", slot["slot_name"]
                    )
            await asyncio.sleep(_SLOT_RELEASE_INTERVAL_S)
