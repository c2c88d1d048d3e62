"""What the stream doesn't carry, read from the catalog: primary keys, types that aren't built in, nullability,
defaults, and which tables a publication has.

As of the moment of reading: the catalog may be newer than the place in the stream where it is needed, so a table that
is gone gives empty facts, never an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import asyncpg

from headrace.contract.values import TypeInfo, TypeKind

_TYPES = """
WITH RECURSIVE wanted AS (
    SELECT t.oid, t.typtype, t.typbasetype, t.typelem, t.typcategory, t.typsubscript, t.typdelim
    FROM pg_type t WHERE t.oid = ANY($1::oid[])
  UNION
    SELECT t.oid, t.typtype, t.typbasetype, t.typelem, t.typcategory, t.typsubscript, t.typdelim
    FROM pg_type t JOIN wanted w ON t.oid IN (w.typbasetype, w.typelem)
)
SELECT w.oid, w.typtype::text, w.typbasetype, w.typelem,
       w.typsubscript::oid = 'array_subscript_handler'::regproc::oid AS is_array,
       coalesce(e.typdelim, w.typdelim)::text AS delimiter
FROM wanted w LEFT JOIN pg_type e ON e.oid = w.typelem
"""

_PRIMARY_KEY = """
SELECT a.attname FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ord)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = $1::oid AND i.indisprimary AND k.ord <= i.indnkeyatts ORDER BY k.ord
"""

_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS data_type, NOT a.attnotnull AS is_nullable,
       pg_get_expr(d.adbin, d.adrelid) AS column_default
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_PUBLISHED = """
SELECT c.oid::int8 AS relation_id, n.nspname AS schema, c.relname AS name, c.relreplident::text AS replica_identity,
       p.attnames::text[] AS columns, p.rowfilter AS row_filter, c.relkind::text AS kind
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = $1 ORDER BY 2, 3
"""

_KINDS = {
    "b": TypeKind.BASE,
    "d": TypeKind.DOMAIN,
    "e": TypeKind.ENUM,
    "c": TypeKind.COMPOSITE,
    "r": TypeKind.RANGE,
    "m": TypeKind.MULTIRANGE,
    "p": TypeKind.PSEUDO,
}


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the catalog adds to a relation of the stream."""

    primary_key: tuple[str, ...] = ()
    types: dict[int, TypeInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the schemas bucket shows it."""

    name: str
    position: int
    data_type: str
    is_nullable: bool
    column_default: str | None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication."""

    relation_id: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[str, ...]
    row_filter: str | None
    kind: str


async def table_facts(connection: asyncpg.Connection, relation_id: int, type_oids: Iterable[int]) -> TableFacts:
    key = await connection.fetch(_PRIMARY_KEY, relation_id)
    return TableFacts(tuple(row["attname"] for row in key), await types(connection, type_oids))


async def types(connection: asyncpg.Connection, type_oids: Iterable[int]) -> dict[int, TypeInfo]:
    """These types and what they are made of."""
    rows = await connection.fetch(_TYPES, sorted(set(type_oids)))
    return {row["oid"]: _type_info(row) for row in rows}


def _type_info(row: asyncpg.Record) -> TypeInfo:
    if row["is_array"]:
        return TypeInfo(TypeKind.ARRAY, element_oid=row["typelem"], delimiter=row["delimiter"])
    return TypeInfo(_KINDS.get(row["typtype"], TypeKind.BASE), base_oid=row["typbasetype"])


async def columns(connection: asyncpg.Connection, table: PublishedTable) -> tuple[Column, ...]:
    """The columns that the publication shows of a table."""
    shown = set(table.columns)
    rows = await connection.fetch(_COLUMNS, table.relation_id)
    visible = [row for row in rows if row["name"] in shown]
    return tuple(
        Column(row["name"], position, row["data_type"], row["is_nullable"], row["column_default"])
        for position, row in enumerate(visible, start=1)
    )


async def primary_key(connection: asyncpg.Connection, relation_id: int) -> tuple[str, ...]:
    return tuple(row["attname"] for row in await connection.fetch(_PRIMARY_KEY, relation_id))


async def published_tables(connection: asyncpg.Connection, publication: str) -> tuple[PublishedTable, ...]:
    rows = await connection.fetch(_PUBLISHED, publication)
    return tuple(
        PublishedTable(
            row["relation_id"],
            row["schema"],
            row["name"],
            row["replica_identity"],
            tuple(row["columns"] or ()),
            row["row_filter"],
            row["kind"],
        )
        for row in rows
    )
