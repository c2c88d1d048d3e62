"""The tables of a copy, checked against the catalogs of a PostgreSQL in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.mirror.checking import TargetCheck, TargetShape, judged
from headrace.mirror.postgres import PostgresTarget, connected, explained, marks_in
from headrace.mirror.postgres_statements import SCHEMA, check_names
from headrace.mirror.postgres_values import type_in
from headrace.mirror.table import Table
from headrace.mirror.target import TargetError
from headrace.postgres.quoting import quote_name, quote_table

_ABOUT = """
SELECT current_setting('server_version'), pg_is_in_recovery(),
    current_setting('default_transaction_read_only')::bool, quote_ident(current_user),
    quote_ident(current_database()), has_database_privilege(current_database(), 'CREATE'),
    EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = 'marks')
"""
# The schemas of the mirror's own; one that does not exist would be the role's.
_OWN = """
SELECT nspname FROM pg_namespace n WHERE nspname IN (%s, 'headrace') AND NOT (
    has_schema_privilege(oid, 'USAGE') AND (has_schema_privilege(oid, 'CREATE') OR EXISTS (
        SELECT FROM pg_proc WHERE pronamespace = n.oid AND proname = 'wait_for')))
"""
_MARKS_RIGHTS = """
SELECT string_agg(needed, ', ') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) needed
WHERE NOT has_table_privilege(%s, needed)
"""
# By name: a cast to regclass fails in a schema that the role may not use.
_PLACES = """
SELECT wanted.schema, wanted.name, c.oid IS NOT NULL, coalesce(pg_has_role(c.relowner, 'USAGE'),
    true), n.oid IS NULL
    OR has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE')
FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
LEFT JOIN pg_namespace n ON n.nspname = wanted.schema
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
"""
_MISSING_TYPES = "SELECT kind FROM unnest(%s::text[]) AS kind WHERE to_regtype(kind) IS NULL"


@dataclass(frozen=True, slots=True)
class _Place:
    exists: bool
    is_owned: bool
    may_create: bool


async def check(target: PostgresTarget, tables: Sequence[Table]) -> TargetCheck:
    """Raises if the role can't have a mirror there; refuses single tables in the result."""
    async with explained(), await connected(target.url, "headrace sinks") as connection:
        await connection.set_read_only(True)
        return await _check(connection, tables)


async def _check(connection: psycopg.AsyncConnection[Any], tables: Sequence[Table]) -> TargetCheck:
    found: Any = await (await connection.execute(_ABOUT, [SCHEMA])).fetchone()
    version, standby, read_only, role, database, may_create, has_marks = found
    if standby or read_only:
        raise TargetError(
            f"the database {database} accepts no writes: it is read-only or a standby",
            remedy="Name the server that accepts writes in `to`.",
        )
    if not may_create:
        raise TargetError(
            f"the role {role} may not create schemas in {database}",
            remedy=f"As the database's owner: GRANT CREATE ON DATABASE {database} TO {role}",
        )
    for (schema,) in await (await connection.execute(_OWN, [SCHEMA])).fetchall():
        raise TargetError(
            f"the role {role} may not create anything in the schema {schema}",
            remedy=f"As its owner: GRANT CREATE, USAGE ON SCHEMA {schema} TO {role}",
        )
    marks: Mapping[str, str] = {}
    if has_marks:
        marks = await _marks(connection, role)
    places = await _places(connection, tables)
    # A server of an older version lacks some of the types that the source has.
    kinds = sorted({type_in(column.data_type) for table in tables for column in table.columns})
    missing = {
        row[0] for row in await (await connection.execute(_MISSING_TYPES, [kinds])).fetchall()
    }

    def shape(table: Table) -> TargetShape:
        check_names(table)
        _check_place(table, places[table.place], role)
        columns = []
        for column in table.columns:
            kind = type_in(column.data_type)
            if kind in missing:
                raise TargetError(
                    f"the column {column.name} has the type {kind}, which this server lacks",
                    remedy="Leave the column out with `columns`, or use a newer server.",
                )
            columns.append(f"{column.name} {kind}")
        return TargetShape(columns)

    outcomes = judged(tables, marks, lambda table: places[table.place].exists, shape)
    return TargetCheck(f"PostgreSQL {version.split()[0]} accepts the login of {role}", outcomes)


async def _marks(connection: psycopg.AsyncConnection[Any], role: str) -> Mapping[str, str]:
    rights = await connection.execute(_MARKS_RIGHTS, [f"{SCHEMA}.marks"])
    (lacks,) = await rights.fetchone() or (None,)
    if lacks:
        raise TargetError(
            f"the role {role} lacks {lacks} on {SCHEMA}.marks",
            remedy=f"Log in as the role that created it, or GRANT {lacks} ON {SCHEMA}.marks.",
        )
    return await marks_in(connection)


async def _places(
    connection: psycopg.AsyncConnection[Any], tables: Sequence[Table]
) -> dict[tuple[str, str], _Place]:
    names = [table.place for table in tables]
    given = [[schema for schema, _ in names], [name for _, name in names]]
    rows = await (await connection.execute(_PLACES, given)).fetchall()
    return {(schema, name): _Place(*rest) for schema, name, *rest in rows}


def _check_place(table: Table, place: _Place, role: str) -> None:
    schema = quote_name(table.place[0])
    if not place.may_create:
        raise TargetError(
            f"the role {role} may not create tables in the schema {schema}",
            remedy=f"As its owner: GRANT CREATE, USAGE ON SCHEMA {schema} TO {role}",
        )
    # Only the owner may drop a table.
    if not place.is_owned:
        name = quote_table(*table.place)
        raise TargetError(
            f"the role {role} does not own {name}, and could not replace it by a new copy",
            remedy=f"ALTER TABLE {name} OWNER TO {role}",
        )
