"""Watches the catalog for changes that leave no trace in the stream.

These are DROP, DDL without later rows, rewrites and membership in the publication. Reads at
intervals, in parallel to the stream; a reading is used only once the stream has passed it
(`CatalogReading.lsn`), so that a schema event never precedes a row of the old shape. If the
database is unavailable, it tries again later.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg

from headrace import log as logs
from headrace.confirming.relations import value_options
from headrace.contract.schemas import ColumnShape, TableShape, fill
from headrace.contract.selection import Selection
from headrace.contract.values import converter
from headrace.postgres import connection
from headrace.postgres.catalog import PublicationReading, TableReading, read_publication
from headrace.postgres.connection import PostgresError
from headrace.postgres.facts import UNKNOWN_SERVER, ServerIdentity
from headrace.process.lifecycle import Scope
from headrace.publisher.schema_book import CatalogReading, CatalogTable
from headrace.settings import Settings

log = logs.logger("publisher")


class CatalogWatch:
    """The newest reading that was not used yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        form = settings.format
        self._options = value_options(settings)
        self._selection = Selection(form.include, form.exclude, form.exclude_columns)
        self._reading: CatalogReading | None = None

    def due(
        self, passed_lsn: int, reached_lsn: int, server: ServerIdentity = UNKNOWN_SERVER
    ) -> CatalogReading | None:
        """A reading that the stream has passed, at the stream's current position; each is returned
        once.

        Nothing is due while a replay is behind what the stream has reached: an event at that
        position would be skipped as already stored, or be inside a transaction that is stored in
        part. A reading of another server than the stream's is dropped: its LSNs mean something
        else, and the stream's next epoch shows whether this server follows.
        """
        if self._reading is not None and self._reading.server.contradicts(server):
            log.info("catalog_of_another_server", server=self._reading.server.system_id)
            self._reading = None
        reading = self._reading
        if reading is None or reading.lsn > passed_lsn or reached_lsn >= passed_lsn:
            return None
        self._reading = None
        # At the stream's position, not at the reading's: rows in between are already stored.
        return replace(reading, lsn=passed_lsn)

    async def run(self, scope: Scope) -> None:
        while not scope.stopping.is_set():
            # One reading waits until the stream has passed it: a newer one would only postpone it.
            if self._reading is None:
                try:
                    self._reading = await self._read()
                except (PostgresError, asyncpg.PostgresError, *connection.BROKEN) as error:
                    log.debug("catalog_not_read", reason=str(error))
            await scope.pause(self._settings.watch.catalog_interval_s)

    async def _read(self) -> CatalogReading:
        session = await connection.connect(self._settings.postgres, "headrace publisher catalog")
        try:
            # Locks of DDL may hold it up; the watch must continue.
            async with asyncio.timeout(self._settings.postgres.connect_timeout_s):
                reading = await read_publication(session, self._settings.source.publication)
        finally:
            # Not `close`, which would wait for a server that does not answer.
            session.terminate()
        return self._of(reading)

    def _of(self, reading: PublicationReading) -> CatalogReading:
        wanted = [t for t in reading.tables if self._selection.wants(t.table.schema, t.table.name)]
        return CatalogReading(
            reading.lsn,
            tuple(self._table(table, reading) for table in wanted),
            reading.existing,
            reading.snapshot,
            read_lsn=reading.lsn,
            server=reading.server,
        )

    def _table(self, reading: TableReading, publication: PublicationReading) -> CatalogTable:
        table = reading.table
        hidden = self._selection.hidden_columns(table.schema, table.name)
        columns = tuple(
            ColumnShape(
                row["name"],
                row["type_oid"],
                row["modifier"],
                row["data_type"],
                is_key=row["is_key"],
                is_nullable=row["is_nullable"],
                column_default=row["column_default"],
                number=row["number"],
                filled=row["filled"],
                base_type=row["base_type"],
                fill=fill(
                    row["missing"], converter(row["type_oid"], self._options, publication.types.get)
                ),
            )
            # Hidden columns are left out of schemas as of rows: their names may say too much.
            for row in reading.columns
            if row["name"] not in hidden
        )
        shape = TableShape(
            schema=table.schema,
            name=table.name,
            relation_id=table.relation_id,
            replica_identity=table.replica_identity,
            primary_key=tuple(name for name in reading.primary_key if name not in hidden),
            membership=reading.membership,
            columns=columns,
            last_number=reading.last_number,
            publication=publication.publication,
            definitions=reading.definitions,
        )
        return CatalogTable(shape, reading.storage)
