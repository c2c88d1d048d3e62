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

from headrace.contract import type_oids
from headrace.contract.selection import Selection
from headrace.contract.values import TypeInfo, TypeKind
from headrace.postgres import catalog_queries as queries
from headrace.postgres.facts import (
    UNKNOWN_SERVER,
    CatalogSnapshot,
    ColumnFacts,
    PublishedTable,
    RelationFiles,
    RelationNow,
    ServerIdentity,
    TableFacts,
    follows,
)

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
    user_oids = {oid for oid, _ in column_types if oid >= type_oids.FIRST_USER}
    arguments = (
        publication,
        relation_id,
        xid,
        [oid for oid, _ in column_types],
        [mod for _, mod in column_types],
    )
    # One statement has one snapshot. A second one, for the types, needs a transaction to share it.
    if not user_oids:
        return _table_facts(
            await connection.fetch(queries.FACTS, *arguments), column_types, {}, xid
        )
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        rows = await connection.fetch(queries.FACTS, *arguments)
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
    rows = await connection.fetch(queries.NOW, list(relation_ids), xid)
    # A dropped relation has a row without a name, because `seen` needs an answer for it too.
    there = [row for row in rows if row["name"] is not None]
    return {
        row["relation_id"]: RelationNow(row["schema"], row["name"], row["storage"], row["lsn"])
        for row in there
    }, all(row["seen"] for row in rows)


async def files(
    connection: asyncpg.Connection, relation_ids: Iterable[int]
) -> dict[int, RelationFiles]:
    """The files of these relations; nothing of one that is gone."""
    rows = await connection.fetch(queries.FILES, list(relation_ids))
    return {
        row["relation_id"]: RelationFiles(
            row["text"], row["lsn"], row["first"], tuple(row["joined"]), row["next_xid"]
        )
        for row in rows
    }


async def types(connection: asyncpg.Connection, type_oids: Iterable[int]) -> dict[int, TypeInfo]:
    """These types and the types they consist of."""
    rows = await connection.fetch(queries.TYPES, sorted(set(type_oids)))
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
    rows = await connection.fetch(queries.ROW_KEYS, relation_ids)
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
    rows = await connection.fetch(queries.PUBLISHED, publication)
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
    # The types of columns whose value in older rows is reported.
    types: dict[int, TypeInfo]
    # The content of the publication, and the version of its definition.
    publication: str
    # Whose catalog was read.
    server: ServerIdentity = UNKNOWN_SERVER


async def read_publication(connection: asyncpg.Connection, publication: str) -> PublicationReading:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        snapshot = CatalogSnapshot.parse(
            await connection.fetchval("SELECT pg_current_snapshot()::text")
        )
        published = await published_tables(connection, publication)
        publishes = await connection.fetchval(queries.PUBLICATION, publication)
        oids = [table.relation_id for table in published]
        by_relation: dict[int, list[asyncpg.Record]] = {}
        for row in await connection.fetch(queries.SHAPES, oids):
            by_relation.setdefault(row["relation_id"], []).append(row)
        keys = {
            row["relation_id"]: row
            for row in await connection.fetch(queries.KEYS, publication, oids)
        }
        storage = {row["relation_id"]: row for row in await connection.fetch(queries.STORAGE, oids)}
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
        known = await types(connection, (oid for oid in filled if oid >= type_oids.FIRST_USER))
    # Not in the snapshot: the list of published tables ignores it, and may lack one that was just
    # dropped.
    existing = await connection.fetch("SELECT oid::int8 FROM pg_class WHERE relkind IN ('r', 'p')")
    lsn = await connection.fetchval(f"SELECT {queries.PLACE}")
    return PublicationReading(
        int(lsn),
        tuple(tables),
        frozenset(row["oid"] for row in existing),
        snapshot,
        known,
        publishes or "",
        await server_identity(connection),
    )


async def server_identity(connection: asyncpg.Connection) -> ServerIdentity:
    """Which server this is; unknown where the role may not ask."""
    try:
        row = await connection.fetchrow(queries.SERVER)
    except asyncpg.InsufficientPrivilegeError:
        # By default, everybody may call these functions.
        return UNKNOWN_SERVER
    # PostgreSQL's own number has no sign.
    return ServerIdentity(str(row["system_id"] % (1 << 64)), row["timeline"] or 0)


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
        rows[0]["last_number"] if rows else 0,
        storage.get("definitions", ""),
    )
