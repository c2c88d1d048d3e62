"""Finds partitions whose changes don't name their rows once they are published as their root's.

With `publish_via_partition_root`, PostgreSQL sends the root's replica identity and writes the
partition's: columns that only the root's has are NULL in the old row. ALTER TABLE … REPLICA
IDENTITY of a root leaves its partitions as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg

_LACKING = """
WITH known AS (
    SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name, c.relreplident = 'f' AS whole,
        ARRAY(SELECT a.attname
            FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
            JOIN pg_attribute a ON a.attnum = k.number
            WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND k.place <= i.indnkeyatts
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                    WHEN 'i' THEN i.indisreplident ELSE false END) AS identity
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p'))
SELECT root.name AS root, leaf.name AS leaf
FROM pg_publication_tables p JOIN pg_publication b USING (pubname)
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename AND c.relkind = 'p'
JOIN known root ON root.oid = c.oid
CROSS JOIN pg_partition_tree(c.oid) AS t
JOIN known leaf ON leaf.oid = t.relid
WHERE p.pubname = $1 AND b.pubviaroot AND (b.pubupdate OR b.pubdelete) AND t.isleaf
    AND NOT leaf.whole AND (root.whole OR NOT leaf.identity @> root.identity)
ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Partitions whose replica identity lacks columns of their root's, by the root."""

    leaves: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        return [leaf for leaves in self.leaves.values() for leaf in leaves]

    def remedy(self) -> str:
        """The remedy for them."""
        return (
            f"ALTER TABLE {self.names[0]} REPLICA IDENTITY as that of {next(iter(self.leaves))}, "
            "or FULL, and so for each; then copy the table again."
        )


async def lacking(session: asyncpg.Connection, publication: str) -> Lacking:
    """The partitions of the publication's roots to which that applies."""
    leaves: dict[str, tuple[str, ...]] = {}
    for row in await session.fetch(_LACKING, publication):
        leaves[row["root"]] = (*leaves.get(row["root"], ()), row["leaf"])
    return Lacking(leaves)
