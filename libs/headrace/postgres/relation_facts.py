"""Catalog facts of a relation in the stream: its key, and types that are not built in.

Waits for PostgreSQL as long as it takes: without the facts a change can't be written, and the
frames wait on the bus. Only a stop ends the wait, with an error: a caller can't continue without
the facts. Never reads a catalog older than the current change, provided that PostgreSQL shows the
change's transaction within `VISIBLE_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import asyncpg

from headrace import log as logs
from headrace.errors import HeadraceError
from headrace.pgoutput.messages import Relation
from headrace.postgres import catalog, connection
from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.facts import RelationNow, TableFacts
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

log = logs.logger("catalog")

T = TypeVar("T")
# The result of a query, and whether it saw the effects of the current transaction.
_Read = Callable[[asyncpg.Connection], Awaitable[tuple[T, bool]]]

RETRY_S = 0.5
# Not forever: if this very slot counts as a synchronous standby, the transaction waits for it.
VISIBLE_TIMEOUT_S = 10.0
# Usually a moment: PostgreSQL decodes a commit shortly before other sessions see it.
VISIBLE_POLL_S = 0.002


class ReadingAbandonedError(HeadraceError):
    """The service stops before the catalog answers: the change at hand can't be read, nor can any
    after it.
    """


@dataclass(eq=False)
class RelationFacts:
    """One connection to the catalog, opened when needed."""

    _settings: Settings
    _application_name: str
    _connection: asyncpg.Connection | None = None
    # A transaction that did not become visible: its other tables don't wait for it again.
    _unseen: int | None = None

    async def of(self, scope: Scope, relation: Relation, xid: int) -> TableFacts:
        """The facts as transaction `xid` saw them."""
        types = [(column.type_oid, column.type_modifier) for column in relation.columns]
        publication = self._settings.source.publication
        return await self._asked(
            scope,
            xid,
            lambda session: catalog.table_facts(
                session, relation.relation_id, types, publication, xid
            ),
        )

    async def now(
        self, scope: Scope, relation_ids: Collection[int], xid: int
    ) -> dict[int, RelationNow]:
        """The existing ones of these relations, read after transaction `xid`."""
        return await self._asked(
            scope, xid, lambda session: catalog.relations_now(session, relation_ids, xid)
        )

    async def _asked(self, scope: Scope, xid: int, read: _Read[T]) -> T:
        while not scope.stopping.is_set():
            try:
                found = await self._read(xid, read)
            except PostgresUnreachableError as error:
                scope.health.block("catalog", str(error))
                await scope.pause(RETRY_S)
            else:
                scope.health.unblock("catalog")
                return found
        raise ReadingAbandonedError("the service stops before the catalog answers")

    async def _read(self, xid: int, read: _Read[T]) -> T:
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connection.connect(
                    self._settings.postgres, self._application_name
                )
            # Longer than the wait for visibility, which ends with an answer. A TimeoutError is an
            # OSError, and so one of `BROKEN`.
            async with asyncio.timeout(
                VISIBLE_TIMEOUT_S + self._settings.postgres.connect_timeout_s
            ):
                return await self._seeing(self._connection, xid, read)
        except connection.BROKEN as error:
            await self.close()
            raise PostgresUnreachableError(f"the catalog can't be read: {error}") from error
        except asyncpg.PostgresError as error:
            await self.close()
            raise connection.explained(
                error.sqlstate, str(error), self._settings.postgres
            ) from error

    async def _seeing(self, session: asyncpg.Connection, xid: int, read: _Read[T]) -> T:
        """All from one snapshot, which includes the transaction in question."""
        deadline = time.monotonic() + VISIBLE_TIMEOUT_S
        while True:
            found, seen = await read(session)
            if not seen and xid != self._unseen and time.monotonic() > deadline:
                log.warning("catalog_behind", xid=xid)
                self._unseen = xid
            if seen or xid == self._unseen:
                return found
            await asyncio.sleep(VISIBLE_POLL_S)

    async def close(self) -> None:
        if self._connection is not None:
            # Closing in order would wait for a server that may not answer.
            self._connection.terminate()
            self._connection = None
