"""What the audit-writer asks the source's catalog: the database's name, and keys of tables that no event told of.

Schema events tell a table's key in order; a stream that no longer has them leaves the catalog, which knows today's.
"""

from __future__ import annotations

import os

from headrace.audit.rows import Names
from headrace.postgres import catalog, connection
from headrace.settings import PostgresSettings

_RELATIONS = """
SELECT c.oid::int8 AS relation_id, n.nspname AS schema, c.relname AS name
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname::text, c.relname::text) IN (SELECT * FROM unnest($1::text[], $2::text[]))
"""


async def database_name(settings: PostgresSettings) -> str:
    """The database whose changes are audited."""
    named = settings.database or os.environ.get("PGDATABASE")
    if named:
        return named
    session = await connection.connect(settings, "headrace audit-writer")
    try:
        return str(await session.fetchval("SELECT current_database()"))
    finally:
        session.terminate()


async def keys(settings: PostgresSettings, tables: set[Names]) -> dict[Names, tuple[str, ...]]:
    """The key columns of these tables; none for a table that is gone."""
    session = await connection.connect(settings, "headrace audit-writer")
    try:
        wanted = sorted(tables)
        rows = await session.fetch(_RELATIONS, [schema for schema, _ in wanted], [name for _, name in wanted])
        keys_of = await catalog.keys(session, [row["relation_id"] for row in rows])
    finally:
        session.terminate()
    found = {(row["schema"], row["name"]): keys_of[row["relation_id"]].row for row in rows}
    return {names: found.get(names, ()) for names in tables}
