"""Reads the schemas of all delivered tables from the catalog, in one consistent snapshot.

Promises: a missing publication is an error, never an empty list, because an empty list would delete
every key. Keeps one connection and reopens it after a failure.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import asyncpg

from headrace.contract.selection import Selection
from headrace.postgres import catalog, catalog_queries, connection
from headrace.postgres.connection import PostgresError, PostgresUnreachableError
from headrace.postgres.facts import PublishedColumn, PublishedTable
from headrace.schema_publisher.schema import TableSchema
from headrace.settings import Settings

_COLUMNS = f"""
SELECT a.attrelid::int8 AS relation_id, a.attname AS name, format_type(a.atttypid,
    a.atttypmod) AS data_type,
       {catalog_queries.base_type("a.atttypid")} AS base_type, NOT a.attnotnull AS is_nullable,
       pg_get_expr(d.adbin, d.adrelid) AS column_default
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid,
    a.attnum
"""  # noqa: S608  # of constants


class PublicationMissingError(PostgresError):
    """The publication doesn't exist yet."""

    retry = True
    remedy = "Run `headrace init`, or CREATE PUBLICATION, or name another with --pub."


class SchemaReading:
    """Reads the catalog repeatedly."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        chosen = settings.format
        self._selection = Selection(chosen.include, chosen.exclude, chosen.exclude_columns)
        self._connection: asyncpg.Connection | None = None

    async def schemas(self) -> list[TableSchema]:
        """Every table of the publication that is not excluded, as of now."""
        try:
            async with asyncio.timeout(self._settings.postgres.connect_timeout_s):
                return await self._schemas(await self._connected())
        except connection.BROKEN as error:
            self.close()
            raise PostgresUnreachableError(
                f"the catalog can't be read: {error or type(error).__name__}"
            ) from error
        except asyncpg.PostgresError as error:
            self.close()
            raise connection.explained(
                error.sqlstate, str(error), self._settings.postgres
            ) from error

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connection.connect(
                self._settings.postgres, "headrace schema-publisher"
            )
        return self._connection

    async def _schemas(self, session: asyncpg.Connection) -> list[TableSchema]:
        source = self._settings.source
        # Columns and keys of two moments could describe a table that never existed.
        async with session.transaction(isolation="repeatable_read", readonly=True):
            if not await session.fetchval(
                "SELECT 1 FROM pg_publication WHERE pubname = $1", source.publication
            ):
                raise PublicationMissingError(f'publication "{source.publication}" does not exist')
            published = await catalog.published_tables(session, source.publication)
            tables = catalog.delivered(published, self._selection)
            oids = [table.relation_id for table in tables]
            columns = _by_relation(await session.fetch(_COLUMNS, oids))
            keys = await catalog.keys(session, oids)
        return [
            TableSchema.of(
                source.slot,
                table,
                _visible(table, columns[table.relation_id]),
                [name for name in keys[table.relation_id].primary if name in table.columns],
            )
            for table in tables
        ]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _by_relation(rows: list[asyncpg.Record]) -> defaultdict[int, list[asyncpg.Record]]:
    found: defaultdict[int, list[asyncpg.Record]] = defaultdict(list)
    for row in rows:
        found[row["relation_id"]].append(row)
    return found


def _visible(table: PublishedTable, rows: list[asyncpg.Record]) -> list[PublishedColumn]:
    """The columns in the publication, numbered as a consumer sees them."""
    shown = set(table.columns)
    visible = [row for row in rows if row["name"] in shown]
    return [
        PublishedColumn(
            row["name"],
            position,
            row["data_type"],
            row["is_nullable"],
            row["column_default"],
            row["base_type"],
        )
        for position, row in enumerate(visible, start=1)
    ]
