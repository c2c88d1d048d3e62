"""Queries of the audit-writer to the source's catalog: the database's name, and unknown tables.

A change names its key itself, and schema events describe a table's columns. If the stream no longer
contains them, the catalog remains, with its current facts: for bytea columns, and for the key of
changes that name none (those of an earlier version).
"""

from __future__ import annotations

import os
from collections.abc import Collection

from headrace.audit.table_book import Names, Noted
from headrace.postgres import catalog, connection
from headrace.postgres.facts import RelationFiles
from headrace.settings import PostgresSettings

_RELATIONS = """
SELECT c.oid::int8 AS relation_id, n.nspname AS schema, c.relname AS name, ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid IN ('bytea'::regtype,
        'bytea[]'::regtype)
) AS binary_columns
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname::text, c.relname::text) IN (SELECT * FROM unnest($1::text[], $2::text[]))
"""


async def database_name(settings: PostgresSettings) -> str:
    """The database whose changes are audited."""
    # libpq's variable, which asyncpg reads as well.
    named = settings.database or os.environ.get("PGDATABASE")
    if named:
        return named
    session = await connection.connect(settings, "headrace audit-writer")
    try:
        return str(await session.fetchval("SELECT current_database()"))
    finally:
        session.terminate()


async def noted(settings: PostgresSettings, tables: set[Names]) -> dict[Names, Noted]:
    """The catalog's facts about these tables; nothing for a dropped one."""
    session = await connection.connect(settings, "headrace audit-writer")
    try:
        wanted = sorted(tables)
        rows = await session.fetch(
            _RELATIONS, [schema for schema, _ in wanted], [name for _, name in wanted]
        )
        # Of the key as it is now: changes of earlier versions do not name theirs.
        keys_of = await catalog.keys(session, [row["relation_id"] for row in rows])
    finally:
        # Nothing is pending: an orderly end would only wait for a server that may be gone.
        session.terminate()
    found = {
        (row["schema"], row["name"]): Noted(
            keys_of[row["relation_id"]].row, tuple(row["binary_columns"])
        )
        for row in rows
    }
    return {names: found.get(names, Noted()) for names in tables}


async def files(
    settings: PostgresSettings, relation_ids: Collection[int]
) -> dict[int, RelationFiles]:
    """The files of these relations; nothing of one that is gone."""
    session = await connection.connect(settings, "headrace audit-writer")
    try:
        return await catalog.files(session, relation_ids)
    finally:
        session.terminate()
