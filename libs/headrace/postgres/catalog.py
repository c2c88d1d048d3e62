"""Reads from the catalog what the stream doesn't contain.

Primary keys, types that aren't built in, nullability, defaults, and the tables of a publication, as
of the moment of reading: the catalog may be newer than the position in the stream where it is
needed, so a dropped table yields empty facts, never an error. It must not be older: `table_facts`
says whether a transaction of the stream is visible yet, which it becomes a moment after its commit
is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import asyncpg

from headrace.contract.selection import Selection
from headrace.contract.values import TypeInfo, TypeKind
from headrace.postgres.facts import (
    CatalogSnapshot,
    ColumnFacts,
    PublishedTable,
    RelationFiles,
    RelationNow,
    TableFacts,
    follows,
)
from headrace.postgres.type_definitions import DEFINITIONS_OF

# Types below this are built in: their forms need no catalog.
FIRST_USER_OID = 16384

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


def _index_columns(which: str) -> str:
    """The key columns of an index of the relation `of`, selected by `which`, in order and without
    INCLUDEd ones.
    """
    return f"""
SELECT array_agg(a.attname::text ORDER BY k.ord) FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ord)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = of.oid AND k.ord <= i.indnkeyatts AND {which}
"""


# All queries for keys use these.
_PRIMARY_KEY = _index_columns("i.indisprimary")
_IDENTITY_INDEX = _index_columns("i.indisreplident")
# The index that pgoutput flags, where `of` is pg_class: a deferrable primary key is no replica
# identity.
_IDENTITY = _index_columns(
    "CASE of.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN "
    "i.indisreplident END"
)
_ROW_KEYS = f"""
SELECT of.oid::int8 AS relation_id, ({_PRIMARY_KEY}) AS primary_key,
    ({_IDENTITY_INDEX}) AS identity_index
FROM unnest($1::oid[]) AS of(oid)
"""


def base_type(oid: str) -> str:
    """The name of a domain's base type, through domains of domains; for an array of a domain, the
    array of that base type. NULL for any other type, and for an array of a domain over an array,
    whose text no built-in type has.
    """
    return f"""
(WITH RECURSIVE base(oid, modifier, depth, arrays) AS (
    SELECT {oid}::oid, -1, 0, 0
  UNION ALL
    SELECT CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END, t.typtypmod,
        b.depth + 1,
           b.arrays + (t.typtype <> 'd')::int
    FROM base b JOIN pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem IN (SELECT oid FROM pg_type
        WHERE typtype = 'd'))
) SELECT format_type(b.oid, nullif(b.modifier, -1)) || repeat('[]', b.arrays)
  FROM (SELECT * FROM base ORDER BY depth DESC LIMIT 1) AS b JOIN pg_type t ON t.oid = b.oid
  WHERE b.depth > 0 AND b.arrays + (t.typcategory = 'A')::int < 2)
"""


# A table in a publication's table list has a row with its own OID, which a later membership doesn't
# share.
_MEMBERSHIP = """
SELECT r.oid::int8 FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
WHERE p.pubname = $1 AND (r.prrelid = of.oid OR r.prrelid IN (SELECT relid
    FROM pg_partition_ancestors(of.oid)))
UNION ALL
SELECT n.oid::int8 FROM pg_publication p JOIN pg_publication_namespace n ON n.pnpubid = p.oid
JOIN pg_class c ON c.relnamespace = n.pnnspid WHERE p.pubname = $1 AND c.oid = of.oid
ORDER BY 1 LIMIT 1
"""

# The value in rows that are older than the column: a constant default fills it in without writing a
# row. As bytes, because text of a SQL_ASCII database may not be valid. Names of objects have
# another text in another session.
_MISSING = f"""
CASE WHEN a.atthasmissing AND coalesce({base_type("a.atttypid")}, format_type(a.atttypid,
    NULL)) NOT LIKE 'reg%' THEN
    convert_to(array_to_string(a.attmissingval, ''),
               CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) END
"""

# Whether adding the column gave rows a value; for a partitioned table, its partitions know.
_FILLED = """
(a.atthasmissing OR d.oid IS NOT NULL OR a.attidentity <> '' OR a.attgenerated <> '' OR EXISTS (
    SELECT FROM pg_partition_tree(a.attrelid) t JOIN pg_attribute leaf ON leaf.attrelid = t.relid
    WHERE leaf.attname = a.attname AND leaf.atthasmissing))
"""

_SHAPES = f"""
SELECT of.oid::int8 AS relation_id, a.attname AS name, a.attnum AS number,
    a.atttypid::int8 AS type_oid,
       a.atttypmod AS modifier, format_type(a.atttypid, a.atttypmod) AS data_type,
           NOT a.attnotnull AS is_nullable,
       {base_type("a.atttypid")} AS base_type,
       pg_get_expr(d.adbin, d.adrelid) AS column_default, {_FILLED} AS filled,
           {_MISSING} AS missing,
       of.relnatts AS last_number, of.relreplident = 'f'
           OR a.attname = ANY(identity.columns) AS is_key
FROM pg_class of
CROSS JOIN LATERAL (SELECT coalesce(({_IDENTITY}), '{{}}') AS columns) AS identity
JOIN pg_attribute a ON a.attrelid = of.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE of.oid = ANY($1::oid[]) ORDER BY of.oid, a.attnum
"""

# A rewrite gives a table (each partition of it) a new file, and its column a new row in
# pg_attribute: the publisher decides what that means. Partitions follow by OID, with an `a` if one
# was not created as a partition: rows from before it was attached have no events. A leading `u`
# marks a table that may become unlogged, which a table in a publication's list can't. In three
# parts, because an earlier version stored it like this and expects it after a downgrade.
_STORAGE_OF = """
CASE WHEN EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = c.oid) THEN '' ELSE 'u' END ||
(SELECT string_agg(concat_ws(':', p.oid, p.relfilenode, p.xmin, p.reltoastrelid), ','
    ORDER BY p.oid) FROM pg_class p
        WHERE p.oid = c.oid OR (c.relkind = 'p' AND p.oid IN (SELECT relid
            FROM pg_partition_tree(c.oid))))
       || '/' ||
       (SELECT md5(string_agg(a.xmin::text, ',' ORDER BY a.attnum)) FROM pg_attribute a
           WHERE a.attrelid = c.oid)
       || '/' || coalesce(
       (SELECT string_agg(i.inhrelid::int8 || CASE WHEN i.xmin = a.xmin THEN '' ELSE 'a' END, ','
           ORDER BY i.inhrelid)
        FROM pg_partition_tree(c.oid) t JOIN pg_inherits i ON i.inhrelid = t.relid
        JOIN pg_attribute a ON a.attrelid = t.relid AND a.attname = 'tableoid'
            WHERE c.relkind = 'p'), '')
"""

_STORAGE = f"""
SELECT c.oid::int8 AS relation_id, {_STORAGE_OF} AS storage,
    coalesce({DEFINITIONS_OF}, '') AS definitions FROM pg_class c WHERE c.oid = ANY($1::oid[])
"""

# The content of the publication, and the version of its definition.
_PUBLICATION = """
SELECT concat_ws(',', CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
                 CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END)
       || '/' || xmin::text
FROM pg_publication WHERE pubname = $1
"""

# Queried after the snapshot: the commit records of everything visible in it are before this LSN.
_PLACE = """
(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
    ELSE pg_current_wal_insert_lsn() END - '0/0'::pg_lsn)
"""

_PUBLISHED = """
SELECT c.oid::int8 AS relation_id, n.nspname AS schema, c.relname AS name,
    c.relreplident::text AS replica_identity,
       p.attnames::text[] AS columns, p.rowfilter AS row_filter, c.relkind::text AS kind
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = $1 ORDER BY 2, 3
"""

# For the relations of a list.
_KEYS = f"""
SELECT of.oid::int8 AS relation_id, ({_PRIMARY_KEY}) AS primary_key, ({_MEMBERSHIP}) AS membership
FROM unnest($2::oid[]) AS of(oid)
"""

# The stream contains the low half of a transaction id; the nearest full id is meant. In the order
# of the log a transaction ends with its commit record; for other sessions only when it is removed
# from the list of running transactions: with a slow synchronous standby that may be much later.
_SEES = """
SELECT pg_visible_in_snapshot(
    (top + (($3::int8 - top + 2147483648) & 4294967295) - 2147483648)::text::xid8, snapshot)
FROM (SELECT s AS snapshot, pg_snapshot_xmax(s)::text::int8 AS top
    FROM pg_current_snapshot() AS s) AS now
"""

# All in one statement, and therefore one snapshot: a row for each column, or one without any.
_FACTS = f"""
SELECT ({_SEES}) AS seen, ({_PRIMARY_KEY}) AS primary_key, ({_MEMBERSHIP}) AS membership,
       (SELECT i.xmin::text::int8 FROM pg_index i WHERE i.indrelid = of.oid
           AND i.indisprimary) AS key_defined_by,
       (SELECT array_agg(format_type(w.oid, nullif(w.modifier, -1)) ORDER BY w.place)
        FROM unnest($4::oid[], $5::int4[]) WITH ORDINALITY AS w(oid, modifier,
            place)) AS type_names,
       (SELECT array_agg({base_type("w.oid")} ORDER BY w.place)
        FROM unnest($4::oid[]) WITH ORDINALITY AS w(oid, place)) AS base_types,
       a.attname AS name, a.attnum AS number, NOT a.attnotnull AS is_nullable,
           a.xmin::text::int8 AS defined_by,
       pg_get_expr(d.adbin, d.adrelid) AS column_default, {_FILLED} AS filled,
           {_MISSING} AS missing,
       (SELECT c.relnatts FROM pg_class c WHERE c.oid = of.oid) AS last_number,
       (SELECT {_STORAGE_OF} FROM pg_class c WHERE c.oid = of.oid) AS storage,
       ({_PUBLICATION}) AS publication, {_PLACE}::int8 AS lsn,
       pg_snapshot_xmax(pg_current_snapshot())::text::int8 & 4294967295 AS next_xid
FROM (SELECT $2::oid AS oid) AS of
LEFT JOIN pg_attribute a ON a.attrelid = of.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
"""

# Relations that another catalog row describes.
_NOW = f"""
SELECT ({_SEES.replace("$3", "$2")}) AS seen, of.oid::int8 AS relation_id, n.nspname AS schema,
    c.relname AS name,
       CASE WHEN c.oid IS NOT NULL THEN {_STORAGE_OF} END AS storage, {_PLACE}::int8 AS lsn
FROM unnest($1::oid[]) AS of(oid) LEFT JOIN pg_class c ON c.oid = of.oid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
"""

# A new table's file has the table's own number.
_FILES = f"""
SELECT c.oid::int8 AS relation_id, c.relkind = 'r' AND c.relfilenode = c.oid AS first,
       (SELECT string_agg(concat_ws(':', p.oid, p.relfilenode), ',' ORDER BY p.oid) FROM pg_class p
        WHERE p.oid = c.oid OR (c.relkind = 'p' AND p.oid IN (SELECT relid
            FROM pg_partition_tree(c.oid)))) AS text,
       {_PLACE}::int8 AS lsn
FROM pg_class c WHERE c.oid = ANY($1::oid[])
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


async def table_facts(
    connection: asyncpg.Connection,
    relation_id: int,
    column_types: Sequence[tuple[int, int]],
    publication: str,
    xid: int,
) -> tuple[TableFacts, bool]:
    """Facts of a relation whose columns have these types (OID and modifier), as transaction `xid`
    saw it.

    Also returns whether this reading sees the effects of that transaction: otherwise the facts may
    be older.
    """
    user_oids = {oid for oid, _ in column_types if oid >= FIRST_USER_OID}
    arguments = (
        publication,
        relation_id,
        xid,
        [oid for oid, _ in column_types],
        [mod for _, mod in column_types],
    )
    if not user_oids:
        return _table_facts(await connection.fetch(_FACTS, *arguments), column_types, {}, xid)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        rows = await connection.fetch(_FACTS, *arguments)
        return _table_facts(rows, column_types, await types(connection, user_oids), xid)


def _table_facts(
    rows: Sequence[asyncpg.Record],
    column_types: Sequence[tuple[int, int]],
    known: dict[int, TypeInfo],
    xid: int,
) -> tuple[TableFacts, bool]:
    next_xid = rows[0]["next_xid"]
    key_by = rows[0]["key_defined_by"]
    facts = TableFacts(
        primary_key=tuple(rows[0]["primary_key"] or ()),
        key_is_later=key_by is not None and follows(key_by, xid, next_xid),
        types=known,
        columns={
            row["name"]: ColumnFacts(
                # A later transaction's definition may belong to another column of the same name.
                0 if follows(row["defined_by"], xid, next_xid) else row["number"],
                row["is_nullable"],
                row["column_default"],
                row["filled"],
                row["missing"],
            )
            for row in rows
            if row["name"] is not None
        },
        type_names={
            of: name
            for of, name in zip(column_types, rows[0]["type_names"] or (), strict=True)
            if name is not None
        },
        base_types={
            oid: name
            for (oid, _), name in zip(column_types, rows[0]["base_types"] or (), strict=True)
            if name
        },
        membership=rows[0]["membership"] or 0,
        last_number=rows[0]["last_number"] or 0,
        storage=rows[0]["storage"] or "",
        publication=rows[0]["publication"] or "",
        lsn=rows[0]["lsn"],
        next_xid=next_xid,
    )
    return facts, rows[0]["seen"]


async def relations_now(
    connection: asyncpg.Connection, relation_ids: Iterable[int], xid: int
) -> tuple[dict[int, RelationNow], bool]:
    """The existing ones of these relations, and whether this reading sees the effects of
    transaction `xid`.
    """
    rows = await connection.fetch(_NOW, list(relation_ids), xid)
    there = [row for row in rows if row["name"] is not None]
    return {
        row["relation_id"]: RelationNow(row["schema"], row["name"], row["storage"], row["lsn"])
        for row in there
    }, all(row["seen"] for row in rows)


async def files(
    connection: asyncpg.Connection, relation_ids: Iterable[int]
) -> dict[int, RelationFiles]:
    """The files of these relations; nothing of one that is gone."""
    rows = await connection.fetch(_FILES, list(relation_ids))
    return {
        row["relation_id"]: RelationFiles(row["text"], row["lsn"], row["first"]) for row in rows
    }


async def types(connection: asyncpg.Connection, type_oids: Iterable[int]) -> dict[int, TypeInfo]:
    """These types and the types they consist of."""
    rows = await connection.fetch(_TYPES, sorted(set(type_oids)))
    return {row["oid"]: _type_info(row) for row in rows}


def _type_info(row: asyncpg.Record) -> TypeInfo:
    if row["is_array"]:
        return TypeInfo(TypeKind.ARRAY, element_oid=row["typelem"], delimiter=row["delimiter"])
    return TypeInfo(_KINDS.get(row["typtype"], TypeKind.BASE), base_oid=row["typbasetype"])


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns that identify a relation's rows, each in the order of its index."""

    primary: tuple[str, ...] = ()
    identity_index: tuple[str, ...] = ()

    @property
    def row(self) -> tuple[str, ...]:
        """The primary key, or else the index chosen as replica identity."""
        return self.primary or self.identity_index


async def keys(connection: asyncpg.Connection, relation_ids: Sequence[int]) -> dict[int, Keys]:
    """The keys of these relations; none for a dropped one."""
    rows = await connection.fetch(_ROW_KEYS, relation_ids)
    return {
        row["relation_id"]: Keys(
            tuple(row["primary_key"] or ()), tuple(row["identity_index"] or ())
        )
        for row in rows
    }


def delivered(tables: Iterable[PublishedTable], selection: Selection) -> list[PublishedTable]:
    """The tables and columns in the change stream, after the suite's own filters."""
    return [
        replace(table, columns=tuple(column for column in table.columns if column not in hidden))
        for table in tables
        if selection.wants(table.schema, table.name)
        for hidden in [selection.hidden_columns(table.schema, table.name)]
    ]


async def published_tables(
    connection: asyncpg.Connection, publication: str
) -> tuple[PublishedTable, ...]:
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


@dataclass(frozen=True, slots=True)
class TableReading:
    """A published table with its columns, key and storage, read in one snapshot with others."""

    table: PublishedTable
    columns: tuple[asyncpg.Record, ...]
    primary_key: tuple[str, ...]
    membership: int
    storage: str
    # The highest number that any column of the table ever had; 0 if the publication doesn't include
    # all current ones.
    last_number: int = 0
    # The definitions of its columns' types.
    definitions: str = ""


@dataclass(frozen=True, slots=True)
class PublicationReading:
    """All tables of a publication at one moment; everything visible was committed before `lsn`."""

    lsn: int
    tables: tuple[TableReading, ...]
    existing: frozenset[int]
    snapshot: CatalogSnapshot
    # Of columns whose value in older rows is told.
    types: dict[int, TypeInfo]
    # The content of the publication, and the version of its definition.
    publication: str


async def read_publication(connection: asyncpg.Connection, publication: str) -> PublicationReading:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        snapshot = CatalogSnapshot.parse(
            await connection.fetchval("SELECT pg_current_snapshot()::text")
        )
        published = await published_tables(connection, publication)
        publishes = await connection.fetchval(_PUBLICATION, publication)
        oids = [table.relation_id for table in published]
        by_relation: dict[int, list[asyncpg.Record]] = {}
        for row in await connection.fetch(_SHAPES, oids):
            by_relation.setdefault(row["relation_id"], []).append(row)
        keys = {row["relation_id"]: row for row in await connection.fetch(_KEYS, publication, oids)}
        storage = {row["relation_id"]: row for row in await connection.fetch(_STORAGE, oids)}
        tables = [
            _table_reading(
                table,
                by_relation.get(table.relation_id, []),
                keys[table.relation_id],
                storage.get(table.relation_id, {}),
            )
            for table in published
        ]
        filled = {
            row["type_oid"]
            for table in tables
            for row in table.columns
            if row["missing"] is not None
        }
        known = await types(connection, (oid for oid in filled if oid >= FIRST_USER_OID))
    # Not in the snapshot: the list of published tables ignores it, and may lack one that was just
    # dropped.
    existing = await connection.fetch("SELECT oid::int8 FROM pg_class WHERE relkind IN ('r', 'p')")
    lsn = await connection.fetchval(f"SELECT {_PLACE}")
    return PublicationReading(
        int(lsn),
        tuple(tables),
        frozenset(row["oid"] for row in existing),
        snapshot,
        known,
        publishes or "",
    )


def _table_reading(
    table: PublishedTable,
    rows: Sequence[asyncpg.Record],
    keys: asyncpg.Record,
    storage: Mapping[str, str],
) -> TableReading:
    shown = tuple(row for row in rows if row["name"] in set(table.columns))
    return TableReading(
        table,
        shown,
        tuple(keys["primary_key"] or ()),
        keys["membership"] or 0,
        storage.get("storage", ""),
        rows[0]["last_number"] if rows and len(shown) == len(rows) else 0,
        storage.get("definitions", ""),
    )
