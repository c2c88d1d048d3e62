"""The source's catalog about tables whose changes are undone: foreign keys and publications."""

from __future__ import annotations

from collections.abc import Collection

import asyncpg

from headrace.audit.ordering import Reference
from headrace.audit.table_book import Names

# Of a partitioned table the parts' own constraints say the same again.
_REFERENCES = """
SELECT cn.nspname::text AS child_schema, c.relname::text AS child,
    pn.nspname::text AS parent_schema,
       p.relname::text AS parent, k.confdeltype::text AS on_delete,
       ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u(number, place)
             JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.number
                 ORDER BY u.place) AS columns,
       ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u(number, place)
             JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.number
                 ORDER BY u.place) AS keys
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_class p ON p.oid = k.confrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE k.contype = 'f' AND (pn.nspname::text, p.relname::text) IN (SELECT * FROM unnest($1::text[],
    $2::text[]))
"""


async def references_to(source: asyncpg.Connection, tables: Collection[Names]) -> list[Reference]:
    """Those that name rows of these tables."""
    wanted = sorted(tables)
    rows = await source.fetch(
        # Pairs of names: a name may be in several schemas.
        _REFERENCES,
        [schema for schema, _ in wanted],
        [name for _, name in wanted],
    )
    return [
        Reference(
            (row["child_schema"], row["child"]),
            tuple(row["columns"]),
            (row["parent_schema"], row["parent"]),
            tuple(row["keys"]),
            row["on_delete"],
        )
        for row in rows
    ]


# One that did not publish everything earlier has a schema event since, at which the trail's
# certainty begins again.
_IN_PART = """
SELECT NOT bool_or(pubinsert AND pubupdate AND pubdelete AND pubtruncate)
FROM pg_publication JOIN pg_publication_tables USING (pubname)
WHERE schemaname = $1 AND tablename = $2
"""


async def is_published_in_part(source: asyncpg.Connection, schema: str, table: str) -> bool:
    """Whether no publication of the table publishes all its changes."""
    return bool(await source.fetchval(_IN_PART, schema, table))
