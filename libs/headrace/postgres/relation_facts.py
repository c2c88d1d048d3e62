"""What only the catalog knows of a relation that the stream describes: its key, and types that are not built in.

Waits for PostgreSQL as long as it takes: without the facts a change can't be written, and the frames wait on the bus.
Never reads a catalog older than the change at hand, as long as PostgreSQL shows the change's transaction in
`VISIBLE_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import time

import asyncpg

from headrace import log as logs
from headrace.lifecycle import Scope
from headrace.pgoutput.messages import Relation
from headrace.postgres import catalog, connection
from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.facts import TableFacts
from headrace.settings import Settings

log = logs.logger("catalog")

RETRY_S = 0.5
# Not without end: where this very slot counts as a synchronous standby, the transaction waits for it.
VISIBLE_TIMEOUT_S = 10.0
VISIBLE_POLL_S = 0.002


class RelationFacts:
    """One connection to the catalog, made when it is needed."""

    def __init__(self, settings: Settings, application_name: str) -> None:
        self._settings = settings
        self._application_name = application_name
        self._connection: asyncpg.Connection | None = None
        # The transaction that was waited for in vain: its other tables don't wait for it again.
        self._unseen: int | None = None

    async def of(self, scope: Scope, relation: Relation, xid: int) -> TableFacts | None:
        """The facts as transaction `xid` saw them; None when the service stops before the catalog could be asked."""
        while not scope.stopping.is_set():
            try:
                facts = await self._facts(relation, xid)
            except PostgresUnreachableError as error:
                scope.health.ail("catalog", str(error))
                await scope.pause(RETRY_S)
            else:
                scope.health.heal("catalog")
                return facts
        return None

    async def _facts(self, relation: Relation, xid: int) -> TableFacts:
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connection.connect(self._settings.postgres, self._application_name)
            async with asyncio.timeout(VISIBLE_TIMEOUT_S + self._settings.postgres.connect_timeout_s):
                return await self._read(self._connection, relation, xid)
        except connection.BROKEN as error:
            await self.close()
            raise PostgresUnreachableError(f"the catalog can't be read: {error}") from error
        except asyncpg.PostgresError as error:
            await self.close()
            raise connection.explained(error.sqlstate, str(error), self._settings.postgres) from error

    async def _read(self, session: asyncpg.Connection, relation: Relation, xid: int) -> TableFacts:
        """All facts from one snapshot, which has the transaction that the relation was described in."""
        types = [(column.type_oid, column.type_modifier) for column in relation.columns]
        publication = self._settings.source.publication
        deadline = time.monotonic() + VISIBLE_TIMEOUT_S
        while True:
            facts, seen = await catalog.table_facts(session, relation.relation_id, types, publication, xid)
            if not seen and xid != self._unseen and time.monotonic() > deadline:
                log.warning("catalog_behind", xid=xid, table=f"{relation.schema}.{relation.name}")
                self._unseen = xid
            if seen or xid == self._unseen:
                return facts
            await asyncio.sleep(VISIBLE_POLL_S)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
