"""Finds generated columns for which PostgreSQL refuses UPDATEs once their table is published.

From PostgreSQL 18 on, an UPDATE or DELETE fails if the replica identity contains a generated column
that the publication excludes: a stored one, unless `publish_generated_columns` includes it, and a
virtual one always.
"""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

CHECKED_SINCE = 180_000
# For a new publication: includes stored ones.
PUBLISHED = " WITH (publish_generated_columns = stored)"

_REFUSED = """
SELECT format('%I.%I', n.nspname, c.relname) AS name, bool_or(a.attgenerated = 'v') AS virtual
FROM pg_publication_tables p JOIN pg_publication pub USING (pubname)
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attgenerated <> ''
WHERE p.pubname = $1 AND (pub.pubupdate OR pub.pubdelete)
    AND NOT coalesce(a.attname = ANY (p.attnames), false)
  AND (c.relreplident = 'f' OR EXISTS (
    SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
    AND (c.relreplident = 'i' AND i.indisreplident OR c.relreplident = 'd' AND i.indisprimary)))
GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Refused:
    """Published tables whose UPDATEs and DELETEs PostgreSQL refuses, by the kind of their generated
    columns.
    """

    stored: tuple[str, ...]
    virtual: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return sorted({*self.stored, *self.virtual})

    def remedy(self, publication: str) -> str:
        """The remedy for them."""
        said = []
        if self.stored:
            said.append(f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)")
        if self.virtual:
            said.append(
                f"ALTER TABLE {', '.join(self.virtual)} REPLICA IDENTITY DEFAULT, or define the "
                "columns as STORED, or leave "
                "the tables out of the publication"
            )
        return f"{'; and '.join(said)}."


async def publishes(session: asyncpg.Connection) -> bool:
    """Whether this server's publications can and must include stored generated columns."""
    return int(await session.fetchval("SHOW server_version_num")) >= CHECKED_SINCE


async def refused(session: asyncpg.Connection, publication: str) -> Refused:
    """The tables of the publication that can't be updated any more."""
    if await publishes(session):
        rows = await session.fetch(_REFUSED, publication)
    else:
        rows = []
    stored = tuple(row["name"] for row in rows if not row["virtual"])
    return Refused(stored, tuple(row["name"] for row in rows if row["virtual"]))
