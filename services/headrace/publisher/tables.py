"""The shapes of tables, with the facts that only the catalog has.

Waits for PostgreSQL as long as it takes: without the facts an event can't be written, and the frames wait on the bus.
"""

from __future__ import annotations

import asyncio

import asyncpg

from headrace import log as logs
from headrace.contract.selection import Selection
from headrace.contract.values import ValueOptions
from headrace.lifecycle import Scope
from headrace.pgoutput.messages import Relation
from headrace.postgres import catalog, connection
from headrace.postgres.connection import PostgresUnreachableError
from headrace.publisher.shape import Shape
from headrace.settings import Settings

log = logs.logger("publisher")

RETRY_S = 0.5


class Tables:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._options = ValueOptions(
            encoding=settings.format.encoding,
            arrays=settings.format.arrays,
            json_values=settings.format.json_values,
            int8_as_string=settings.format.int8_as_string,
        )
        self._selection = Selection(settings.format.include, settings.format.exclude, settings.format.exclude_columns)
        self._connection: asyncpg.Connection | None = None

    async def describe(self, scope: Scope, relation: Relation) -> Shape | None:
        """The relation's shape; None when the service stops before the catalog could be asked."""
        while not scope.stopping.is_set():
            try:
                facts = await self._facts(relation)
            except PostgresUnreachableError as error:
                scope.health.ail("catalog", str(error))
                await scope.pause(RETRY_S)
            else:
                scope.health.heal("catalog")
                return Shape.of(relation, facts, self._options, self._selection)
        return None

    async def _facts(self, relation: Relation) -> catalog.TableFacts:
        types = [(column.type_oid, column.type_modifier) for column in relation.columns]
        publication = self._settings.source.publication
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connection.connect(self._settings.postgres, "headrace publisher")
            async with asyncio.timeout(self._settings.postgres.connect_timeout_s):
                return await catalog.table_facts(self._connection, relation.relation_id, types, publication)
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError) as error:
            await self.close()
            raise PostgresUnreachableError(f"the catalog can't be read: {error}") from error
        except asyncpg.PostgresError as error:
            await self.close()
            raise connection.explained(error.sqlstate, str(error), self._settings.postgres) from error

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
