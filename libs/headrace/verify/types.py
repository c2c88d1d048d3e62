"""The types of a table's columns from a database's own catalog, with domains resolved. Pure but for
one query.

The verifier asks each database itself, and trusts neither the stream nor the mirror about a type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

_COLUMNS = """
SELECT attname, atttypid::int8 FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# `typarray` decides: types such as name and point have an element type too, and are no arrays.
_TYPES = """
WITH RECURSIVE needed AS (
    SELECT DISTINCT atttypid AS oid FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0
        AND NOT attisdropped
  UNION
    SELECT next.oid FROM needed n JOIN pg_type t ON t.oid = n.oid, unnest(ARRAY[t.typbasetype,
        t.typelem]) AS next (oid)
    WHERE next.oid <> 0
)
SELECT t.oid::int8, format_type(t.oid, NULL), CASE WHEN t.typtype = 'd' THEN t.typbasetype::int8
    ELSE 0 END,
       coalesce((SELECT e.oid::int8 FROM pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid),
           0), t.typdelim::text
FROM needed n JOIN pg_type t ON t.oid = n.oid
"""


@dataclass(frozen=True, slots=True)
class SqlType:
    """`name` is the server's, without a modifier, of a domain its base type's; `element` is an
    array's.
    """

    name: str
    element: SqlType | None = None
    delimiter: str = ","
    # The server's type is a domain over this one. Two columns of one base type are equal.
    domain: bool = field(default=False, compare=False)


async def types_of(connection: psycopg.AsyncConnection[Any], relation: str) -> dict[str, SqlType]:
    """Of each column of a relation, whose name is quoted as SQL has it."""
    rows = await (await connection.execute(_TYPES, [relation])).fetchall()
    known = {row[0]: row[1:] for row in rows}
    columns = await (await connection.execute(_COLUMNS, [relation])).fetchall()
    return {name: _type(known, oid) for name, oid in columns}


def _type(known: Mapping[int, Sequence[Any]], oid: int) -> SqlType:
    name, base, element, delimiter = known[oid]
    if base:
        return replace(_type(known, base), domain=True)
    if not element:
        return SqlType(name, None, delimiter)
    # An array's text separates elements by their type's delimiter, not its own.
    return SqlType(name, _type(known, element), known[element][3])
